"""One line of a batch file: is it a request that this gateway can take, and how large is it?"""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import blake2b

import msgspec

from gateway.batch.line_splitter import Line
from gateway.policy.facts import prompt_tokens
from gateway.wire.pieces import Surface
from gateway.wire.rawjson import WireFormatError, parse_members
from gateway.wire.requests import FieldError, parse_request

CUSTOM_ID_CHARS_MAX = 512
PROBLEMS_MAX = 20  # told of one file; then it is not read any further
URLS: dict[str, Surface] = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/embeddings": Surface.EMBEDDINGS,
    "/v1/messages": Surface.MESSAGES,
}
URL_OF = {surface: url for url, surface in URLS.items()}
_STRING = msgspec.json.Decoder(str)
_CUSTOM_ID = re.compile(r"[^\x00-\x1f\x7f]+")


class LineProblem(msgspec.Struct, frozen=True, kw_only=True):
    """As OpenAI's batch object lists them under `errors`."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class LineRefused(ValueError):
    def __init__(self, problem: LineProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class CheckedLine(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a line beside its place. `max_tokens` 0: the line does not say."""

    number: int
    offset_bytes: int
    num_bytes: int
    custom_id: str
    model: str
    prompt_tokens: int
    max_tokens: int
    num_choices: int = 1
    service_tier: str = ""


class LineChecker:
    """Checks the lines of one file in order; all must be for one endpoint, no custom_id twice."""

    def __init__(self) -> None:
        self.surface: Surface | None = None
        self._seen: set[bytes] = set()

    def check(self, line: Line) -> CheckedLine:
        """A line of the OpenAI form. Raises LineRefused."""
        number = line.number
        try:
            members = parse_members(line.data)
        except WireFormatError as error:
            raise refused("invalid_json_line", f"not a JSON object: {error}", number) from None
        custom_id = self._custom_id(members.raw("custom_id"), number)
        method = members.raw("method")
        if method != b'"POST"':
            shown = "missing" if method is None else method[:40].decode(errors="replace")
            raise refused("invalid_method", f"method is {shown}; use POST", number, "method")
        surface = self._surface(members.raw("url"), number)
        body = members.raw("body")
        if body is None:
            raise refused("missing_required_parameter", "body is missing", number, "body")
        return self._checked(line, custom_id, surface, body)

    def _custom_id(self, raw: bytes | None, number: int) -> str:
        try:
            text = _STRING.decode(raw) if raw is not None else ""
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = ""
        if not text or len(text) > CUSTOM_ID_CHARS_MAX or not _CUSTOM_ID.fullmatch(text):
            raise refused(
                "invalid_custom_id",
                f"custom_id must be a string of 1 to {CUSTOM_ID_CHARS_MAX} printable characters",
                number,
                "custom_id",
            )
        digest = blake2b(text.encode(), digest_size=16).digest()
        if digest in self._seen:
            raise refused(
                "duplicate_custom_id",
                f"custom_id {text[:80]!r} is used by a line before it; each must be its own",
                number,
                "custom_id",
            )
        self._seen.add(digest)
        return text

    def _surface(self, raw: bytes | None, number: int) -> Surface:
        try:
            url = _STRING.decode(raw) if raw is not None else ""
        except msgspec.MsgspecError:
            url = ""
        surface = URLS.get(url)
        if surface is None:
            raise refused(
                "invalid_url", f"url is {url[:80]!r}; use one of {', '.join(URLS)}", number, "url"
            )
        if self.surface is not None and surface is not self.surface:
            raise refused(
                "mismatched_url",
                f"url is {url}, and the lines before it have {URL_OF[self.surface]}; "
                "put them into files of their own",
                number,
                "url",
            )
        self.surface = surface
        return surface

    def _checked(self, line: Line, custom_id: str, surface: Surface, body: bytes) -> CheckedLine:
        number = line.number
        try:
            parsed = parse_request(surface, body)
        except FieldError as error:
            raise refused("invalid_request", str(error), number, f"body.{error.param}") from None
        except WireFormatError as error:
            raise refused("invalid_request", f"the body: {error}", number, "body") from None
        if parsed.stream:
            raise refused(
                "invalid_request", "a batch has no streams; remove stream", number, "body.stream"
            )
        return CheckedLine(
            number=number,
            offset_bytes=line.offset_bytes,
            num_bytes=len(line.data),
            custom_id=custom_id,
            model=parsed.model,
            prompt_tokens=prompt_tokens(parsed),
            max_tokens=parsed.max_tokens or 0,
            num_choices=parsed.num_choices,
            service_tier=parsed.service_tier,
        )


def refused(code: str, message: str, number: int | None, param: str | None = None) -> LineRefused:
    return LineRefused(LineProblem(code=code, message=message, line=number, param=param))


def problems_text(problems: Collection[LineProblem]) -> str:
    """All of them on one line each, for an error's message."""
    told = [
        f"line {each.line}: {each.message}" if each.line is not None else each.message
        for each in problems
    ]
    if len(told) >= PROBLEMS_MAX:
        told.append("the rest was not looked at")
    return "; ".join(told)
