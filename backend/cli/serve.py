"""`looprouter-backend serve`: one model behind OpenAI's API."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import rich_click as click

from backend.cli.environment import API_KEY, Environment
from backend.config import DType, EngineConfig, KernelChoice, Quantization
from backend.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

    from backend.serving.service import Loaded

DEFAULT_PORT = 8100
# What was measured as fastest on a CPU; a GPU runs the weights as they are.
CPU_QUANTIZATION = Quantization.INT8
DRAFT_MODEL = "draft_model"  # the draft method whose draft is a model like any other
_NEEDED = ("torch", "safetensors", "tokenizers", "gguf", "jinja2")
_DEFAULTS = EngineConfig()
_MIB = 1024 * 1024


@click.command()
@click.argument("model")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 = any that is free.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--served-name", help="Name in the API; default: of what was fetched, or the file's.")
@click.option(
    "--dtype",
    type=click.Choice([each.value for each in DType]),
    default=_DEFAULTS.dtype.value,
    show_default=True,
    help="Of weights and states.",
)
@click.option(
    "--quantization",
    type=click.Choice(["auto", "int8", "none"]),
    default="auto",
    show_default=True,
    help="Of linear weights; auto = int8 for bfloat16 on a CPU.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="cuda is ROCm too; auto = a GPU if there is one.",
)
@click.option(
    "--threads", type=click.IntRange(0, 1024), default=0, help="Of the CPU; 0 = all cores but one."
)
@click.option(
    "--kv-cache-mib",
    type=click.IntRange(1),
    show_default=True,
    default=_DEFAULTS.kv_cache_bytes // _MIB,
    help="Memory for keys and values.",
)
@click.option(
    "--context",
    type=click.IntRange(0),
    default=0,
    help="Tokens of prompt and answer; 0 = the model's own.",
)
@click.option(
    "--sequences",
    type=click.IntRange(1, 1024),
    default=_DEFAULTS.sequences_max,
    show_default=True,
    help="Answers generated at once; more wait.",
)
@click.option(
    "--waiting",
    type=click.IntRange(0, 100_000),
    default=_DEFAULTS.waiting_max,
    show_default=True,
    help="Answers that may wait; more are refused with 429.",
)
@click.option(
    "--speculation",
    default="auto",
    show_default=True,
    metavar="METHOD",
    help="Draft method: none, ngram, suffix, draft_model, eagle3, dflash, dspark, or a head with "
    "lookups before it (dspark+ngram); the text is the same with any. auto = the best with a head "
    "that comes with this package for MODEL, else none.",
)
@click.option(
    "--drafts",
    type=click.IntRange(0, 64),
    default=0,
    help="Tokens drafted a round at most; 0 = 5 for lookups, 3 for eagle3, 4 for the others.",
)
@click.option(
    "--draft",
    metavar="PATH",
    default="",
    help="Draft head of the method (else one that comes with this package), or its draft model, "
    "named as MODEL is.",
)
@click.option(
    "--force-draft", is_flag=True, help="Use a draft head even if it was made for another model."
)
@click.option(
    "--kernels",
    type=click.Choice(["auto", "reference", "native", "triton", "triton-graphs"]),
    default="auto",
    show_default=True,
    help="reference = torch; native = C++, on a CPU; triton, on a GPU; triton-graphs = those, each "
    "step as one graph (not yet run on a GPU); auto = those of the device.",
)
@click.option("--no-doctor", is_flag=True, help="Use the kernels of a GPU without trying them.")
@click.option("--no-prefix-cache", is_flag=True, help="Compute every prompt anew.")
@click.option(
    "--api-key-env",
    default="",
    metavar="NAME",
    help=f"Variable with the API keys, commas between; default {API_KEY}.",
)
@click.option(
    "--allow-anyone",
    is_flag=True,
    help="Without a key, listen on an address that others can reach.",
)
@click.option(
    "--first-token-limit",
    type=click.FloatRange(0.1),
    default=300.0,
    show_default=True,
    help="Seconds until a request's first token; then it fails with 504.",
)
@click.option(
    "--total-limit",
    type=click.FloatRange(0.1),
    default=3600.0,
    show_default=True,
    help="Seconds until a request's end.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0.0),
    default=30.0,
    show_default=True,
    help="Seconds that running answers get at SIGTERM.",
)
@click.option("--with-parent", is_flag=True, help="Drain and end when standard input is closed.")
def serve(
    model: str,
    *,
    port: int,
    host: str,
    served_name: str | None,
    api_key_env: str,
    allow_anyone: bool,
    first_token_limit: float,
    total_limit: float,
    drain: float,
    with_parent: bool,
    no_doctor: bool,
    **engine_options: object,
) -> None:
    """Serve MODEL: a fetched name, a Hugging Face folder or a .gguf file.

    `smollm2` (after `models fetch smollm2`) is served as `smollm2-135m-instruct`. Prints the
    address once a real forward has run. SIGTERM drains. docs/backend-api.md describes the API.
    """
    check_installed()
    from backend.api.server import listen
    from backend.cli.model_store import ModelStore

    # What can be refused at once comes before the imports that take seconds.
    environment = Environment.read()
    keys = environment.api_keys(api_key_env)
    check_reach(host, has_key=bool(keys), allows_anyone=allow_anyone)
    store = ModelStore(environment.models_folder)
    choice = store.choose(model)
    if engine_options["speculation"] == DRAFT_MODEL and engine_options["draft"]:
        engine_options["draft"] = str(store.choose(str(engine_options["draft"])).path)
    name = served_name or choice.served_name
    sock, bound = listen(host, port)
    say(f"Loading {name} from {choice.path} …")
    from backend.api.auth import LOCAL_NAMES
    from backend.api.run import ServeOptions, run_in_uvloop, serve_model
    from backend.cli.doctoring import examined
    from backend.serving.job import TimeLimits
    from backend.serving.loading import load_served

    engine_options = with_bundled_head(engine_options, choice.path)
    config = engine_config(**engine_options)  # type: ignore[arg-type]  # click has checked them
    if not no_doctor:
        config = examined(config, choice.path, say)
    options = ServeOptions(
        served_name=name,
        version=version("looprouter"),
        keys=keys,
        limits=TimeLimits(first_token_limit, total_limit),
        drain_s=drain,
        local_names=None if keys or allow_anyone else LOCAL_NAMES | {host},
        ends_with=sys.stdin.fileno() if with_parent else None,
    )
    configure_logs()
    key_name = (api_key_env or API_KEY) if keys else ""

    def ready(loaded: Loaded) -> None:
        say(greeting(name, host, bound, key_name, loaded))

    run_in_uvloop(serve_model(options, lambda: load_served(choice.path, config), sock, ready))


def say(line: str) -> None:
    """At once, also into a file."""
    click.echo(line)
    sys.stdout.flush()


def with_bundled_head(options: dict[str, object], target: Path) -> dict[str, object]:
    """`auto` decided, and a head for a method that needs one. Raises SetupError without any."""
    from backend.speculate.bundled import AUTO, choose
    from backend.speculate.proposers.lookup_first import SUFFIX
    from backend.speculate.registry import head_method

    method = str(options["speculation"])
    wanted = AUTO if method == AUTO else head_method(method)
    if method != AUTO:
        options = {**options, "method_why": "asked for with --speculation"}
    if options["draft"] or wanted is None:
        if wanted == AUTO:
            raise SetupError("--draft needs a method beside it; say which: --speculation METHOD")
        return options
    head = choose(wanted, target)
    if head is None:
        why = "auto: no draft head that comes with this package was trained for this model"
        return {**options, "speculation": "none", "method_why": why}
    if wanted == AUTO:
        options = {**options, "method_why": f"auto: {head.why}; what repeats is looked up first"}
    chosen = head.method + SUFFIX if wanted == AUTO else method
    return {**options, "speculation": chosen, "draft": str(head.directory)}


def check_installed() -> None:
    """Raises SetupError naming the extra that is missing."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        raise SetupError(
            f"serving a model needs {', '.join(missing)}, which this Python does not have; "
            "install the extra: pip install 'looprouter[backend]'"
        )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def check_reach(host: str, *, has_key: bool, allows_anyone: bool) -> None:
    """Raises SetupError: no key, and an address that other machines can reach."""
    from backend.api.server import is_loopback

    if not (has_key or allows_anyone or is_loopback(host)):
        raise SetupError(
            f"on {host} everybody who can reach this machine could use the model; set {API_KEY} "
            "(or name another variable with --api-key-env), or say --allow-anyone"
        )


