"""`looprouter up`: choose a policy, start simulated providers if needed, reuse key and data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.app import own_backend
from gateway.app.policy_source import read_policy_file
from gateway.catalogue.entries import ProviderDefaults
from gateway.catalogue.lookup import detect_providers, key_env_in
from gateway.catalogue.starter import default_policy
from gateway.core import NANOS_PER_DOLLAR
from gateway.dashboard.accounts import IssuedAdmin
from gateway.errors import ApiError, PolicyError, SetupError
from gateway.keys.authenticate import Authenticator
from gateway.keys.service import create_key
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import DEFAULT_NAME, Budget, NewKey
from gateway.policy.load import load_policy
from gateway.settings import Settings
from gateway.simulator.demo import demo_policy_yaml, demo_profiles
from gateway.store.engine import Store

FIRST_BUDGET_NANOS = 5 * NANOS_PER_DOLLAR
KEY_FILE = "first-key"
POLICY_FILE = "policy.yaml"
DEMO_POLICY_FILE = "demo-policy.yaml"
SIMULATOR_START_S = 60.0
# Fixed where free, so that what was learned of an endpoint is found again on the next run.
SIMULATOR_PORT_FIRST = 18_101


@dataclass(frozen=True, slots=True)
class Choice:
    """What `up` will serve."""

    policy_path: Path
    is_demo: bool


def choose_policy(
    settings: Settings,
    *,
    policy: Path | None,
    demo: bool,
    yes: bool,
    ask: Callable[[str], bool] | None,
    say: Callable[[str], None],
    has_own: bool = False,
) -> Choice:
    """A given file, else one made of the provider keys found (after asking), else the demo.

    `ask` is None without a terminal: then found keys are not used unless `yes`. `has_own`: a model
    can be served on this machine, so a first policy names it.
    """
    if policy is not None:
        return Choice(policy, is_demo=False)
    if demo:
        return Choice(settings.home / DEMO_POLICY_FILE, is_demo=True)
    found = detect_providers(settings.environ)
    if not found:
        return Choice(settings.home / DEMO_POLICY_FILE, is_demo=True)
    say("Provider keys found in the environment:")
    for provider in found:
        say(f"  {provider.name:<14} {key_env_in(provider, settings.environ)}")
    if not (yes or (ask is not None and ask("Use them? Requests will be billed to them"))):
        say("They are not used (--yes uses them). Starting with simulated providers instead.")
        return Choice(settings.home / DEMO_POLICY_FILE, is_demo=True)
    return Choice(_own_policy(settings, found, say, has_own=has_own), is_demo=False)


def _own_policy(
    settings: Settings,
    found: Sequence[ProviderDefaults],
    say: Callable[[str], None],
    *,
    has_own: bool,
) -> Path:
    path = settings.home / POLICY_FILE
    if path.exists():
        say(f"Using your policy {path}")
        return path
    path.write_text(
        default_policy(
            found,
            settings.environ,
            more_providers=own_backend.provider_yaml(own_backend.PORT_FIRST) if has_own else "",
            more_models=own_backend.model_yaml() if has_own else "",
        )
    )
    say(f"Wrote a first policy to {path}; edit it, changes take effect at once")
    return path


class SimulatedProviders:
    """The demo's providers in one process of their own, ended with ours."""

    def __init__(self, process: subprocess.Popen[bytes], ports: Mapping[str, int]) -> None:
        self.ports = ports
        self._process = process

    @classmethod
    def start(cls, free_port: Callable[[int], int]) -> SimulatedProviders:
        """Begin to start them; they load while we do. `wait_ready` must follow."""
        profiles = demo_profiles()
        ports: dict[str, int] = {}
        after = SIMULATOR_PORT_FIRST
        for profile in profiles:
            ports[profile.name] = free_port(after)
            after = ports[profile.name] + 1
        command = [sys.executable, "-m", "gateway.simulator", "--with-parent"]
        for profile in profiles:
            short = profile.name.removeprefix("simulated-")
            command += ["--profile", short, "--port", str(ports[profile.name])]
        # A session of its own: Ctrl-C reaches us first, and we stop it after the drain.
        process = subprocess.Popen(  # noqa: S603 - our own module, no user text in it
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        return cls(process, ports)

    def wait_ready(self) -> None:
        """Until each has said that it listens. SetupError when one does not."""
        assert self._process.stdout is not None

        deadline_s = time.monotonic() + SIMULATOR_START_S
        for _ in self.ports:
            line = self._process.stdout.readline()
            if not line or time.monotonic() > deadline_s:
                self.stop()
                raise SetupError("the simulated providers did not start; see the lines above")

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()


def write_demo_policy(path: Path, ports: Mapping[str, int], *, own_port: int | None = None) -> str:
    """Written anew at each start: the ports may differ. In one rename: it is being watched."""
    text = demo_policy_yaml(
        ports,
        more_providers=own_backend.provider_yaml(own_port) if own_port is not None else "",
        more_models=own_backend.model_yaml() if own_port is not None else "",
    )
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.replace(path)
    return text


def own_port(
    settings: Settings,
    choice: Choice,
    *,
    free_port: Callable[[int], int],
    say: Callable[[str], None],
) -> int | None:
    """Where to serve the model of this machine; None where it cannot be, or is not wanted.

    The demo takes any free port; a policy says itself where its provider `own` is. Says in a line
    why a wanted one is left out.
    """
    wanted: int | None = None
    if not choice.is_demo:
        try:
            text = read_policy_file(choice.policy_path)
            policy = load_policy(text, environ=None, source=str(choice.policy_path))
        except (PolicyError, OSError):
            return None  # said when the policy is opened
        wanted = own_backend.port_in(policy)
        if wanted is None:
            return None
    if why := own_backend.missing(settings.home):
        say(f"Without {own_backend.MODEL}, a model on this machine: {why}")
        return None
    return wanted or free_port(own_backend.PORT_FIRST)


async def first_key(settings: Settings, store: Store, *, now_unix_s: float) -> tuple[str, bool]:
    """The key of the run before, or a new one with a $5 budget; and whether it is new.

    The key is kept in a file that only its owner can read, because `up` prints it on every start.
    """
    path = settings.home / KEY_FILE
    if path.exists():
        kept = read_policy_file(path).decode("ascii", errors="replace").strip()
        if await is_in_force(settings, store, kept):
            return kept, False
    tenant_id = await ensure_tenant(store, DEFAULT_NAME, DEFAULT_NAME, now=now_unix_s)
    wanted = NewKey(
        name="first key of looprouter up",
        budgets=(Budget(limit_nanos=FIRST_BUDGET_NANOS, period="total"),),
    )
    issued = await create_key(store, settings.pepper(), tenant_id, wanted, now=now_unix_s)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(issued.key + "\n")
    return issued.key, True


async def is_in_force(settings: Settings, store: Store, key: str) -> bool:
    """Whether the kept key still opens: not revoked, not expired, not of another database."""
    authenticator = Authenticator(
        store, settings.pepper(), clock=time.monotonic, wall_clock=time.time
    )
    try:
        await authenticator.identify(key)
    except ApiError:
        return False
    return True


def command_here() -> str:
    """`looprouter`, or its path where a shell does not find it: a checkout's `.venv/bin`."""
    called = sys.argv[0]
    name = Path(called).name
    return called if shutil.which(name) is None and os.access(called, os.X_OK) else "looprouter"


def greeting(
    *,
    base_url: str,
    key: str,
    is_new: bool,
    is_demo: bool,
    model: str,
    own: str = "",
    first: IssuedAdmin | None = None,
    command: str = "looprouter",
) -> str:
    """What a newcomer needs: the pages, the key, a line that works. `own`: a model that loads.

    `first`: the admin that this start made; the password is shown this once. `command`: how this
    program is called from here.
    """
    budget = "a new key with a $5 budget" if is_new else "the key of your last run"
    real = "one real model on this machine" if own else "no real model"
    labels = f"  (simulated providers: no real money; {real})" if is_demo else ""
    login = f"   (log-in lost? {command} admins list, {command} admins reset NAME)"
    if first is not None:
        login = f"   (log in as {first.row.name}, password {first.password}; not shown again)"
    loading = f"  own model    {own}: a real one, it joins in a moment\n" if own else ""
    body = f'{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"Hello"}}]}}'
    return (
        f"\nLoopRouter is ready{labels}\n\n"
        f"  status page  {base_url}/\n"
        f"  dashboard    {base_url}/admin{login}\n"
        f"  API key      {key}   ({budget})\n"
        f"  OpenAI base  {base_url}/v1\n{loading}"
        f"  commands     {command} --help\n\n"
        "Try it:\n\n"
        f"curl -N {base_url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\\n"
        f"  -d '{body}'\n\n"
        "Stop with Ctrl-C.\n"
    )
