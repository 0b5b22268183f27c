"""What a line of a batch file must be, and what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.batch.line_check import CUSTOM_ID_CHARS_MAX, CheckedLine, LineChecker, LineRefused
from gateway.batch.line_splitter import Line
from gateway.wire.pieces import Surface

BODY = {"model": "m", "max_tokens": 7, "messages": [{"role": "user", "content": "word " * 40}]}
GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}


def line(value: Any, number: int = 5, offset: int = 100) -> Line:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Line(number, offset, data)


def test_a_good_line_keeps_its_place_model_and_size() -> None:
    checker = LineChecker()
    found = checker.check(line(GOOD))
    assert checker.surface is Surface.CHAT
    assert found == CheckedLine(
        number=5,
        offset_bytes=100,
        num_bytes=len(json.dumps(GOOD)),
        custom_id="a",
        model="m",
        prompt_tokens=found.prompt_tokens,
        max_tokens=7,
    )
    assert 40 <= found.prompt_tokens <= 60  # 200 characters


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        (b"not json", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b'{"custom_id": "a", "custom_id": "b"}', "invalid_json_line", None),
        ({**GOOD, "custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({**GOOD, "custom_id": 5}, "invalid_custom_id", "custom_id"),
        ({**GOOD, "custom_id": "a\nb"}, "invalid_custom_id", "custom_id"),
        ({**GOOD, "custom_id": "x" * (CUSTOM_ID_CHARS_MAX + 1)}, "invalid_custom_id", "custom_id"),
        ({key: GOOD[key] for key in GOOD if key != "method"}, "invalid_method", "method"),
        ({**GOOD, "method": "post"}, "invalid_method", "method"),
        ({**GOOD, "url": "/v1/images"}, "invalid_url", "url"),
        ({**GOOD, "url": None}, "invalid_url", "url"),
        ({key: GOOD[key] for key in GOOD if key != "body"}, "missing_required_parameter", "body"),
        ({**GOOD, "body": []}, "invalid_request", "body"),
        ({**GOOD, "body": {**BODY, "model": None}}, "invalid_request", "body.model"),
        ({**GOOD, "body": {**BODY, "max_tokens": "7"}}, "invalid_request", "body.max_tokens"),
        ({**GOOD, "body": {**BODY, "stream": True}}, "invalid_request", "body.stream"),
    ],
)
def test_what_is_wrong_is_said_with_line_code_and_field(
    value: Any, code: str, param: str | None
) -> None:
    with pytest.raises(LineRefused) as told:
        LineChecker().check(line(value))
    problem = told.value.problem
    assert (problem.line, problem.code, problem.param) == (5, code, param)
    assert problem.message


def test_a_custom_id_is_used_once_and_a_file_has_one_endpoint() -> None:
    checker = LineChecker()
    checker.check(line(GOOD))
    with pytest.raises(LineRefused, match="'a' is used by a line before it"):
        checker.check(line(GOOD, number=6))
    with pytest.raises(LineRefused, match="put them into files of their own"):
        checker.check(line({**GOOD, "custom_id": "b", "url": "/v1/embeddings"}, number=7))


@pytest.mark.parametrize(
    ("url", "body", "surface"),
    [
        ("/v1/completions", {"model": "m", "prompt": "x"}, Surface.COMPLETIONS),
        ("/v1/responses", {"model": "m", "input": "x"}, Surface.RESPONSES),
        ("/v1/embeddings", {"model": "m", "input": ["x", "y"]}, Surface.EMBEDDINGS),
        ("/v1/messages", {**BODY}, Surface.MESSAGES),
    ],
)
def test_every_surface_of_batches(url: str, body: dict[str, Any], surface: Surface) -> None:
    checker = LineChecker()
    checker.check(line({**GOOD, "url": url, "body": body}))
    assert checker.surface is surface
