"""What `serve` refuses before it loads anything, and what it says of itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from backend.cli.environment import Environment
from backend.cli.serve import check_installed, check_reach, engine_config, serve
from backend.config import DType, EngineConfig, KernelChoice, Quantization
from backend.errors import SetupError

OPTIONS = {
    "dtype": "bfloat16",
    "quantization": "auto",
    "device": "cpu",
    "threads": 0,
    "kv_cache_mib": 512,
    "context": 0,
    "sequences": 32,
    "waiting": 256,
    "no_prefix_cache": False,
}


def config(**changes: object) -> EngineConfig:
    return engine_config(**{**OPTIONS, **changes})  # type: ignore[arg-type]


def test_defaults_are_those_of_the_engine_with_int8_on_a_cpu() -> None:
    assert config() == EngineConfig(quantization=Quantization.INT8)


@pytest.mark.parametrize(
    ("dtype", "wanted", "chosen"),
    [
        ("bfloat16", "none", Quantization.NONE),
        ("float32", "auto", Quantization.NONE),
        ("float32", "int8", Quantization.INT8),
    ],
)
def test_quantization_is_as_asked_and_auto_leaves_float32_alone(
    dtype: str, wanted: str, chosen: Quantization
) -> None:
    made = config(dtype=dtype, quantization=wanted)

    assert (made.dtype, made.quantization) == (DType(dtype), chosen)


def test_kernels_are_the_devices_unless_others_are_asked_for() -> None:
    assert config().kernels == KernelChoice("auto")
    assert config(kernels="reference").kernels == KernelChoice("reference")


def test_sizes_arrive_in_the_engines_units() -> None:
    made = config(kv_cache_mib=3, context=100, sequences=2, waiting=5, threads=7)

    assert made.kv_cache_bytes == 3 * 1024 * 1024
    assert (made.context_len_max, made.sequences_max, made.waiting_max) == (100, 2, 5)
    assert made.num_threads == 7
    assert config(no_prefix_cache=True).is_prefix_cached is False


def test_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(SetupError, match="--device cpu"):
        config(device="cuda")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_own_addresses_need_no_key(host: str) -> None:
    check_reach(host, has_key=False, allows_anyone=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_addresses_that_others_reach_need_a_key_or_a_word(host: str) -> None:
    with pytest.raises(SetupError, match="LOOPROUTER_BACKEND_API_KEY"):
        check_reach(host, has_key=False, allows_anyone=False)
    check_reach(host, has_key=True, allows_anyone=False)
    check_reach(host, has_key=False, allows_anyone=True)


class _Hidden:
    """Makes a package look as if it was never installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.split(".")[0] == self._name:
            raise ModuleNotFoundError(name)
        return None


@pytest.mark.parametrize("name", ["safetensors", "gguf"])
def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [each for each in sys.modules if each.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Hidden(name), *sys.meta_path])

    with pytest.raises(SetupError, match=rf"needs {name}.*looprouter\[backend\]"):
        check_installed()


def test_keys_come_from_the_environment_and_are_not_short() -> None:
    variables = {
        "LOOPROUTER_BACKEND_API_KEY": "first-key, second-key,",
        "MY_KEY": "third-key",
        "SHORT": "abc",
        "EMPTY": " ",
    }
    environment = Environment.read(variables)

    assert environment.api_keys() == ("first-key", "second-key")
    assert environment.api_keys("MY_KEY") == ("third-key",)
    assert Environment.read({}).api_keys() == ()
    with pytest.raises(SetupError, match="fewer than 8"):
        environment.api_keys("SHORT")
    for name in ("EMPTY", "NOT_SET"):
        with pytest.raises(SetupError, match=name):
            environment.api_keys(name)
    assert "third-key" not in repr(environment)


@pytest.mark.parametrize(
    "arguments",
    [[], ["smollm2", "--port", "x"], ["smollm2", "--dtype", "int4"], ["smollm2", "--frobnicate"]],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(serve, arguments).exit_code == 2


def test_model_that_is_not_there_is_said_before_a_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPROUTER_HOME", str(tmp_path))

    done = CliRunner().invoke(serve, ["nosuch"])

    assert isinstance(done.exception, SetupError)
    assert "models fetch smollm2" in str(done.exception)


WITHOUT_TORCH = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
sys.argv = ["looprouter-backend", *sys.argv[1:]]
from backend.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(("serve", "smollm2"), 3), (("--help",), 0), (("models", "list"), 0)]
)
def test_without_torch_only_serving_is_refused_and_says_which_extra(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        env={"LOOPROUTER_HOME": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert done.stderr.count("\n") == 1
        assert "torch" in done.stderr
        assert "pip install 'looprouter[backend]'" in done.stderr


def test_drafts_have_rows_of_their_own() -> None:
    made = config(speculation="ngram", drafts=6, sequences=10)

    assert (made.proposer, made.num_drafts_max) == ("ngram", 6)
    assert made.rows_max == EngineConfig().rows_max + 60
    assert config(speculation="none", drafts=6).num_drafts_max == 0
    assert config(speculation="ngram").num_drafts_max == 5
    assert config(speculation="eagle3").num_drafts_max == 3
    assert config(speculation="dspark+ngram").num_drafts_max == 5
    assert config(speculation="draft_model").num_drafts_max == 4


def test_a_draft_head_may_be_forced() -> None:
    made = config(speculation="eagle3", draft="a/head", force_draft=True)

    assert (made.draft_path, made.is_draft_forced) == ("a/head", True)
    assert not config(speculation="eagle3", draft="a/head").is_draft_forced


def test_a_draft_method_that_nobody_knows_is_refused_before_the_model_is_read() -> None:
    with pytest.raises(SetupError, match=r"no draft method 'magic'; known: .*ngram"):
        config(speculation="magic")
