"""nginx as many put it in front of a gateway: keep-alive to it, paths passed on as they came."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.gateway_process import free_port

START_S_MAX = 20.0

CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
  log_format passed '$status $upstream_addr $request_uri';
  access_log {folder}/access.log passed;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  underscores_in_headers off;
  # One connection, used again and again: what is left on it meets the next request.
  upstream gateway {{ server 127.0.0.1:{gateway_port}; keepalive 1; }}
  server {{
    listen 127.0.0.1:{port};
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host localhost;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_request_buffering off;
    location / {{ proxy_pass http://gateway; }}
    location ^~ /v1/requests/ {{ return 403; }}
    location ^~ /metrics {{ return 403; }}
    location ^~ /status.json {{ return 403; }}
    location = / {{ return 403; }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class NginxFront:
    port: int
    folder: Path

    def passed_on(self) -> list[str]:
        """Targets of the requests that went to the gateway, by nginx's own log."""
        lines = (self.folder / "access.log").read_text(errors="replace").splitlines()
        parts = [line.split(" ", 2) for line in lines]
        return [target for _, address, target in parts if address != "-"]


@contextmanager
def nginx_front(gateway_port: int, folder: Path) -> Iterator[NginxFront]:
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    assert binary is not None, "nginx is not installed; `make test` says how"

    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    path = folder / "nginx.conf"
    path.write_text(CONFIG.format(folder=folder, gateway_port=gateway_port, port=port))
    process = subprocess.Popen(
        [binary, "-p", str(folder), "-c", str(path), "-e", str(folder / "error.log")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_ready(port, process, folder)
        yield NginxFront(port, folder)
    finally:
        process.terminate()
        process.wait(10)


def _wait_ready(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline_s:
        assert process.poll() is None, (folder / "error.log").read_text()
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("nginx did not start in time")
