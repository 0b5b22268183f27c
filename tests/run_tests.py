"""Runs every test: brings up what they need, and says what is missing for those it must leave out.

With CI=true a group that cannot run is a failure. Arguments go to pytest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.services import (  # noqa: E402 - the path above comes first
    POSTGRES_ENV,
    REDIS_ENV,
    ServiceMissing,
    postgres_url,
    redis_url,
)

NODE_FOLDER = ROOT / "tests/e2e/node"
BROWSER_FOLDER = ROOT / "tests/browser/node"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
NODE_VERSION_MIN = 20
BENCH_FOLDER = "tests/bench"
# Triton interprets all kernels of a process or none, so each of these has a process of its own.
INTERPRETED = ("tests/kernels/ops", "tests/kernels/engine")
INTERPRETING = {"TRITON_INTERPRET": "1"}
MODELS = ("tests/backend", "tests/bundle", "tests/kernels")
TESTS_FAILED = 1  # pytest's exit statuses
NONE_CHOSEN = 5
RERUN_MAX = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Tests behind one marker, and what they cannot do without."""

    marker: str
    shown_as: str
    environ: str  # the variable the tests read, "" where there is none
    bring_up: Callable[[], AbstractContextManager[str]]
    install: str


@contextlib.contextmanager
def node_packages():  # type: ignore[no-untyped-def]  # a plain context manager of one string
    """The locked npm packages beside the Node tests, installed once a lock."""
    yield installed_packages(NODE_FOLDER)


@contextlib.contextmanager
def browser_packages():  # type: ignore[no-untyped-def]  # a plain context manager of one string
    """Where Chromium is; what drives it is installed from its lock beside the browser tests."""
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        raise ServiceMissing("no chromium")
    installed_packages(BROWSER_FOLDER)
    yield found


def installed_packages(folder: Path) -> str:
    """`folder` with the npm packages of its lock. Raises ServiceMissing."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise ServiceMissing("no node or no npm")
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.lstrip("v").split(".")[0]) < NODE_VERSION_MIN:
        raise ServiceMissing(f"node {said.strip()} is older than {NODE_VERSION_MIN}")
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    stamp = folder / "node_modules/.lock-sha256"
    if not stamp.exists() or stamp.read_text() != lock:
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        if subprocess.run(command, cwd=folder, check=False).returncode != 0:
            raise ServiceMissing("npm ci failed (see above)")
        stamp.write_text(lock)
    return str(folder)


@contextlib.contextmanager
def nginx_binary():  # type: ignore[no-untyped-def]  # a plain context manager of one string
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ServiceMissing("no nginx")
    yield found


@contextlib.contextmanager
def cxx_compiler():  # type: ignore[no-untyped-def]  # a plain context manager of one string
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if found is None:
        raise ServiceMissing("no c++, g++ or clang++")
    yield found


GROUPS = (
    Group(
        "postgres",
        "PostgreSQL",
        POSTGRES_ENV,
        postgres_url,
        "apt-get install -y postgresql  (macOS: brew install postgresql)",
    ),
    Group(
        "redis",
        "Redis",
        REDIS_ENV,
        redis_url,
        "apt-get install -y redis-server  (macOS: brew install redis)",
    ),
    Group(
        "node",
        "Node.js with the openai package",
        "",
        node_packages,
        "apt-get install -y nodejs npm  (macOS: brew install node; 20 or later)",
    ),
    Group(
        "browser",
        "Chromium, driven from Node.js",
        "",
        browser_packages,
        "apt-get install -y chromium nodejs npm  (macOS: brew install chromium node)",
    ),
    Group(
        "nginx",
        "nginx",
        "",
        nginx_binary,
        "apt-get install -y nginx-light  (macOS: brew install nginx)",
    ),
    Group(
        "compiler",
        "C++ compiler",
        "",
        cxx_compiler,
        "apt-get install -y g++  (macOS: xcode-select --install)",
    ),
)


def bring_up(stack: contextlib.ExitStack) -> dict[str, ServiceMissing]:
    """Start what each group needs and put its address into the environment."""
    missing: dict[str, ServiceMissing] = {}
    for group in GROUPS:
        try:
            address = stack.enter_context(group.bring_up())
        except ServiceMissing as error:
            missing[group.marker] = error
            continue
        if group.environ:
            os.environ[group.environ] = address
        print(f"{group.shown_as}: {address.replace(str(ROOT), '.')}", flush=True)
    return missing


def report(missing: dict[str, ServiceMissing], *, is_ci: bool) -> None:
    for group in GROUPS:
        if group.marker in missing:
            word = "FAILED" if is_ci else "not run"
            print(f"{word}: tests that need {group.shown_as}: {missing[group.marker]}")
            print(f"         to run them: {group.install}")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of pytest."""

    arguments: tuple[str, ...]
    environ: dict[str, str]  # besides ours


