"""Many short answers of an engine beside the exact probability of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from scipy import stats

from backend.engine.engine import Engine
from backend.engine.interface import EngineRequest
from backend.sampling.params import SamplingParams

Text = tuple[int, ...]
EXPECTED_MIN = 5.0  # answers of a cell of the chi-square test; rarer ones are one cell


def exact_answers(
    shares_behind: Callable[[Text], Iterable[tuple[int, float]]], length: int
) -> dict[Text, float]:
    """Every answer of so many tokens, from what may follow each text and how probably."""
    found: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        found = {
            (*text, token): mass * share
            for text, mass in found.items()
            for token, share in shares_behind(text)
        }
    return found


def short_answers(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, count: int, at_once: int
) -> list[Text]:
    """So many answers to one prompt, `at_once` of them together."""
    writing: dict[str, list[int]] = {}
    found: list[Text] = []
    asked = 0
    while len(found) < count:
        while asked < count and len(writing) < at_once:
            engine.add(EngineRequest(str(asked), tuple(prompt), params))
            writing[str(asked)] = []
            asked += 1
        for event in engine.step():
            assert event.error is None
            writing[event.request_id] += event.token_ids
            if event.finish is not None:
                found.append(tuple(writing.pop(event.request_id)))
    return found


def pvalue(answers: Sequence[Text], exact: Mapping[Text, float]) -> float:
    """Of a chi-square test over all possible answers; 0 for one that the target never gives."""
    counted = Counter(answers)
    if not counted.keys() <= exact.keys():
        return 0.0
    counts = np.array([counted[text] for text in exact], dtype=float)
    expected = np.array(list(exact.values())) * len(answers)
    is_rare = expected < EXPECTED_MIN
    if is_rare.any():
        counts = np.append(counts[~is_rare], counts[is_rare].sum())
        expected = np.append(expected[~is_rare], expected[is_rare].sum())
    return float(stats.chisquare(counts, expected).pvalue)
