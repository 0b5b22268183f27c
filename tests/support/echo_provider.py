"""A provider that gives back all it is sent, key and prompt, in every place where it can fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Each is a provider of its own: the first part of the path says which.
MODES = (
    "status400", "status401", "status403", "status404", "status413", "status422", "status429",
    "status500", "status503", "error200", "html200", "nonsense200", "cut", "midstream", "header",
)  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        mode = self.path.split("/")[1]
        key = self.headers.get("authorization", "") or self.headers.get("x-api-key", "")
        echoed = f"no, {key}: {self.headers.as_string()} {body.decode('utf-8', 'replace')}"
        error = {"error": {"message": echoed, "type": "x", "param": key, "code": key}}
        if mode.startswith("status"):
            self._answer(int(mode.removeprefix("status")), "application/json", json.dumps(error))
        elif mode == "error200":
            self._answer(200, "application/json", json.dumps(error))
        elif mode == "html200":
            self._answer(200, "text/html", f"<html><title>{echoed}</title></html>")
        elif mode == "nonsense200":
            self._answer(200, "application/json", echoed)
        elif mode == "header":
            extra = {"x-request-id": key, "request-id": key, "openai-processing-ms": key}
            self._answer(200, "application/json", json.dumps(GOOD), extra)
        elif mode == "cut":
            self.wfile.write(f"HTTP/1.1 200 {key}\r\nX-Key: {key}\r\nX".encode())
            self.close_connection = True
        else:
            self._stream(error)

    def _answer(
        self, status: int, kind: str, text: str, extra: dict[str, str] | None = None
    ) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "content-type": kind,
            "content-length": len(body),
            **(extra or {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, error: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        chunk = {
            "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": {"content": "well"}, "finish_reason": None}],
        }  # fmt: skip
        for event in (chunk, error):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.close_connection = True


GOOD = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{
        "index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop",
    }],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}  # fmt: skip


@contextmanager
def echo_provider() -> Iterator[int]:
    """Its port on 127.0.0.1."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
