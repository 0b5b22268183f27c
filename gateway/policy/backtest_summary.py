"""Two policies over the same records, side by side: shares, money and time, each with an interval.

Intervals are bootstrapped over requests. Differences are taken request by request, so that what
the requests themselves vary in drops out. The caller brings the generator. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.core import NANOS_PER_DOLLAR
from gateway.policy.backtest import Judged, Predicted, Record
from gateway.stats.bootstrap import bootstrap_interval
from gateway.stats.intervals import Measured

REQUESTS_MIN = 30  # fewer: figures are shown, claims are not made
P95_REQUESTS_MIN = 100  # so many that five of them lie above it
LEVEL = 0.95
RESAMPLES_MAX = 2_000
_CELLS_MAX = 4_000_000  # resamples × requests, which is a second or so

Array = NDArray[np.float64]
Reduced = Callable[[Array], Array]  # [rows, n] → [rows]


class Interval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A figure and its 95 % interval; without one where there are too few to have any."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_clear(self) -> bool:
        """Zero is outside it."""
        return self.low is not None and self.high is not None and self.low * self.high > 0.0


ClaimWord = Literal["too_few", "same", "none", "less", "more"]


class Claim(NamedTuple):
    """What may be said of a difference; `share` is how large it is, where that can be told."""

    word: ClaimWord
    share: float | None = None


def claim_of(
    figure: Interval, num: int, base: Interval | None = None, *, is_p95: bool = False
) -> Claim:
    """Nothing where the interval holds 0, or of too few requests. `base`: what `share` is of."""
    if num < (P95_REQUESTS_MIN if is_p95 else REQUESTS_MIN):
        return Claim("too_few")
    if figure.value == 0.0 and figure.low == 0.0 and figure.high == 0.0:
        return Claim("same")
    if not figure.is_clear:
        return Claim("none")
    word: ClaimWord = "less" if figure.value < 0.0 else "more"
    is_known = base is not None and base.value
    return Claim(word, abs(figure.value) / base.value if base is not None and is_known else None)


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy does with the records."""

    name: str
    num_predicted: int  # of the requests compared
    num_refused: int  # of all
    refusals: dict[str, int]  # rules → requests
    num_unseen: int  # went where the record does not say how busy it was
    shares: dict[str, Interval]  # endpoint → part of all requests that it serves first
    cost_usd: Interval  # of all requests compared together
    p50_s: Interval
    p95_s: Interval


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """New less old, over the requests compared."""

    cost_usd: Interval  # all together
    mean_s: Interval  # request by request
    p50_s: Interval
    p95_s: Interval
    mean_expected_s: Interval | None  # both sides predicted, so that a common error drops out


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The same prediction for what was really sent, against what really happened."""

    num: int
    real_over_predicted: Interval  # median ratio of times
    inside_90: Interval  # share of times within the predicted 90 % interval
    cost_real_over_predicted: float  # all together


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; `too_few` says what cannot be told."""

    num_requests: int
    num_changed: int  # another endpoint first, or a refusal where there was none
    num_compared: int  # answered, and refused by neither side
    old: Side
    new: Side
    differences: Differences | None
    check: Check | None
    too_few: str


@dataclass(frozen=True, slots=True)
class Sent:
    """The prediction for what was really sent; None where the policy of the time is not known."""

    record: Record
    predicted: Predicted | None


def compare(
    sent: Sequence[Sent],
    old: Sequence[Judged],
    new: Sequence[Judged],
    rng: np.random.Generator,
    *,
    names: tuple[str, str] = ("old", "new"),
) -> Comparison:
    """One `Judged` a record on each side, in the same order. Raises ValueError for no records."""
    if not sent or not len(sent) == len(old) == len(new):
        raise ValueError(f"records and judgements differ: {len(sent)}, {len(old)}, {len(new)}")
    both = [
        idx
        for idx, (ours, theirs) in enumerate(zip(new, old, strict=True))
        if ours.time_s is not None and theirs.time_s is not None
    ]
    num_changed = sum(a.endpoint_id != b.endpoint_id for a, b in zip(old, new, strict=True))
    return Comparison(
        num_requests=len(sent),
        num_changed=num_changed,
        num_compared=len(both),
        old=_side(names[0], old, both, rng),
        new=_side(names[1], new, both, rng),
        differences=_differences(sent, old, new, both, rng) if both else None,
        check=_check(sent, rng),
        too_few=_too_few(len(both)),
    )


def _too_few(num: int) -> str:
    if num == 0:
        return "no request was answered and is served by both: time and money cannot be compared"
    if num < REQUESTS_MIN:
        return f"too few: {num} requests compared, at least {REQUESTS_MIN} are needed for a claim"
    if num < P95_REQUESTS_MIN:
        return f"too few for the p95: {num} requests compared, it takes {P95_REQUESTS_MIN}"
    return ""


