"""A Redis of the test's own, to be stopped, killed and started again at will."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.gateway_process import free_port

START_S_MAX = 20.0


class OwnRedis:
    """Without persistence: what it held is gone with it."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("redis-server")
        assert found is not None, "install redis-server to run the tests marked redis"
        self._program = found
        self._folder = folder
        self.port = free_port()
        self.process = self._begun()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def _begun(self) -> subprocess.Popen[bytes]:
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", str(self._folder)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline_s:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return process
            time.sleep(0.02)
        process.kill()
        raise AssertionError("redis-server did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        """Again, on the same port, after `kill`."""
        self.process = self._begun()

    def freeze(self) -> None:
        """It accepts connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def own_redis(folder: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(folder)
    try:
        yield server
    finally:
        server.kill()
