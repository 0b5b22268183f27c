# Two commands do everything on a fresh machine: `make run` and `make test`.
# TORCH="..." is what `pip install` is given for torch instead of the build found fitting.
export TORCH
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
ASSETS := gateway/dashboard/assets/htmx.min.js

.DEFAULT_GOAL := help
.PHONY: help setup run test check lock bench aot compare-vllm wheel audit clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  PYTHON=python3.12 chooses the interpreter; ARGS="..." is passed on to most of them;'
	@echo '  LITE=1 runs without a model of its own (300 MB less); TORCH="torch==..." chooses its build'

setup: $(VENV)/.installed $(ASSETS) ## make .venv from the lock (run, test and check do it by themselves)

run: $(VENV)/.runnable $(ASSETS) ## start LoopRouter: prints the status page, one key and a curl line
	@$(if $(LITE),:,$(BIN)/python deploy/set_up_backend.py)
	@$(BIN)/looprouter up $(if $(LITE),--lite) $(ARGS)

test: setup ## run all tests; says what is missing for those it cannot run
	@$(BIN)/python tests/run_tests.py $(ARGS)

check: setup ## lint, types, import contracts, tidy and unit tests, in under a minute
	@$(BIN)/python tests/run_checks.py $(ARGS)

lock: setup ## write requirements.lock anew; UPGRADE=1 moves every pin to the newest
	@$(BIN)/python deploy/lock.py $(if $(UPGRADE),--upgrade)

bench: setup ## measure the hot paths and print a table
	@$(BIN)/python tests/bench/run.py $(ARGS)

aot: setup ## compile every GPU kernel for every chip, no GPU needed, and hold it to its budget
	@$(BIN)/python -m kernels aot $(ARGS)

compare-vllm: $(VENV)/.runnable ## ask our server and vLLM's the same and print one table
	@PYTHONPATH=. $(BIN)/python tests/bench/compare_vllm.py $(ARGS)

wheel: setup ## build the wheel into dist/
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist .

audit: setup ## check hashes, start-up hooks and advisories of what is installed; write the SBOM
	@$(BIN)/python deploy/audit.py

clean: ## remove .venv and everything built
	@rm -rf $(VENV) build dist gateway/dashboard/assets tests/*/node/node_modules .mypy_cache .ruff_cache .pytest_cache

# Stamps: each step runs once, and again only when what it depends on has changed.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or later is needed; say which: make PYTHON=python3.12'; exit 1; }
	@echo 'setting up $(VENV) (once) ...'
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo 'the venv module is missing; on Debian: apt-get install -y python3-venv'; exit 1; }
	@touch $@

$(VENV)/.runtime: requirements.lock $(VENV)/.created
	@echo 'installing what it takes to run (once, about a minute) ...'
	@sed '/^# --- below/,$$d' requirements.lock > $(VENV)/runtime.lock
	@$(PIP) install --require-hashes --only-binary :all: --no-compile -r $(VENV)/runtime.lock
	@touch $@

$(VENV)/.runnable: pyproject.toml $(VENV)/.runtime
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.locked: $(VENV)/.runtime
	@echo 'installing the locked packages (once, a minute or three) ...'
	@$(PIP) install --require-hashes --only-binary :all: --no-compile -r requirements.lock
	@touch $@

$(VENV)/.torch: deploy/install_torch.py pyproject.toml $(VENV)/.locked
	@$(BIN)/python deploy/install_torch.py --for-tests
	@touch $@

$(VENV)/.installed: $(VENV)/.runnable $(VENV)/.torch
	@touch $@

# Where they cannot be had it says so and goes on: the dashboard works without them.
$(ASSETS): deploy/build_assets.py deploy/assets/package-lock.json deploy/assets/files.json | $(VENV)/.created
	@$(BIN)/python deploy/build_assets.py