def engine_config(
    *,
    dtype: str,
    quantization: str,
    device: str,
    threads: int,
    kv_cache_mib: int,
    context: int,
    sequences: int,
    waiting: int,
    no_prefix_cache: bool,
    speculation: str = "none",
    drafts: int = 0,
    draft: str = "",
    force_draft: bool = False,
    kernels: str = "auto",
    method_why: str = "",
) -> EngineConfig:
    """The options as the engine takes them, `auto` decided. Raises SetupError."""
    from backend.speculate.registry import NUM_DRAFTS, NUM_DRAFTS_OTHERS, check_method

    check_method(speculation)
    device = device_for(device)
    chosen = Quantization.NONE
    if quantization == "int8":
        chosen = Quantization.INT8
    elif quantization == "auto" and device == "cpu" and dtype == DType.BFLOAT16:
        chosen = CPU_QUANTIZATION
    default = NUM_DRAFTS.get(speculation, NUM_DRAFTS_OTHERS)
    num_drafts = 0 if speculation == "none" else drafts or default
    return EngineConfig(
        dtype=DType(dtype),
        quantization=chosen,
        device=device,
        num_threads=threads,
        kv_cache_bytes=kv_cache_mib * _MIB,
        context_len_max=context,
        sequences_max=sequences,
        waiting_max=waiting,
        is_prefix_cached=not no_prefix_cache,
        proposer=speculation,
        num_drafts_max=num_drafts,
        draft_path=draft,
        is_draft_forced=force_draft,
        method_why=method_why,
        drafts_why=why_drafts(speculation, drafts) if num_drafts else "",
        # Rows of drafts leave those of prompts as many as there were.
        rows_max=_DEFAULTS.rows_max + sequences * num_drafts,
        kernels=KernelChoice(kernels),
    )


