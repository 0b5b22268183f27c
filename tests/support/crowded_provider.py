"""An honest provider of one machine: answers at once share it, so each takes as long as all."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TICK_S = 0.02


class CrowdedProvider:
    """Whole chat answers. `alone_s`: what one takes while no other runs."""

    def __init__(self, alone_s: float) -> None:
        self.alone_s = alone_s
        self.port = 0
        self.num_answered: Counter[str] = Counter()  # by the text of the question
        self.num_begun: Counter[str] = Counter()
        self.most_at_once = 0
        self._num = 0
        self._lock = threading.Lock()

    @property
    def v1(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def work(self, text: str) -> None:
        """Back when this answer's share of the machine has added up to `alone_s`."""
        with self._lock:
            self._num += 1
            self.num_begun[text] += 1
            self.most_at_once = max(self.most_at_once, self._num)
        left_s, then_s = self.alone_s, time.monotonic()
        while left_s > 0.0:
            time.sleep(TICK_S)
            now_s = time.monotonic()
            left_s -= (now_s - then_s) / self._num
            then_s = now_s
        with self._lock:
            self._num -= 1

    def done(self, text: str) -> None:
        with self._lock:
            self.num_answered[text] += 1


def _handler(provider: CrowdedProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = asked["messages"][-1]["content"]
            provider.work(text)
            body = json.dumps(_answer(f"so: {text}")).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
            provider.done(text)

    return Handler


def _answer(text: str) -> dict[str, object]:
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17},
    }  # fmt: skip


@contextmanager
def crowded_provider(alone_s: float) -> Iterator[CrowdedProvider]:
    provider = CrowdedProvider(alone_s)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(provider))
    server.daemon_threads = True
    provider.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
