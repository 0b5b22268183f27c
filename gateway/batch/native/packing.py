"""Lines into a provider's input file, within its limits; and files around which a form is put."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable

import msgspec

from gateway.batch.native.api import NativeError, NativeLine, RefusedLine
from gateway.batch.native.bodies import line_body
from gateway.batch.native.spool import Spool
from gateway.catalogue.native_batch import NativeBatchFacts
from gateway.core import Endpoint
from gateway.errors import FailureClass
from gateway.providers.transport import Content
from gateway.wire.pieces import Surface
from gateway.wire.translate import CannotTranslate

CUSTOM_ID_CHARS_MAX = 64  # Anthropic's and Together's limit
OVERHEAD_BYTES = 4_096  # of the form around the lines
_NATIVE_ID = re.compile(r"[A-Za-z0-9_-]{1,52}")

# (custom_id, the endpoint's surface, body) → the bytes of one line.
Encode = Callable[[str, Surface, bytes], bytes]


class Packed(msgspec.Struct, kw_only=True):
    """What stands in the spool."""

    surface: Surface | None = None
    num_lines: int = 0
    refused: tuple[RefusedLine, ...] = ()
    dropped: tuple[str, ...] = ()


async def pack(
    endpoint: Endpoint,
    facts: NativeBatchFacts,
    native_id: str,
    lines: AsyncIterable[NativeLine],
    spool: Spool,
    encode: Encode,
) -> Packed:
    """
    Write every line that the endpoint can take into the spool.

    Raises NativeError: too many or too large (with how many fit), of a surface that the provider
    does not batch, of two surfaces, or none that can be carried. ValueError for ids that are not
    ours.
    """
    if not _NATIVE_ID.fullmatch(native_id):
        raise ValueError(f"{native_id!r} is no id for a provider's batch")
    packed = Packed()
    refused: list[RefusedLine] = []
    dropped: dict[str, None] = {}
    async for line in lines:
        _check_id(native_id, line.custom_id)
        try:
            made = line_body(endpoint, line.parsed, line.max_tokens)
        except CannotTranslate as error:
            refused.append(
                RefusedLine(custom_id=line.custom_id, message=error.message, param=error.param)
            )
            continue
        packed.surface = _same_surface(facts, packed.surface, made.surface)
        data = encode(line.custom_id, made.surface, made.body)
        is_full = spool.num_bytes + len(data) + OVERHEAD_BYTES > facts.bytes_max
        if is_full or packed.num_lines >= facts.lines_max:
            raise _too_large(facts, packed.num_lines + len(refused))
        await spool.write(data)
        packed.num_lines += 1
        dropped.update(dict.fromkeys(made.dropped))
    packed.refused, packed.dropped = tuple(refused), tuple(dropped)
    if not packed.num_lines:
        raise NativeError(
            FailureClass.UNTRANSLATABLE,
            f"none of the lines can be carried to {endpoint.id}",
            refused=packed.refused,
        )
    return packed


def _check_id(native_id: str, custom_id: str) -> None:
    prefix, _, number = custom_id.rpartition(":")
    if prefix != native_id or not number.isdecimal() or len(custom_id) > CUSTOM_ID_CHARS_MAX:
        raise ValueError(f"the line {custom_id!r} is not named {native_id}:<number>")


def _same_surface(facts: NativeBatchFacts, seen: Surface | None, surface: Surface) -> Surface:
    if surface.value not in facts.surfaces:
        raise NativeError(
            FailureClass.UNTRANSLATABLE,
            f"{facts.name}'s batch API takes {', '.join(sorted(facts.surfaces))}, "
            f"not {surface.value}",
        )
    if seen is not None and seen is not surface:
        raise NativeError(
            FailureClass.UNTRANSLATABLE,
            f"a batch holds requests of one API, not {seen.value} and {surface.value} together",
        )
    return surface


def _too_large(facts: NativeBatchFacts, num_lines_fit: int) -> NativeError:
    return NativeError(
        FailureClass.CONTEXT_TOO_LONG,
        f"{facts.name}'s batch API takes {facts.lines_max:,} lines and "
        f"{facts.bytes_max // 1_000_000} MB at once; the first {num_lines_fit:,} lines fit",
        num_lines_fit=num_lines_fit,
    )


class Framed:
    """Content with bytes before and behind it."""

    def __init__(self, head: bytes, content: Content, tail: bytes) -> None:
        self.num_bytes = len(head) + content.num_bytes + len(tail)
        self._head, self._content, self._tail = head, content, tail

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._head
        async for part in self._content:
            yield part
        yield self._tail


def multipart(
    filename: str, content: Content, fields: dict[str, str]
) -> tuple[Framed, dict[bytes, bytes]]:
    """A form (RFC 7578) with the fields first and then the file, and its content type."""
    boundary = secrets.token_hex(24)
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    parts.append(
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{filename}"\r\n'
        "content-type: application/jsonl\r\n\r\n"
    )
    framed = Framed("".join(parts).encode(), content, f"\r\n--{boundary}--\r\n".encode())
    return framed, {b"content-type": f"multipart/form-data; boundary={boundary}".encode()}