def why_drafts(method: str, asked: int) -> str:
    return "asked for with --drafts" if asked else f"the default for {method}"


def device_for(device: str) -> str:
    """`auto` decided. Raises SetupError where a GPU is asked for and there is none."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise SetupError("torch finds no GPU here; use --device cpu, or install torch for yours")
    return device


def configure_logs() -> None:
    """Lines on standard error; prompts are never logged."""
    import logging

    import structlog

    # The engine and the kernels know nothing of structlog.
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s [%(levelname)s] %(name)s: %(message)s"
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def greeting(name: str, host: str, port: int, key_name: str, loaded: Loaded) -> str:
    """The address, what runs there, and a line to try."""
    shown_host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared only
    address = f"http://{f'[{shown_host}]' if ':' in shown_host else shown_host}:{port}"
    config = loaded.config
    what = [loaded.model.family, config.device, config.dtype.value]
    if config.quantization is not Quantization.NONE:
        what.append(config.quantization.value)
    if config.device == "cpu":
        what.append(f"{config.num_threads} thread{'s' if config.num_threads != 1 else ''}")
    what.append(f"context {loaded.context_len}")
    if loaded.text.has_chat:
        path, asked = (
            "chat/completions",
            ('"messages": [{"role": "user", "content": "What is the capital of France?"}]'),
        )
    else:
        path, asked = "completions", '"prompt": "The capital of France is"'
    lines = [
        f"{name} is ready on {address}/v1 ({', '.join(what)})",
        "Try it:",
        f"  curl {address}/v1/{path} \\",
        *([f'    -H "authorization: Bearer ${key_name}" \\'] if key_name else []),
        "    -H 'content-type: application/json' \\",
        "    -d " + shlex.quote(f'{{"model": "{name}", {asked}, "max_tokens": 100}}'),
    ]
    return "\n".join(lines)
