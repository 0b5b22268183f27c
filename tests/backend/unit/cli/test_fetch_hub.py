"""A hub's repository: what is taken, what is refused, and a download that goes on."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from backend.cli import fetch_hub
from backend.cli.fetch_hub import Hub
from backend.cli.model_store import ModelStore
from backend.errors import SetupError, UnsafeFormat

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/Tiny-1M"
WEIGHTS = bytes(range(256)) * 64


class LocalHub:
    """Speaks as a hub does: the API page, and files that can be asked for in part."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None  # of each answer, until it is None
        self.status = 200
        self.tampered: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                hub._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _page(self) -> bytes:
        siblings: list[dict[str, Any]] = []
        for name, data in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data)}
            if name.endswith((".safetensors", ".gguf")):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 1}
            else:
                blob = b"blob %d\0" % len(data) + data
                entry["blobId"] = hashlib.sha1(blob).hexdigest()
            siblings.append(entry)
        page = {"sha": COMMIT, "siblings": siblings, "cardData": {"license": "apache-2.0"}}
        return json.dumps(page).encode()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("range", "")
        self.asked.append((handler.path, wanted))
        if self.status != 200:
            handler.send_error(self.status)
            return
        if handler.path.startswith("/api/"):
            data, start = self._page(), 0
        else:
            name = handler.path.rpartition("/")[2]
            data = self.files[name]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if name in self.tampered:
                data = data[:-1] + bytes([data[-1] ^ 1])
        handler.send_response(206 if start else 200)
        handler.send_header("content-length", str(len(data) - start))
        handler.end_headers()
        part = data[start:]
        is_file = not handler.path.startswith("/api/")
        handler.wfile.write(part[: self.cut_after] if is_file else part)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setattr(fetch_hub, "PAUSE_S", 0.0)
    made = LocalHub()
    made.files = {
        "config.json": b"{}",
        "tokenizer.json": b'{"model": {}}',
        "model.safetensors": WEIGHTS,
        "README.md": b"# hello",
        "modeling_tiny.py": b"raise SystemExit",
        "onnx/model.onnx": b"no",
        "original/model.safetensors": b"no",
        "pytorch_model.bin": b"no",
    }
    yield made
    made.close()


@pytest.fixture
def hub(local: LocalHub) -> Iterator[Hub]:
    made = Hub(local.url)
    yield made
    made.close()


def test_only_weights_and_text_files_of_the_top_level_are_taken(
    local: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    store = ModelStore(tmp_path)
    model = hub.look_up(REPO)
    seen: list[int] = []

    stored = hub.download(model, store, seen.append)

    assert model.licence == "apache-2.0"
    assert sorted(path.name for path in stored.folder.iterdir()) == [
        *("config.json", "looprouter.json", "model.safetensors", "tokenizer.json"),
    ]
    assert (stored.path / "model.safetensors").read_bytes() == WEIGHTS
    assert stored.record.served_name == "tiny-1m"
    assert store.choose(REPO).path == stored.path
    assert seen[-1] == model.size_bytes
    assert {path for path, _ in local.asked[1:]} == {
        f"/{REPO}/resolve/{COMMIT}/{name}"
        for name in ("config.json", "tokenizer.json", "model.safetensors")
    }


def test_cut_download_goes_on_where_it_ended(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    local.cut_after = 5_000
    model = hub.look_up(REPO)

    with pytest.raises(SetupError, match="the same command goes on"):
        hub.download(model, store, lambda _: None)
    assert store.all() == []
    local.cut_after = None
    local.asked.clear()
    stored = hub.download(hub.look_up(REPO), store, lambda _: None)

    assert (stored.path / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [wanted for path, wanted in local.asked if path.endswith(".safetensors")]
    assert len(ranges) == 1
    assert int(ranges[0].removeprefix("bytes=").rstrip("-")) >= 5_000


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_file_with_other_bytes_than_announced_is_thrown_away(
    local: LocalHub, hub: Hub, tmp_path: Path, name: str
) -> None:
    store = ModelStore(tmp_path)
    local.tampered = {name}

    with pytest.raises(SetupError, match=f"{name} .* other bytes"):
        hub.download(hub.look_up(REPO), store, lambda _: None)

    assert store.all() == []
    assert not list(tmp_path.rglob(f"{name}*"))


def test_repository_of_pickles_is_refused(local: LocalHub, hub: Hub) -> None:
    local.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}

    with pytest.raises(UnsafeFormat, match="pickle"):
        hub.look_up(REPO)


def test_gguf_is_chosen_by_its_file_name(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    local.files = {"Tiny.Q8_0.gguf": b"GGUFx", "Tiny.Q4_K.gguf": b"GGUFy", "a/b.gguf": b"no"}

    with pytest.raises(SetupError, match=r"--file: Tiny\.Q4_K\.gguf, Tiny\.Q8_0\.gguf"):
        hub.look_up(REPO)
    with pytest.raises(SetupError, match=r"no file \.\./x"):
        hub.look_up(REPO, gguf="../x")
    stored = hub.download(hub.look_up(REPO, gguf="Tiny.Q8_0.gguf"), ModelStore(tmp_path), print)

    assert stored.path.name == "Tiny.Q8_0.gguf"
    assert stored.record.served_name == "tiny.q8_0"


@pytest.mark.parametrize(
    ("status", "said"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "has no"), (502, "502")]
)
def test_refusal_of_the_hub_is_one_clear_line(
    local: LocalHub, hub: Hub, status: int, said: str
) -> None:
    local.status = status

    with pytest.raises(SetupError, match=said):
        hub.look_up(REPO)


def test_hub_that_cannot_be_reached_says_what_else_can_be_done() -> None:
    hub = Hub("http://127.0.0.1:9")

    with pytest.raises(SetupError, match=r"HF_ENDPOINT .* \.gguf"):
        hub.look_up(REPO)
    hub.close()
