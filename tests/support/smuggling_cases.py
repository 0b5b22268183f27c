"""Raw requests whose framing, target or Host two parsers could read differently. Data, not logic.

Every case hides a second request (`HIDDEN`) where only a parser that frames wrongly would find it,
or asks in a form that only a lenient parser accepts. `KEY` is put in later: it is as long as a key,
so that lengths stay true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

REFUSED = "refused"  # one 4xx or 5xx at most, then the connection is closed; nothing is served
SERVED = "served"  # exactly one request, and it is served
STRANGER = "stranger"  # read as one request that carries no key: 401
NOWHERE = "nowhere"  # read as one request whose path or method leads nowhere: 404 or 405
ASTRAY = "astray"  # refused, or 404
EITHER = "either"  # refused, or served as exactly one request
NOT_JSON = "not json"  # read as one request whose body is refused
NOT_JSON_THEN = "not json, then"  # an empty body, and behind it an honest second request
PAIR = "pair"  # two honest requests, answered in order
PAIR_STRANGER = "pair, stranger last"
PAIR_REFUSED = "pair, refused last"

CRLF = b"\r\n"
BODY = b'{"model":"gpt","messages":[{"role":"user","content":"hi"}],"max_tokens":8}'
CHUNKED_BODY = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
KEY = b"K" * 60
AUTH = b"Authorization: Bearer " + KEY + CRLF
HOST_LINE = b"Host: localhost\r\n"
HIDDEN = b"GET /v1/models/smuggled HTTP/1.1\r\n" + HOST_LINE + AUTH + CRLF
PATH = b"/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class RawCase:
    name: str
    data: bytes
    verdict: str


def post(extra: bytes, body: bytes, *, line: bytes = b"", host: bytes = HOST_LINE) -> bytes:
    """A POST of chat whose headers end with `extra`, which says how long the body is."""
    line = line or b"POST " + PATH + b" HTTP/1.1"
    return line + CRLF + host + AUTH + b"Content-Type: application/json\r\n" + extra + CRLF + body


def get(path: bytes, extra: bytes = b"", *, auth: bytes = AUTH, host: bytes = HOST_LINE) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + host + auth + extra + CRLF


def length(value: bytes | int) -> bytes:
    text = b"%d" % value if isinstance(value, int) else value
    return b"Content-Length: " + text + CRLF


def coding(value: bytes) -> bytes:
    return b"Transfer-Encoding: " + value + CRLF


CHUNKED = coding(b"chunked")

# How "chunked" is written so that one parser sees it and another does not.
TE_LINES: dict[str, bytes] = {
    "plain": CHUNKED,
    "upper case": coding(b"CHUNKED"),
    "mixed name": b"tRANSFER-eNCODING: chunked\r\n",
    "two spaces": b"Transfer-Encoding:  chunked\r\n",
    "no space": b"Transfer-Encoding:chunked\r\n",
    "tab": b"Transfer-Encoding:\tchunked\r\n",
    "space behind": coding(b"chunked "),
    "tab behind": coding(b"chunked\t"),
    "space before colon": b"Transfer-Encoding : chunked\r\n",
    "tab before colon": b"Transfer-Encoding\t: chunked\r\n",
    "space before name": b" Transfer-Encoding: chunked\r\n",
    "x before": coding(b"xchunked"),
    "x behind": coding(b"chunkedx"),
    "quoted": coding(b'"chunked"'),
    "parameter": coding(b"chunked;q=1"),
    "identity": coding(b"identity"),
    "identity last": coding(b"chunked, identity"),
    "identity first": coding(b"identity, chunked"),
    "gzip first": coding(b"gzip, chunked"),
    "gzip": coding(b"gzip"),
    "cow": coding(b"cow"),
    "twice in one": coding(b"chunked, chunked"),
    "two lines": CHUNKED + CHUNKED,
    "two lines, first strange": coding(b"x") + CHUNKED,
    "two lines, last strange": CHUNKED + coding(b"x"),
    "empty": coding(b""),
    "comma": coding(b",chunked"),
    "vertical tab": coding(b"\x0bchunked"),
    "vertical tab behind": coding(b"chunked\x0b"),
    "form feed": coding(b"chunked\x0c"),
    "NUL behind": coding(b"chunked\x00"),
    "NUL in name": b"Transfer-Encoding\x00: chunked\r\n",
    "high byte": coding(b"\xe9chunked"),
    "folded": b"Transfer-Encoding:\r\n chunked\r\n",
    "folded by tab": b"Transfer-Encoding:\r\n\tchunked\r\n",
    "bare LF before": b"X-A: b\nTransfer-Encoding: chunked\r\n",
    "bare CR before": b"X-A: b\rTransfer-Encoding: chunked\r\n",
    "bare LF behind": b"Transfer-Encoding: chunked\n",
    "underscore": b"Transfer_Encoding: chunked\r\n",
    "en dash": b"Transfer\xe2\x80\x93Encoding: chunked\r\n",
    "behind a header": b"X-A: Transfer-Encoding: chunked\r\n",
}
# These are no transfer coding at all: the length alone holds, and the request is an honest one.
NOT_A_CODING = frozenset({"underscore", "en dash", "behind a header"})
# RFC 9112: these are chunked and nothing else, if there is no length beside them.
HONEST_CODING = frozenset(
    {"plain", "upper case", "mixed name", "two spaces", "no space", "tab", "space behind"}
)


def both_framings() -> Iterator[RawCase]:
    """A length and a coding together, in both orders: CL.TE and TE.CL."""
    for name, line in TE_LINES.items():
        is_plain = name in NOT_A_CODING
        # CL.TE: who believes the length stops behind HIDDEN, who believes the coding before it.
        inner = b"0\r\n\r\n" + HIDDEN
        verdict = REFUSED
        if is_plain and name != "en dash":
            # Framed by length, HIDDEN is part of a body that is no JSON.
            verdict = NOT_JSON
        yield RawCase(f"length, coding {name}", post(length(len(inner)) + line, inner), verdict)
        # TE.CL: who believes the length stops early, and what follows begins with HIDDEN.
        chunk = b"%x\r\n" % len(HIDDEN)
        outer = chunk + HIDDEN + b"\r\n0\r\n\r\n"
        if not is_plain:
            yield RawCase(f"coding {name}, length", post(line + length(len(chunk)), outer), REFUSED)


def codings_alone() -> Iterator[RawCase]:
    for name, line in TE_LINES.items():
        if name in NOT_A_CODING:
            continue
        honest = name in HONEST_CODING
        yield RawCase(
            f"coding alone, {name}", post(line, CHUNKED_BODY), SERVED if honest else REFUSED
        )


LENGTHS: dict[str, bytes] = {
    "plus": b"+%d", "minus": b"-%d", "hex": b"0x%x", "fraction": b"%d.0", "exponent": b"%de0",
    "underscore": b"%d_0", "twice in one": b"%d, %d", "two in one": b"%d, 5", "empty": b"",
    "word": b"many", "semicolon": b"%d;", "space in it": b"%d 0", "quoted": b'"%d"',
    "past 64 bits": b"18446744073709551%d", "past 128 bits": b"9" * 60, "NUL": b"%d\x00",
    "vertical tab": b"\x0b%d", "full width": "１２".encode(), "arabic": "١٢".encode(),
    "folded": b"\r\n %d", "CR": b"%d\r",
}  # fmt: skip


def lengths() -> Iterator[RawCase]:
    size = len(BODY)
    for name, pattern in LENGTHS.items():
        value = pattern
        if num := pattern.count(b"%"):
            value = pattern % ((size,) * num)
        yield RawCase(f"length {name}", post(length(value), BODY + HIDDEN), REFUSED)
    yield RawCase("length with zeros", post(length(b"000%d" % size), BODY), EITHER)
    yield RawCase("length with space behind", post(length(b"%d " % size), BODY), EITHER)
    yield RawCase("two equal lengths", post(length(size) + length(size), BODY), REFUSED)
    both = length(size) + length(size + len(HIDDEN))
    yield RawCase("two lengths, short first", post(both, BODY + HIDDEN), REFUSED)
    both = length(size + len(HIDDEN)) + length(size)
    yield RawCase("two lengths, long first", post(both, BODY + HIDDEN), REFUSED)
    spaced = b"Content-Length : %d\r\n" % size
    yield RawCase("length, space before colon", post(spaced, BODY), REFUSED)
    under = b"Content_Length: %d\r\n" % size
    yield RawCase("length with underscore", post(length(0) + under, HIDDEN), NOT_JSON_THEN)
    yield RawCase("no length at all", post(b"", b""), NOT_JSON)


CHUNKS: dict[str, bytes] = {
    "size plus": b"+%x\r\n%b\r\n0\r\n\r\n",
    "size minus": b"-%x\r\n%b\r\n0\r\n\r\n",
    "size 0x": b"0x%x\r\n%b\r\n0\r\n\r\n",
    "size underscore": b"%x_\r\n%b\r\n0\r\n\r\n",
    "size behind space": b" %x\r\n%b\r\n0\r\n\r\n",
    "size quoted": b'"%x"\r\n%b\r\n0\r\n\r\n',
    "size and comma": b"%x,\r\n%b\r\n0\r\n\r\n",
    "size ended by LF": b"%x\n%b\r\n0\r\n\r\n",
    "size ended by CR": b"%x\r%b\r\n0\r\n\r\n",
    "data ended by LF": b"%x\r\n%b\n0\r\n\r\n",
    "data ended by nothing": b"%x\r\n%b0\r\n\r\n",
    "data longer than said": b"%x\r\n%bxx\r\n0\r\n\r\n",
    "NUL in size": b"%x\x00\r\n%b\r\n0\r\n\r\n",
    "vertical tab in size": b"\x0b%x\r\n%b\r\n0\r\n\r\n",
}


def chunks() -> Iterator[RawCase]:
    size = len(BODY)
    for name, pattern in CHUNKS.items():
        yield RawCase(f"chunk {name}", post(CHUNKED, pattern % (size, BODY) + HIDDEN), REFUSED)
    huge = b"F" * 17 + b"\r\n" + BODY
    yield RawCase("chunk of 2^68", post(CHUNKED, huge + HIDDEN), REFUSED)
    wrap = b"1%016x\r\n%b\r\n0\r\n\r\n" % (size, BODY)
    yield RawCase("chunk that wraps 64 bits", post(CHUNKED, wrap + HIDDEN), REFUSED)
    ext = b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (size, BODY)
    yield RawCase("chunk with extension", post(CHUNKED, ext), EITHER)
    ext = b"%x;a=\n%b\r\n0\r\n\r\n" % (size, BODY)
    yield RawCase("chunk with LF in extension", post(CHUNKED, ext + HIDDEN), REFUSED)
    ext = b'%x;a="\r\n%b\r\n0\r\n\r\n' % (size, BODY)
    yield RawCase("chunk with open quote", post(CHUNKED, ext), EITHER)
    capital = b"%X\r\n%b\r\n0\r\n\r\n" % (size, BODY)
    yield RawCase("chunk size in capitals", post(CHUNKED, capital), SERVED)
    zeros = b"0000%x\r\n%b\r\n000\r\n\r\n" % (size, BODY)
    yield RawCase("chunk size with zeros", post(CHUNKED, zeros), SERVED)
    for name, line in (
        ("length", b"Content-Length: 500\r\n"), ("coding", b"Transfer-Encoding: gzip\r\n"),
        ("host", b"Host: evil.example\r\n"), ("anything", b"X-Trailer: 1\r\n"),
    ):  # fmt: skip
        body = b"%x\r\n%b\r\n0\r\n%b\r\n" % (size, BODY, line)
        yield RawCase(f"trailer with {name}", post(CHUNKED, body), EITHER)
    body = b"%x\r\n%b\r\n0\r\n%b\r\n" % (size, BODY, AUTH)
    bare = post(CHUNKED, body).replace(AUTH, b"", 1)
    yield RawCase("key in a trailer", bare, STRANGER)


LINES: dict[str, tuple[bytes, str]] = {
    "two spaces": (b"POST  /v1/chat/completions HTTP/1.1", EITHER),
    "tab": (b"POST\t/v1/chat/completions\tHTTP/1.1", REFUSED),
    "space behind": (b"POST /v1/chat/completions HTTP/1.1 ", EITHER),
    "space in path": (b"POST /v1/chat/completions x HTTP/1.1", REFUSED),
    "no version": (b"POST /v1/chat/completions", REFUSED),
    "version 0.9": (b"POST /v1/chat/completions HTTP/0.9", REFUSED),
    "version 1.2": (b"POST /v1/chat/completions HTTP/1.2", REFUSED),
    "version 2.0": (b"POST /v1/chat/completions HTTP/2.0", REFUSED),
    "version 1,1": (b"POST /v1/chat/completions HTTP/1,1", REFUSED),
    "version in small letters": (b"POST /v1/chat/completions http/1.1", REFUSED),
    "method in small letters": (b"post /v1/chat/completions HTTP/1.1", REFUSED),
    "method with NUL": (b"PO\x00ST /v1/chat/completions HTTP/1.1", REFUSED),
    "method unknown": (b"SPAM /v1/chat/completions HTTP/1.1", REFUSED),
    "no path": (b"POST HTTP/1.1", REFUSED),
    "path without slash": (b"POST v1/chat/completions HTTP/1.1", REFUSED),
    "asterisk": (b"POST * HTTP/1.1", ASTRAY),
    "authority": (b"CONNECT localhost HTTP/1.1", ASTRAY),
    "fragment": (b"POST /v1/chat/completions#x HTTP/1.1", EITHER),
    "NUL in path": (b"POST /v1/chat/completions\x00 HTTP/1.1", REFUSED),
    "CR in path": (b"POST /v1/chat/\rcompletions HTTP/1.1", REFUSED),
    "LF in path": (b"POST /v1/chat/\ncompletions HTTP/1.1", REFUSED),
    "high bytes in path": (b"POST /v1/chat/completions\xff HTTP/1.1", ASTRAY),
    "backslash": (b"POST \\v1\\chat\\completions HTTP/1.1", REFUSED),
    "backslash in path": (b"POST /v1\\chat/completions HTTP/1.1", ASTRAY),
    "absolute": (b"POST http://localhost/v1/chat/completions HTTP/1.1", EITHER),
    "absolute, another host": (b"POST http://evil.example/v1/chat/completions HTTP/1.1", EITHER),
    "absolute, another scheme": (b"POST gopher://localhost/v1/chat/completions HTTP/1.1", EITHER),
    "two slashes": (b"POST //localhost/v1/chat/completions HTTP/1.1", ASTRAY),
    "user in authority": (b"POST http://a:b@localhost/v1/chat/completions HTTP/1.1", EITHER),
    "query": (b"POST /v1/chat/completions?a=b HTTP/1.1", SERVED),
    "query with a path": (b"POST /v1/nothing?/v1/chat/completions HTTP/1.1", NOWHERE),
    "empty lines before": (b"\r\n\r\nPOST /v1/chat/completions HTTP/1.1", EITHER),
    "text before": (b"x\r\nPOST /v1/chat/completions HTTP/1.1", REFUSED),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", REFUSED),
}


def request_lines() -> Iterator[RawCase]:
    for name, (line, verdict) in LINES.items():
        yield RawCase(f"line: {name}", post(length(len(BODY)), BODY, line=line), verdict)
    endless = b"POST /v1/chat/completions?" + b"a" * 80_000 + b" HTTP/1.1"
    yield RawCase("line: endless", post(length(len(BODY)), BODY, line=endless), REFUSED)
    lf = post(length(len(BODY)), BODY).replace(CRLF, b"\n")
    yield RawCase("line: LF everywhere", lf, EITHER)
    old = b"POST /v1/chat/completions HTTP/1.0"
    yield RawCase("line: version 1.0", post(length(len(BODY)), BODY, line=old), SERVED)
    data = post(length(len(BODY)), BODY, line=old, host=b"")
    yield RawCase("line: version 1.0 without host", data, REFUSED)
    data = post(CHUNKED, CHUNKED_BODY, line=old)
    yield RawCase("line: version 1.0 with a coding", data, EITHER)
    yield RawCase("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 64, REFUSED)
    yield RawCase("SSH hello", b"SSH-2.0-OpenSSH_9.6\r\n", REFUSED)


HEADER_LINES: dict[str, tuple[bytes, str]] = {
    "no colon": (b"X-A\r\n", REFUSED),
    "no name": (b": b\r\n", REFUSED),
    "space before colon": (b"X-A : b\r\n", REFUSED),
    "space before name": (b" X-A: b\r\n", EITHER),
    "space in name": (b"X A: b\r\n", REFUSED),
    "folded": (b"X-A: b\r\n c\r\n", EITHER),
    "NUL in value": (b"X-A: b\x00c\r\n", REFUSED),
    "NUL in name": (b"X\x00A: b\r\n", REFUSED),
    "bare CR in value": (b"X-A: b\rc\r\n", REFUSED),
    "bare LF in value": (b"X-A: b\nX-B: c\r\n", EITHER),
    "high byte in name": (b"X-\xff: b\r\n", REFUSED),
    "high byte in value": (b"X-A: \xff\r\n", SERVED),
    "control in value": (b"X-A: \x01\r\n", EITHER),
    "at in name": (b"X@A: b\r\n", REFUSED),
    "bracket in name": (b"X[A]: b\r\n", REFUSED),
    "endless value": (b"X-A: " + b"a" * 80_000 + b"\r\n", REFUSED),
    "very many": (b"".join(b"X-%d: %b\r\n" % (idx, b"a" * 60) for idx in range(1_500)), REFUSED),
    "upgrade": (b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
                EITHER),
    "key named in connection": (b"Connection: authorization, close\r\n", SERVED),
    "expect": (b"Expect: 100-continue\r\n", SERVED),
    "expect the impossible": (b"Expect: 200-ok\r\n", EITHER),
    "method override": (b"X-HTTP-Method-Override: DELETE\r\n", SERVED),
    "path override": (b"X-Original-URL: /v1/models\r\nX-Rewrite-URL: /metrics\r\n", SERVED),
}  # fmt: skip
KEY_LINES: dict[str, bytes] = {
    "with underscore": b"X_Api_Key: %b\r\n",
    "folded": b"Authorization: Bearer\r\n %b\r\n",
    "of another name": b"XAuthorization: Bearer %b\r\n",
    "in a value": b"X-A: Authorization: Bearer %b\r\n",
    "behind bare CR": b"X-A: b\rAuthorization: Bearer %b\r\n",
    "space before colon": b"Authorization : Bearer %b\r\n",
    "with NUL": b"Authorization: Bearer\x00%b\r\n",
    "with vertical tab": b"Authorization: Bearer\x0b%b\r\n",
}


def header_lines() -> Iterator[RawCase]:
    for name, (line, verdict) in HEADER_LINES.items():
        yield RawCase(f"header: {name}", post(line + length(len(BODY)), BODY), verdict)
    for name, line in KEY_LINES.items():
        data = post(line % KEY + length(len(BODY)), BODY).replace(AUTH, b"", 1)
        is_plain = name in ("with underscore", "of another name", "in a value")
        yield RawCase(f"key: {name}", data, STRANGER if is_plain else REFUSED)


HOSTS: dict[str, tuple[bytes, str]] = {
    "none": (b"", REFUSED),
    "empty": (b"Host:\r\n", REFUSED),
    "two": (HOST_LINE + b"Host: evil.example\r\n", REFUSED),
    "two, ours last": (b"Host: evil.example\r\n" + HOST_LINE, REFUSED),
    "two equal": (HOST_LINE + HOST_LINE, REFUSED),
    "another": (b"Host: evil.example\r\n", REFUSED),
    "ours as a part": (b"Host: localhost.evil.example\r\n", REFUSED),
    "ours behind a user": (b"Host: evil.example@localhost\r\n", REFUSED),
    "list": (b"Host: localhost, evil.example\r\n", REFUSED),
    "path": (b"Host: localhost/v1/models\r\n", REFUSED),
    "query": (b"Host: localhost?x=\r\n", REFUSED),
    "fragment": (b"Host: localhost#\r\n", REFUSED),
    "space": (b"Host: localhost x\r\n", REFUSED),
    "tab": (b"Host: evil\tHOST\r\n", REFUSED),
    "scheme": (b"Host: http://localhost\r\n", REFUSED),
    "port is a word": (b"Host: localhost:http\r\n", REFUSED),
    "port is huge": (b"Host: localhost:99999999\r\n", REFUSED),
    "two ports": (b"Host: localhost:80:81\r\n", REFUSED),
    "bracket open": (b"Host: [::1\r\n", REFUSED),
    "bracket with zone": (b"Host: [fe80::1%25lo]\r\n", REFUSED),
    "NUL": (b"Host: localhost\x00\r\n", REFUSED),
    "high byte": (b"Host: localhost\xff\r\n", REFUSED),
    "full width dot": ("Host: evil．example\r\n".encode(), REFUSED),
    "percent": (b"Host: localhost%00\r\n", REFUSED),
    "underscore twin": (HOST_LINE + b"X_Host: evil.example\r\n", SERVED),
    "forwarded": (HOST_LINE + b"X-Forwarded-Host: evil.example\r\n", SERVED),
    "forwarded alone": (b"X-Forwarded-Host: localhost\r\n", REFUSED),
    "folded": (b"Host:\r\n localhost\r\n", EITHER),
    "space before colon": (b"Host : localhost\r\n", REFUSED),
    "upper case": (b"HOST: LOCALHOST\r\n", SERVED),
    "dot behind": (b"Host: localhost.\r\n", EITHER),
}


def hosts() -> Iterator[RawCase]:
    for name, (line, verdict) in HOSTS.items():
        yield RawCase(f"host: {name}", post(length(len(BODY)), BODY, host=line), verdict)


def pipelines() -> Iterator[RawCase]:
    models = get(b"/v1/models")
    chat = post(length(len(BODY)), BODY)
    yield RawCase("two honest requests", models + models, PAIR)
    yield RawCase("two honest posts", chat + chat, PAIR)
    yield RawCase("honest chunked, then honest", post(CHUNKED, CHUNKED_BODY) + models, PAIR)
    stranger = get(b"/v1/models", auth=b"")
    yield RawCase("key of the first is not the second's", models + stranger, PAIR_STRANGER)
    yield RawCase(
        "second has another host",
        models + get(b"/v1/models", host=b"Host: evil.example\r\n"),
        PAIR_REFUSED,
    )
    closing = get(b"/v1/models", b"Connection: close\r\n")
    yield RawCase("second behind a close", closing + HIDDEN, SERVED)
    with_body = get(b"/v1/models", length(len(HIDDEN))) + HIDDEN
    yield RawCase("GET with a body", with_body, SERVED)
    stray = post(length(len(BODY) - 1), BODY)
    yield RawCase("a byte too many", stray, NOT_JSON)
    yield RawCase("refused, then hidden", get(b"/v1/models", coding(b"x")) + HIDDEN, REFUSED)


def all_cases() -> list[RawCase]:
    return [
        *both_framings(), *codings_alone(), *lengths(), *chunks(), *request_lines(),
        *header_lines(), *hosts(), *pipelines(),
    ]  # fmt: skip
