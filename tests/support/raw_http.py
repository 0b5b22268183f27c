"""Bytes to a server as written, and its answers taken apart; no library tidies anything up."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field

FIRST_WAIT_S = 10.0  # for what must come
SILENCE_S = 0.15  # after an answer: nothing more is coming


@dataclass(frozen=True, slots=True)
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class RawTalk:
    """All that came back on one connection."""

    answers: list[RawAnswer] = field(default_factory=list)
    is_closed: bool = False  # by the server
    rest: bytes = b""  # what is no whole answer

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    @property
    def everything(self) -> bytes:
        return b"".join(answer.body for answer in self.answers) + self.rest


class RawConnection:
    """One TCP connection to 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=FIRST_WAIT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.is_closed = False

    def send(self, data: bytes) -> None:
        """A server that has heard enough may have closed already."""
        with contextlib.suppress(ConnectionError):
            self._sock.sendall(data)

    def read(
        self, *, first_s: float = FIRST_WAIT_S, silence_s: float = SILENCE_S, num: int = 1
    ) -> RawTalk:
        """Answers until `num` and a silence, or the end; `first_s` without any is the end too."""
        talk = RawTalk()
        deadline_s = time.monotonic() + first_s
        while not self.is_closed:
            self._take_answers(talk)
            if len(talk.answers) >= num:
                deadline_s = min(deadline_s, time.monotonic() + silence_s)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            self._sock.settimeout(left_s)
            try:
                data = self._sock.recv(65536)
            except TimeoutError:
                break
            except ConnectionError:
                self.is_closed = True
                break
            if not data:
                self.is_closed = True
                break
            self._buffer += data
        self._take_answers(talk)
        talk.is_closed, talk.rest = self.is_closed, self._buffer
        return talk

    def _take_answers(self, talk: RawTalk) -> None:
        while (taken := take_answer(self._buffer)) is not None:
            answer, self._buffer = taken
            talk.answers.append(answer)

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take_answer(data: bytes) -> tuple[RawAnswer, bytes] | None:
    """(first whole answer, what follows it), or None where there is none yet."""
    head, mark, rest = data.partition(b"\r\n\r\n")
    if not mark:
        return None
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    if status in (204, 304) or status < 200:
        return RawAnswer(status, headers, b""), rest
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while True:
            size_text, mark, after = rest.partition(b"\r\n")
            if not mark:
                return None
            size = int(size_text.split(b";")[0], 16)
            if len(after) < size + 2:
                return None
            body, rest = body + after[:size], after[size + 2 :]
            if size == 0:
                return RawAnswer(status, headers, body), rest
    length = int(headers.get("content-length", "0"))
    if len(rest) < length:
        return None
    return RawAnswer(status, headers, rest[:length]), rest[length:]
