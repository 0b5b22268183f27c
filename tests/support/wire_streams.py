"""Golden streams, and reading and writing them through the gateway's own codecs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.readers import SseStreamReader, stream_reader
from gateway.wire.sse import SseDecoder
from gateway.wire.writers import stream_writer

GOLDEN = Path(__file__).parents[1] / "golden" / "sse"


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.sse").read_bytes()


def golden_names() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.sse"))


def surface_of(name: str) -> Surface:
    return Surface(name.split("_")[0])


def cut(stream: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """The stream in chunks of these sizes, the rest as the last one."""
    start = 0
    for size in sizes:
        yield stream[start : start + size]
        start += size
    yield stream[start:]


def read(surface: Surface, *chunks: bytes, reader: SseStreamReader | None = None) -> list[Piece]:
    """All pieces of a stream that arrives in these chunks and is then closed."""
    reader = reader if reader is not None else stream_reader(surface)
    pieces = [piece for chunk in chunks for piece in reader.feed(chunk)]
    return pieces + reader.close()


def relay(
    surface: Surface,
    *chunks: bytes,
    include_usage: bool = True,
    extra: dict[str, object] | None = None,
) -> bytes:
    """What a client of the same surface receives."""
    writer = stream_writer(surface, surface, include_usage=include_usage)
    out: list[bytes] = []
    for piece in read(surface, *chunks):
        if piece.kind is PieceKind.ERROR:
            assert piece.error is not None
            out.append(writer.error(piece.error, "req_1"))
        else:
            out.append(writer.write(piece))
    out.append(writer.finish(extra))
    return b"".join(out)


def payloads(stream: bytes) -> list[Any]:
    """The data of every event, decoded; the end mark as the string it is."""
    return [
        event.data.decode() if event.data == b"[DONE]" else msgspec.json.decode(event.data)
        for event in SseDecoder().feed(stream)
    ]


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chat frame as an event."""
    frame = {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}],
        **more,
    }
    return b"data: " + msgspec.json.encode(frame) + b"\n\n"


DONE = b"data: [DONE]\n\n"
ROLE = chunk({"role": "assistant", "content": ""})