def paths_of(arguments: list[str]) -> list[str]:
    return [
        each for each in arguments if (ROOT / each.split("::")[0]).is_relative_to(ROOT / "tests")
    ]


def processes(arguments: list[str], left_out: tuple[str, ...] = ()) -> list[Process]:
    """What runs one after the other: all tests of `arguments` but those of folders `left_out`."""
    paths = paths_of(arguments)
    options = [each for each in arguments if each not in paths]
    others = [each for each in paths if not each.startswith(INTERPRETED)]
    found: list[Process] = []
    if others or not paths:
        ignored = [f"--ignore={each}" for each in left_out]
        found.append(Process((*others, *options, *ignored), {}))
    for folder in INTERPRETED:
        own = [each for each in paths if each.startswith(folder)]
        if not paths or any((ROOT / folder).is_relative_to(ROOT / each) for each in others):
            own = [folder]
        if own and not folder.startswith(left_out or ("/",)):
            found.append(Process((*own, *options), INTERPRETING))
    return found


def lanes(arguments: list[str]) -> list[list[Process]]:
    """Processes side by side: the models' tests compute, those of the gateway mostly wait."""
    if (os.cpu_count() or 1) < 2 or paths_of(arguments):
        return [processes(arguments)]
    return [processes(arguments, left_out=MODELS), processes([*MODELS, *arguments])]


def run(process: Process, command: list[str], cache: Path, shows: bool) -> int:
    """Its status; the output at once, or whole at its end so that two do not mix."""
    told = None if shows else subprocess.PIPE
    done = subprocess.run(
        [*command, "-o", f"cache_dir={cache}", *process.arguments],
        check=False, stdout=told, stderr=subprocess.STDOUT if told else None, text=True,
        env={**os.environ, **process.environ},
    )  # fmt: skip
    if done.stdout:
        print(f"\n== {' '.join(process.arguments)}", done.stdout, sep="\n", flush=True)
    return done.returncode


def run_all(found: list[list[Process]], command: list[str]) -> int:
    """The worst status of all, once those that failed ran again by themselves."""
    caches = {
        id(each): ROOT / f".pytest_cache/{lane}-{idx}"
        for lane, several in enumerate(found)
        for idx, each in enumerate(several)
    }

    def in_turn(several: list[Process]) -> list[tuple[Process, int]]:
        shows = several is found[0]
        return [(each, run(each, command, caches[id(each)], shows)) for each in several]

    with ThreadPoolExecutor(len(found)) as pool:
        done = [each for lane in pool.map(in_turn, found) for each in lane]
    return worst([
        run_alone(process, command, caches[id(process)]) if status == TESTS_FAILED else status
        for process, status in done
    ])  # fmt: skip


def worst(statuses: list[int]) -> int:
    """A process for which no test was chosen is good beside one that had some."""
    bad = [status for status in statuses if status not in (0, NONE_CHOSEN)]
    return bad[0] if bad else min(statuses)


def run_alone(process: Process, command: list[str], cache: Path) -> int:
    """Run a few failed tests once more, by themselves, and say so loudly.

    Tests of running servers have deadlines, and on a shared machine another program can take both
    cores for seconds. A test that fails alone as well has failed; one that passes alone is named,
    so that its deadline can be mended. Many failures are never an accident.
    """
    again = [
        *command, "-o", f"cache_dir={cache}", *process.arguments,
        "--last-failed", "--last-failed-no-failures=none", "-p", "no:randomly",
    ]  # fmt: skip
    environ = {**os.environ, **process.environ}
    listed = subprocess.run(
        [*again, "--collect-only"], check=False, capture_output=True, text=True, env=environ
    ).stdout
    failed = [line for line in listed.splitlines() if "::" in line]
    if not 0 < len(failed) <= RERUN_MAX:
        return TESTS_FAILED
    print(f"FAILED ONCE, run again alone: {len(failed)} tests", *failed, sep="\n  ", flush=True)
    return subprocess.run(again, check=False, env=environ).returncode


def main(arguments: list[str]) -> int:
    is_ci = os.environ.get("CI", "").lower() in ("1", "true")
    started_s = time.monotonic()
    os.chdir(ROOT)
    with contextlib.ExitStack() as stack:
        missing = bring_up(stack)
        command = [sys.executable, "-m", "pytest", f"--ignore={BENCH_FOLDER}"]
        if missing:
            command += ["-m", " and ".join(f"not {marker}" for marker in missing)]
        status = run_all(lanes(arguments), command)
    print(f"all tests took {time.monotonic() - started_s:.0f} s")
    report(missing, is_ci=is_ci)
    if is_ci and missing:
        return status or 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
