"""The comparison with other engines: pairs, spreads, equal texts, from answers that are known."""

from __future__ import annotations

import os
import time

import pytest

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.http_client import Address
from backend.cli.measuring.load import Level, Played
from gateway.stats.timeline import Stamps
from gateway.wire.usage import Usage
from tests.bench.peers.comparing import (
    Spread,
    paired_ratios,
    ratios_table,
    round_ratios,
    rounds_table,
    same_texts,
    singles_table,
)
from tests.bench.peers.engines import ServerEngine, processor_s


def answer(question: str, gap_s: float, *, text: str = "t", num_tokens: int = 41) -> Answer:
    times = tuple(1.0 + gap_s * (idx + 5) for idx in range(num_tokens))
    stamps = Stamps(
        dispatched_at_s=1.0,
        first_generated_at_s=times[0],
        last_generated_at_s=times[-1],
        ended_at_s=times[-1],
        frame_stamps_s=times,
        num_frames=num_tokens,
    )
    return Answer(question, stamps, text, Usage(input=60, output=num_tokens), "length")


def test_ratios_are_taken_question_by_question() -> None:
    ours = [answer("a", 0.01), answer("b", 0.02), answer("short", 0.01, num_tokens=3)]
    theirs = [answer("a", 0.02), answer("b", 0.02), answer("short", 0.01)]

    assert paired_ratios(ours, theirs) == pytest.approx([2.0, 1.0])


def test_a_spread_holds_its_median() -> None:
    found = Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])

    assert found is not None
    assert (found.median, found.low_quartile, found.high_quartile, found.n) == (3.0, 2.0, 4.0, 5)
    assert found.low is not None
    assert found.high is not None
    assert 1.0 <= found.low < 3.0 < found.high <= 5.0
    assert Spread.of([]) is None
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, None, None, 1)


def test_equal_texts_are_counted_where_both_are_known() -> None:
    alone = [answer("a", 0.01, text="x"), answer("b", 0.01, text="y")]
    together = [answer("a", 0.1, text="x"), answer("b", 0.1, text="z"), answer("c", 0.1)]

    assert same_texts(together, alone) == (1, 2)


def test_tables_show_ours_over_every_other() -> None:
    singles = {
        "ours int8": [answer("a", 0.01), answer("b", 0.01)],
        "llama.cpp": [answer("a", 0.02), answer("b", 0.02)],
    }
    processor = {"ours int8": [0.41, 0.41], "llama.cpp": [0.82, 0.82]}

    text, data = ratios_table(singles, processor, ["ours int8"])

    assert "| ours int8 / llama.cpp | 2.00 [2.00..2.00] |" in text
    assert data["ours int8 / llama.cpp"]["processor"]["median"] == pytest.approx(0.5)
    assert "| llama.cpp | 2 | 50.0 [50.0..50.0] | 100 [100..100] | 20.0 [20.0..20.0] |" in (
        singles_table(singles, processor)
    )


def test_rounds_add_up_their_tokens() -> None:
    def played(wall_s: float) -> Played:
        return Played(Level(2, concurrency=2), [answer("a", 0.01), answer("b", 0.01)], wall_s)

    rounds = {"ours int8": [played(1.0), played(2.0)], "llama.cpp": [played(4.0), played(4.0)]}
    text, data = rounds_table(rounds, {"ours int8": [1.64], "llama.cpp": [3.28]}, {})

    assert data["ours int8"]["total_per_s"]["median"] == pytest.approx(61.5)
    assert data["ours int8"]["processor_s_per_token"] == pytest.approx(0.01)
    assert "| ours int8 | 2 x 2 |" in text
    ratio = round_ratios(rounds["ours int8"], rounds["llama.cpp"])
    assert ratio is not None
    assert ratio.median == pytest.approx(3.0)


def test_processor_time_is_that_of_the_process() -> None:
    here = ServerEngine("this test", False, os.getpid(), Address("127.0.0.1", 1, False, "/v1"), "m")
    before_s, before_here_s = processor_s(here), time.process_time()
    while time.process_time() < before_here_s + 0.1:
        sum(range(10_000))

    assert processor_s(here) - before_s == pytest.approx(0.1, abs=0.05)
