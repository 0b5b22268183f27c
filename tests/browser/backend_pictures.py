"""Takes the docs' pictures of the page Backend: SmolLM2 at work on its own machine.

    looprouter-backend models fetch smollm2
    python tests/browser/backend_pictures.py docs/images

Its draft head was trained on questions such as GSM8K has, so it is asked those. What else runs on
the machine is in the picture too: a server that is short of processor time drafts at a loss.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import httpx

from backend.cli.environment import Environment
from tests.bench.peers.engines import gsm8k_questions
from tests.browser.node_script import run_node
from tests.run_tests import browser_packages
from tests.support.backend_process import running_backend
from tests.support.gateway_process import looprouter, running_gateway

NUM_ASKED = 12  # before the first picture: from 30 timed rounds on the page tells a speed-up
TOKENS = 120
KEY = "a-key-of-the-backend"
POLICY = """
version: 1
providers:
  own:
    api: openai
    base_url: "{base_url}"
    network: private
    key_env: OWN_KEY
    self_hosted: {{billing: owned, watts: 30, usd_per_kwh: 0.20, tokens_per_hour: 400000}}
models:
  {model}:
    - {{provider: own, model: {model}, surfaces: [chat, completions]}}
routes: [{{name: all, prefer: {{by: fastest}}}}]
"""


def main(folder: Path) -> None:
    environment = Environment.read()
    questions = [each.text for each in gsm8k_questions(environment)]
    with (
        tempfile.TemporaryDirectory() as name,
        browser_packages() as chromium,
        running_backend(
            "smollm2",
            Path(name) / "own",
            *("--quantization", "int8"),
            environ={"LOOPROUTER_HOME": str(environment.home)},
            key=KEY,
        ) as backend,
        running_gateway(
            POLICY.format(base_url=backend.v1, model=backend.model),
            Path(name) / "gateway",
            environ={"OWN_KEY": KEY},
        ) as gateway,
    ):
        made = looprouter(
            "admins", "create", "ada", "--role", "viewer", "--json", home=gateway.home
        )
        for question in questions[:NUM_ASKED]:
            body = {
                "model": backend.model, "temperature": 0, "max_tokens": TOKENS,
                "messages": [{"role": "user", "content": question}],
            }  # fmt: skip
            url = f"{gateway.v1}/chat/completions"
            httpx.post(url, json=body, headers=gateway.headers, timeout=120).raise_for_status()
        world = {
            "base_url": gateway.base_url,
            "key": gateway.key,
            "admin": "ada",
            "password": json.loads(made)["password"],
            "images": str(folder.resolve()),
            "chromium": chromium,
            "model": backend.model,
            "prompts": questions[NUM_ASKED : NUM_ASKED + 8],
            "tokens": TOKENS,
        }
        run_node("backend_pictures.mjs", world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
