"""What an answer that did not come to its own end is billed: whose count of tokens is believed."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core import AttemptOutcome
from gateway.relay.money import billable_usage
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage


def outcome_of(**fields: Any) -> AttemptOutcome:
    return AttemptOutcome(
        attempt_id="a",
        request_id="r",
        endpoint_id="e",
        surface=Surface.CHAT,
        stream=True,
        dispatched_at_s=0.0,
        prompt_tokens_expected=7,
        **fields,
    )


def test_provider_that_counts_as_it_goes_is_believed_over_our_characters() -> None:
    said = Usage(input=9, output=5)
    outcome = outcome_of(visible_chars=36, usage=said, usage_is_current=True)  # 9 by characters

    assert billable_usage(outcome, None, is_whole=False) == (said, True)


@pytest.mark.parametrize("is_current", [False, True])
def test_count_that_stands_still_is_corrected_by_our_characters(is_current: bool) -> None:
    said = Usage(input=9, output=1)
    outcome = outcome_of(visible_chars=400, usage=said, usage_is_current=is_current)

    usage, is_estimated = billable_usage(outcome, None, is_whole=False)

    assert (usage, is_estimated) == (Usage(input=9, output=100), True)


def test_old_count_is_corrected_even_if_it_is_near() -> None:
    outcome = outcome_of(visible_chars=36, usage=Usage(input=9, output=5))

    usage, _ = billable_usage(outcome, None, is_whole=False)

    assert usage == Usage(input=9, output=9)


def test_plain_answer_that_never_came_pays_its_prompt() -> None:
    assert billable_usage(outcome_of(), None, is_whole=False) == (Usage(input=7), True)


def test_whole_answer_is_billed_as_counted_even_at_zero() -> None:
    outcome = outcome_of(visible_chars=400, usage=Usage())

    assert billable_usage(outcome, None, is_whole=True) == (Usage(), False)
