"""`python -m gateway.simulator`: serve simulated providers until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

import msgspec

from gateway.errors import SetupError
from gateway.simulator.demo import demo_profiles
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.serve import loop_factory, start_simulated


def _profile(named: str) -> ProviderProfile:
    """A demo profile by its name, or one from a JSON file."""
    known = {each.name: each for each in demo_profiles()}
    found = known.get(named) or known.get(f"simulated-{named}")
    if found is not None:
        return found
    path = Path(named)
    if not path.is_file():
        raise SetupError(f"no profile '{named}'; use a JSON file or one of {', '.join(known)}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProviderProfile)
    except msgspec.MsgspecError as error:
        raise SetupError(f"{path}: {error}") from error


async def _serve(
    profiles: list[ProviderProfile], ports: list[int], *, with_parent: bool = False
) -> None:
    named = dict(zip((each.name for each in profiles), ports, strict=True))
    running = await start_simulated(profiles, named)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    if with_parent:
        # The parent holds the other end and never writes: end of file means that it is gone.
        loop.add_reader(sys.stdin.fileno(), stopped.set)
    for each in running:
        ready = {"name": each.provider.profile.name, "port": each.port, "base_url": each.base_url}
        print(json.dumps(ready), flush=True)
    await stopped.wait()
    for each in running:
        await each.aclose()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gateway.simulator",
        description="Simulated LLM providers on 127.0.0.1. One line of JSON tells when each is "
        "ready. GET /sim/invoice, /sim/stats, /sim/profile; POST /sim/control.",
    )
    parser.add_argument(
        "--profile",
        action="append",
        required=True,
        help="fast, cheap, flaky, or a JSON file with a profile; may be repeated",
    )
    parser.add_argument(
        "--port", action="append", type=int, default=[], help="one a profile; 0 or absent: free"
    )
    parser.add_argument(
        "--with-parent", action="store_true", help="end when standard input is closed"
    )
    options = parser.parse_args(arguments)
    if len(options.port) > len(options.profile):
        parser.error("more --port than --profile")
    ports = options.port + [0] * (len(options.profile) - len(options.port))
    try:
        profiles = [_profile(each) for each in options.profile]
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(profiles, ports, with_parent=options.with_parent))
    except SetupError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
