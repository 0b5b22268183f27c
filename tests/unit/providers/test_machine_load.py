"""A self-hosted server's account of its load: read strictly, whatever it is."""

from __future__ import annotations

import json

import pytest

from gateway.core import MachineLoad
from gateway.providers.machine_load import LoadUnreadable, read_load

ACCOUNT = {
    "num_running": 3,
    "num_waiting": 1,
    "waiting_prompt_tokens": 700,
    "kv_blocks_total": 100,
    "kv_blocks_used": 40,
    "tokens_per_s": 120.5,
    "prompt_tokens_per_s": 900.0,
    "num_preemptions": 0,
    "decode_step_s": {"8": 0.03, "1": 0.01, "16": 0.05},
    "prefill_token_s": 0.0005,
}


def test_account_is_read_with_its_table_in_order() -> None:
    assert read_load(json.dumps(ACCOUNT).encode()) == MachineLoad(
        num_running=3,
        num_waiting=1,
        waiting_prompt_tokens=700,
        kv_blocks_total=100,
        kv_blocks_used=40,
        tokens_per_s=120.5,
        prompt_tokens_per_s=900.0,
        decode_step_s=((1, 0.01), (8, 0.03), (16, 0.05)),
        prefill_token_s=0.0005,
    )


def test_server_that_measured_nothing_yet_is_read() -> None:
    load = read_load(b'{"num_running": 0, "num_waiting": 0, "decode_step_s": {}}')

    assert load == MachineLoad()
    assert load.cache_use == 0.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not understood"),
        (b"<html>busy</html>", "not understood"),
        (b"[]", "not understood"),
        (b"\xff\xfe", "not understood"),
        (b'{"num_running": 1}', "num_waiting"),
        ({"num_running": -1}, "num_running"),
        ({"num_waiting": 1.5}, "num_waiting"),
        ({"tokens_per_s": "fast"}, "tokens_per_s"),
        ({"tokens_per_s": 1e300}, "tokens_per_s"),
        ({"kv_blocks_used": 101}, "kv_blocks_used is 101 of 100"),
        ({"decode_step_s": {"0": 0.1}}, "decode_step_s"),
        ({"decode_step_s": {"-3": 0.1}}, "decode_step_s"),
        ({"decode_step_s": {"1": 0.0}}, "decode_step_s"),
        ({"decode_step_s": {"one": 0.1}}, "decode_step_s"),
        ({"decode_step_s": {str(size): 0.1 for size in range(1, 300)}}, "decode_step_s"),
        ({"prefill_token_s": None}, "prefill_token_s"),
    ],
)
def test_anything_else_is_refused_with_the_member_that_is_wrong(body: object, said: str) -> None:
    text = body if isinstance(body, bytes) else json.dumps({**ACCOUNT, **body}).encode()  # type: ignore[dict-item]

    with pytest.raises(LoadUnreadable, match=said):
        read_load(text)


def test_number_beyond_any_float_is_refused() -> None:
    with pytest.raises(LoadUnreadable):
        read_load(b'{"num_running": 0, "num_waiting": 0, "decode_step_s": {"1": 1e999}}')
