"""A client over a bare socket, which can leave or stop reading whenever a test wants."""

from __future__ import annotations

import json
import socket
import struct
import time

from tests.support.hostile_provider import WAIT_S
from tests.support.hostile_world import HostileWorld, Talk


class RawClient:
    """A client as a socket: it can leave in any way, or not read at all."""

    def __init__(self, world: HostileWorld, talk: Talk, model: str, *, stream: bool) -> None:
        body = json.dumps(talk.request(model, stream=stream)).encode()
        self.socket = socket.create_connection(("127.0.0.1", world.gateway.port), WAIT_S)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        self.socket.sendall(
            f"POST {talk.path} HTTP/1.1\r\nhost: localhost\r\n"
            f"authorization: Bearer {world.gateway.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self.got = b""

    def read_until(self, said: str) -> None:
        while said.encode() not in self.got:
            part = self.socket.recv(65_536)
            assert part, f"the gateway closed the connection after {self.got[-500:]!r}"
            self.got += part

    @property
    def request_id(self) -> str:
        head = self.got.split(b"\r\n\r\n")[0].decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:])
        return headers["x-looprouter-request-id"]

    def leave(self, how: str) -> float:
        """→ when."""
        if how == "resets":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left_at_s = time.monotonic()
        self.socket.close()
        return left_at_s
