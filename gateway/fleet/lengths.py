"""How long answers get: decayed medians by key and kind of request, shrunk to the model's own."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple, TypeVar

from gateway.core import AttemptOutcome, RequestFacts
from gateway.stats.quantiles import HistogramState, LogHistogram

ANSWER_TOKENS_DEFAULT = 4_096.0  # of the longest, before anything was seen
LENGTH_START = 200.0  # tokens, before anything was seen
LENGTH_N0 = 5.0
LENGTH_VARIANCE_START = 1.0  # of ln tokens
LENGTH_HALF_LIFE_S = 6 * 3600.0
LENGTH_MAX = 1_000_000.0
KEYS_MAX = 4_096
MODELS_MAX = 1_024
_ALPHA = 0.05
_REACH_90 = 2.0 * 1.6448536269514722  # of a normal, in its sigmas
_LN_START = math.log(LENGTH_START)

K = TypeVar("K")
Kind = tuple[str, str, int | None, bool]  # (key id, model, max_tokens, has tools)


class Length(NamedTuple):
    """What is known of the length of a kind of answer."""

    tokens: float  # expected
    n: float  # decayed samples behind it
    variance: float  # of ln tokens
    longest: float = 0.0  # 99 of 100 answers of the model are no longer; 0 = not asked


class _Record:
    """One histogram, with its quantiles kept until the next sample."""

    __slots__ = ("_ln_median", "_p99", "_variance", "_version", "histogram")

    def __init__(self, now_s: float) -> None:
        self.histogram = LogHistogram(
            1.0, LENGTH_MAX, half_life_s=LENGTH_HALF_LIFE_S, alpha=_ALPHA, start_s=now_s
        )
        self._version = -1
        self._ln_median = _LN_START
        self._p99 = LENGTH_START
        self._variance = LENGTH_VARIANCE_START

    def _refresh(self) -> None:
        if self._version != self.histogram.version:
            self._version = self.histogram.version
            found = self.histogram.quantiles((0.05, 0.5, 0.95, 0.99))
            if found is not None:
                self._ln_median, self._p99 = math.log(found[1]), found[3]
                self._variance = (math.log(found[2] / found[0]) / _REACH_90) ** 2

    def p99(self) -> float:
        self._refresh()
        return self._p99

    def shrink(self, ln_prior: float, now_s: float) -> tuple[float, float]:
        """(ln of the median shrunk to the prior's, decayed samples)."""
        self._refresh()
        weight = self.histogram.weight(now_s)
        return (weight * self._ln_median + LENGTH_N0 * ln_prior) / (weight + LENGTH_N0), weight

    def variance(self, prior: float, now_s: float) -> float:
        """Of ln length, as a log-normal would have with these 5 and 95 %; shrunk to the prior's."""
        self._refresh()
        weight = self.histogram.weight(now_s)
        return (weight * self._variance + LENGTH_N0 * prior) / (weight + LENGTH_N0)


class Lengths:
    """
    Expected output tokens of a request (reliability B.2).

    Kind = key × model × max_tokens bucket × tools. Answers cut off at max_tokens count for their
    own kind only: of the model they say a lower bound. The least used kind is forgotten first.
    """

    def __init__(self, keys_max: int = KEYS_MAX, models_max: int = MODELS_MAX) -> None:
        self._keys_max = keys_max
        self._models_max = models_max
        self._kinds: OrderedDict[tuple[str, str, int, bool], _Record] = OrderedDict()
        self._models: OrderedDict[str, _Record] = OrderedDict()

    def observe(
        self,
        kind: Kind,
        tokens: float,
        now_s: float,
        *,
        is_capped: bool = False,
    ) -> None:
        """`kind` is (key id, model, max_tokens, has tools)."""
        key_id, model, max_tokens, has_tools = kind
        slot = (key_id, model, _bucket(max_tokens), has_tools)
        _touch(self._kinds, slot, self._keys_max, now_s).histogram.add(max(1.0, tokens), now_s)
        if not is_capped:
            record = _touch(self._models, model, self._models_max, now_s)
            record.histogram.add(max(1.0, tokens), now_s)

    def expected(self, kind: Kind, now_s: float) -> tuple[float, float]:
        """(tokens expected, decayed samples behind it); at most max_tokens."""
        key_id, model, max_tokens, has_tools = kind
        ln_length, n = _LN_START, 0.0
        wide = self._models.get(model)
        if wide is not None:
            ln_length, n = wide.shrink(ln_length, now_s)
        own = self._kinds.get((key_id, model, _bucket(max_tokens), has_tools))
        if own is not None:
            ln_length, own_n = own.shrink(ln_length, now_s)
            n = max(n, own_n)
        expected = math.exp(ln_length)
        return (min(expected, float(max_tokens)) if max_tokens else expected), n

    def variance(self, kind: Kind, now_s: float) -> float:
        """How widely lengths scatter about the expected one: the variance of ln tokens."""
        key_id, model, max_tokens, has_tools = kind
        found = LENGTH_VARIANCE_START
        wide = self._models.get(model)
        if wide is not None:
            found = wide.variance(found, now_s)
        own = self._kinds.get((key_id, model, _bucket(max_tokens), has_tools))
        return own.variance(found, now_s) if own is not None else found

    def known(self, kind: Kind, now_s: float) -> Length:
        """All of a kind at once."""
        longest = self.longest(kind[1], kind[2], ANSWER_TOKENS_DEFAULT)
        return Length(*self.expected(kind, now_s), self.variance(kind, now_s), longest)

    def longest(self, model: str, max_tokens: int | None, default: float) -> float:
        """Tokens that 99 % of the model's answers stay under; `default` before it is known."""
        record = self._models.get(model)
        longest = default
        if record is not None and record.histogram.n >= LENGTH_N0 * 4:
            longest = record.p99()
        return min(longest, float(max_tokens)) if max_tokens else longest

    def export(self, now_s: float) -> dict[str, HistogramState]:
        """The model-wide histograms; the kinds come back soon enough."""
        return {model: record.histogram.export(now_s) for model, record in self._models.items()}

    def load(self, model: str, state: HistogramState, now_s: float, away_s: float) -> None:
        record = _touch(self._models, model, self._models_max, now_s)
        record.histogram.load(state, now_s, away_s)


def _touch(records: OrderedDict[K, _Record], key: K, keys_max: int, now_s: float) -> _Record:
    record = records.get(key)
    if record is None:
        record = records[key] = _Record(now_s)
        if len(records) > keys_max:
            records.popitem(last=False)
    else:
        records.move_to_end(key)
    return record


def _bucket(max_tokens: int | None) -> int:
    """0 without a limit, else by powers of two."""
    return max_tokens.bit_length() if max_tokens else 0


def kind_of(facts: RequestFacts) -> Kind:
    """What the length of an answer is learned by."""
    model = facts.models[0] if facts.models else ""
    return facts.key_id, model, facts.max_tokens, "tools" in facts.needs


def kind_of_answer(outcome: AttemptOutcome) -> Kind:
    return outcome.key_id, outcome.model, outcome.max_tokens, outcome.has_tools
