"""Lines of output, error and results files are one line each, and hold the answer as it came."""

from __future__ import annotations

import json

import pytest

from gateway.batch.output import anthropic_line, openai_line
from gateway.store.batch_work import EndedLine

ANSWER = b'{"id": "x",\r\n "choices": [{"text": "a\\nb"}],\n "n": 1.0}'


def ended(state: str, status: int, body: bytes | None) -> EndedLine:
    return EndedLine(
        line_no=3, custom_id='c"3', state=state, status_code=status, request_id="req_1", body=body
    )


@pytest.mark.parametrize("write", [openai_line, anthropic_line])
@pytest.mark.parametrize(
    ("state", "status", "body"),
    [
        ("succeeded", 200, ANSWER),
        ("errored", 400, b'{"error": {"message": "no"}}'),
        ("errored", 502, b"<html>\nbad gateway"),
        ("errored", 500, b""),
        ("errored", 500, b'{"broken": '),
        ("expired", 0, None),
        ("cancelled", 0, None),
    ],
)
def test_every_end_is_one_line_of_json_with_its_custom_id(
    write: object, state: str, status: int, body: bytes | None
) -> None:
    assert callable(write)
    text = write("batch_abc", ended(state, status, body))
    assert text.count(b"\n") == 1
    assert text.endswith(b"\n")
    assert json.loads(text)["custom_id"] == 'c"3'


def test_openais_form() -> None:
    good = json.loads(openai_line("batch_abc", ended("succeeded", 200, ANSWER)))
    assert good["id"] == "batch_req_abc_3"
    assert good["error"] is None
    assert good["response"]["status_code"] == 200
    assert good["response"]["request_id"] == "req_1"
    assert good["response"]["body"] == json.loads(ANSWER)
    assert b'"n": 1.0' in openai_line("batch_abc", ended("succeeded", 200, ANSWER))
    late = json.loads(openai_line("batch_abc", ended("expired", 0, None)))
    assert (late["response"], late["error"]["code"]) == (None, "batch_expired")
    page = json.loads(openai_line("batch_abc", ended("errored", 502, b"<html>")))
    assert page["response"]["body"] == "<html>"


def test_anthropics_form() -> None:
    good = json.loads(anthropic_line("msgbatch_a", ended("succeeded", 200, ANSWER)))
    assert good["result"] == {"type": "succeeded", "message": json.loads(ANSWER)}
    bad = json.loads(anthropic_line("msgbatch_a", ended("errored", 400, b'{"type": "error"}')))
    assert bad["result"] == {"type": "errored", "error": {"type": "error"}}
    gone = json.loads(anthropic_line("msgbatch_a", ended("cancelled", 0, None)))
    assert gone["result"] == {"type": "canceled"}