def _side(
    name: str, judged: Sequence[Judged], both: Sequence[int], rng: np.random.Generator
) -> Side:
    served = Counter(each.endpoint_id for each in judged if each.endpoint_id)
    times, costs = _times(judged, both), _costs(judged, both)
    return Side(
        name=name,
        num_predicted=sum(judged[idx].is_predicted for idx in both),
        num_refused=sum(not each.endpoint_id for each in judged),
        refusals=dict(Counter(each.refusal for each in judged if each.refusal).most_common()),
        num_unseen=sum(each.was_unseen for each in judged),
        shares={
            endpoint_id: _interval(
                np.array([float(each.endpoint_id == endpoint_id) for each in judged]), _mean, rng
            )
            for endpoint_id, _ in served.most_common()
        },
        cost_usd=_interval(costs, _sum, rng),
        p50_s=_interval(times, _quantile(0.5), rng),
        p95_s=_interval(times, _quantile(0.95), rng),
    )


def _differences(
    sent: Sequence[Sent],
    old: Sequence[Judged],
    new: Sequence[Judged],
    both: Sequence[int],
    rng: np.random.Generator,
) -> Differences:
    before_s, after_s = _times(old, both), _times(new, both)
    expected = [
        found
        for idx in both
        if (found := _expected_difference_s(sent[idx], old[idx], new[idx])) is not None
    ]
    return Differences(
        cost_usd=_interval(_costs(new, both) - _costs(old, both), _sum, rng),
        mean_s=_interval(after_s - before_s, _mean, rng),
        p50_s=_moved(before_s, after_s, 0.5, rng),
        p95_s=_moved(before_s, after_s, 0.95, rng),
        mean_expected_s=_interval(np.array(expected), _mean, rng)
        if len(expected) == len(both)
        else None,
    )


def _expected_difference_s(sent: Sent, old: Judged, new: Judged) -> float | None:
    """Both choices by their predictions, without residuals; None where one cannot be predicted."""
    if old.endpoint_id == new.endpoint_id and not (old.is_predicted or new.is_predicted):
        return 0.0
    before_s, after_s = _expected_s(sent, old), _expected_s(sent, new)
    return None if before_s is None or after_s is None else after_s - before_s


def _expected_s(sent: Sent, judged: Judged) -> float | None:
    if judged.is_predicted:
        return judged.expected_s
    if sent.predicted is None or sent.record.outcome is None:
        return None
    return sent.record.outcome.wait_s + sent.predicted.time_s


def _moved(before_s: Array, after_s: Array, q: float, rng: np.random.Generator) -> Interval:
    """The difference of two quantiles, both of the same resampled requests."""
    quantile = _quantile(q)

    def difference(places: Array) -> Array:
        idx = places.astype(np.intp)
        return quantile(after_s[idx]) - quantile(before_s[idx])

    return _interval(np.arange(len(before_s), dtype=np.float64), difference, rng)


def _check(sent: Sequence[Sent], rng: np.random.Generator) -> Check | None:
    ratios: list[float] = []
    inside: list[float] = []
    real_nanos = predicted_nanos = 0
    for each in sent:
        outcome, predicted = each.record.outcome, each.predicted
        if outcome is None or predicted is None or outcome.num_attempts != 1:
            continue  # a prediction is of one endpoint, not of the way to the next
        time_s = max(outcome.time_s - outcome.wait_s, 1e-6)
        ratios.append(time_s / predicted.time_s)
        inside.append(float(predicted.time_p5_s <= time_s <= predicted.time_p95_s))
        real_nanos += outcome.cost_nanos
        predicted_nanos += predicted.cost_nanos
    if not ratios:
        return None
    return Check(
        num=len(ratios),
        real_over_predicted=_interval(np.array(ratios), _quantile(0.5), rng),
        inside_90=_interval(np.array(inside), _mean, rng),
        cost_real_over_predicted=real_nanos / predicted_nanos if predicted_nanos else 1.0,
    )


def _times(judged: Sequence[Judged], both: Sequence[int]) -> Array:
    return np.array([judged[idx].time_s for idx in both], dtype=np.float64)


def _costs(judged: Sequence[Judged], both: Sequence[int]) -> Array:
    """Dollars."""
    nanos = [judged[idx].cost_nanos or 0 for idx in both]
    return np.array(nanos, dtype=np.float64) / NANOS_PER_DOLLAR


def _mean(samples: Array) -> Array:
    return np.asarray(samples.mean(axis=1))


def _sum(samples: Array) -> Array:
    return np.asarray(samples.sum(axis=1))


def _quantile(q: float) -> Reduced:
    return lambda samples: np.asarray(np.quantile(samples, q, axis=1))


def _interval(samples: Array, statistic: Reduced, rng: np.random.Generator) -> Interval:
    if len(samples) == 0:
        return Interval(value=0.0)
    if len(samples) < 2:
        return Interval(value=float(statistic(samples[np.newaxis, :])[0]))
    found: Measured = bootstrap_interval(
        samples,
        rng,
        statistic=statistic,
        num_resamples=max(200, min(RESAMPLES_MAX, _CELLS_MAX // len(samples))),
        level=LEVEL,
    )
    return Interval(value=found.value, low=found.low, high=found.high)
