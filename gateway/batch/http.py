"""What the handlers of the batch lane share: ids, query strings, answers."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

import msgspec

from gateway.api.exchange import Exchange
from gateway.errors import InvalidRequest

ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
JSON = [(b"content-type", b"application/json")]


class Query:
    """A query string whose parameters are checked; unknown ones are let be, as elsewhere."""

    def __init__(self, text: str) -> None:
        self._pairs = dict(parse_qsl(text, max_num_fields=32))

    def text(self, name: str, choices: tuple[str, ...] = ()) -> str:
        value = self._pairs.get(name, "")
        if value and choices and value not in choices:
            raise InvalidRequest(
                f"{name} is {value[:40]!r}; use one of {', '.join(choices)}", param=name
            )
        return value

    def identifier(self, name: str) -> str:
        value = self._pairs.get(name, "")
        if value and not ID.fullmatch(value):
            raise InvalidRequest(f"{name} is no id", param=name)
        return value

    def whole(self, name: str, default: int, most: int) -> int:
        value = self._pairs.get(name)
        if value is None:
            return default
        if not re.fullmatch(r"\d{1,6}", value) or not 1 <= int(value) <= most:
            raise InvalidRequest(f"{name} is {value[:40]!r}; use 1 to {most}", param=name)
        return int(value)


async def answer_json(exchange: Exchange, body: object) -> None:
    await exchange.answer(200, JSON, msgspec.json.encode(body))
