"""What is shared out adds up to the last nano-dollar, in proportion, and never above a cap."""

from __future__ import annotations

from fractions import Fraction

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import PriceRow
from gateway.ledger.exports.openai_costs import FORMAT as COSTS
from gateway.ledger.exports.openai_usage import FORMAT as USAGE
from gateway.ledger.exports.plain import FORMAT as PLAIN
from gateway.ledger.exports.rows import measures_of
from gateway.ledger.reconcile_days import DayPlan, model_day, plan_day
from gateway.ledger.reconcile_ours import Attempt, Sum
from gateway.ledger.reconcile_shares import share, spread_tokens, within_hold
from gateway.ledger.reconcile_theirs import Charge
from gateway.prices.rows import cost_nanos
from gateway.wire.usage import BUCKETS, Usage

GROUP = ("model-1", "2026-01-01")
PRICE = PriceRow(source="policy", input=1_000, output=2_000, request_nanos=3)
NANOS = st.integers(0, 10**15)
PARTS = st.lists(st.tuples(NANOS, st.none() | NANOS), max_size=12)


@given(NANOS, PARTS)
def test_parts_add_up_and_keep_their_caps(total: int, parts: list[tuple[int, int | None]]) -> None:
    weights, caps = [weight for weight, _ in parts], [cap for _, cap in parts]

    got = share(total, weights, caps)

    room = total if not parts else sum(cap if cap is not None else total for cap in caps)
    assert sum(got) == (min(total, room) if parts else 0)
    assert all(
        part >= 0 and (cap is None or part <= cap) for part, cap in zip(got, caps, strict=True)
    )


@given(NANOS, st.lists(st.integers(1, 10**12), min_size=1, max_size=12))
def test_parts_are_within_one_of_their_proportion(total: int, weights: list[int]) -> None:
    exact = [Fraction(total * weight, sum(weights)) for weight in weights]

    assert all(
        abs(part - true) < 1 for part, true in zip(share(total, weights), exact, strict=True)
    )


@given(NANOS, PARTS)
def test_equal_attempts_get_the_same_but_for_a_nano(
    total: int, parts: list[tuple[int, int | None]]
) -> None:
    got = share(total, [weight for weight, _ in parts] * 2, [cap for _, cap in parts] * 2)

    assert all(abs(a - b) <= 1 for a, b in zip(got[: len(parts)], got[len(parts) :], strict=True))


def test_what_a_cap_cuts_off_goes_to_the_others() -> None:
    assert share(100, [1, 1, 2], [10, None, None]) == [10, 30, 60]
    assert share(10, [0, 0, 0]) == [4, 3, 3]
    assert share(10, [5, 0], [4, None]) == [4, 6]
    assert share(7, []) == []


TOKENS = st.integers(0, 10**9)
USAGES = st.builds(Usage, **dict.fromkeys(BUCKETS, TOKENS))
TOLD = st.sampled_from([
    measures_of(("input", "cached_read", "output")),
    measures_of(("input", "output", "reasoning")),
    measures_of(BUCKETS),
    measures_of(()),
])  # fmt: skip


@given(st.lists(USAGES, max_size=6), TOLD, st.data())
def test_tokens_add_up_by_measure(
    usages: list[Usage], measures: dict[str, tuple[str, ...]], data: st.DataObject
) -> None:
    target = {name: data.draw(TOKENS) for name in measures}

    got = spread_tokens(target, usages, measures)

    for name, buckets in measures.items():
        found = sum(getattr(usage, bucket) for usage in got for bucket in buckets)
        assert found == (target[name] if usages else 0)
    told = {bucket for buckets in measures.values() for bucket in buckets}
    for bucket in set(BUCKETS) - told:
        assert [getattr(u, bucket) for u in got] == [getattr(u, bucket) for u in usages]


PRICES = st.builds(
    PriceRow,
    source=st.just("policy"),
    request_nanos=st.integers(0, 1_000),
    **dict.fromkeys(BUCKETS, st.integers(0, 10**6)),
)


@given(USAGES, PRICES, st.integers(1, 10**12))
def test_tokens_never_cost_more_than_was_held(usage: Usage, price: PriceRow, hold: int) -> None:
    got = within_hold(usage, price, hold)

    assert cost_nanos(price, got) <= max(hold, price.request_nanos)
    if cost_nanos(price, usage) <= hold:
        assert got == usage


def attempt(
    idx: int, nanos: int, hold: int, usage: Usage, price: PriceRow | None = PRICE
) -> Attempt:
    return Attempt(
        attempt_id=f"a{idx:02}",
        request_id=f"r{idx}",
        group=GROUP,
        nanos=nanos,
        usage=usage,
        hold_nanos=hold,
        price=price,
        is_exact=False,
        is_open=True,
    )


ATTEMPTS = st.lists(st.tuples(NANOS, NANOS, USAGES), max_size=6).map(
    lambda some: [attempt(idx, *each) for idx, each in enumerate(some)]
)


def plan_of(form: object, rest: Charge, exact: Sum, shared: list[Attempt]) -> DayPlan:
    columns = frozenset(f"{bucket}_tokens" for bucket in BUCKETS)
    measures = measures_of(form.buckets(columns))  # type: ignore[attr-defined]  # a Format
    return plan_day(form, measures, rest, exact, shared, [])  # type: ignore[arg-type]  # a Format


@given(st.integers(-(10**12), 10**15), NANOS, ATTEMPTS)
def test_what_is_corrected_is_the_drift_that_goes(
    theirs: int, settled: int, shared: list[Attempt]
) -> None:
    rest, exact = Charge(), Sum(nanos=settled, attempts=1)
    rest.add_nanos(theirs, {}, 1)
    plan = plan_of(COSTS, rest, exact, shared)

    before = model_day(GROUP, "m", rest, exact, plan.unchanged())
    after = model_day(GROUP, "m", rest, exact, plan)

    assert after.corrected_nanos == before.drift_nanos - after.drift_nanos
    assert after.corrected_nanos == sum(nanos - each.nanos for each, nanos, _ in plan.shared)
    assert all(nanos >= 0 and nanos <= (a.hold_nanos or nanos) for a, nanos, _ in plan.shared)
    room = sum(each.hold_nanos for each in shared)
    if shared and all(each.hold_nanos for each in shared) and 0 <= theirs - settled <= room:
        assert after.drift_nanos == 0


@given(NANOS, USAGES, ATTEMPTS)
def test_planning_again_after_the_corrections_changes_nothing(
    theirs: int, tokens: Usage, shared: list[Attempt]
) -> None:
    rest, exact = Charge(), Sum(nanos=1_000)
    rest.add_nanos(theirs, msgspec.structs.asdict(tokens), 1)
    for form in (COSTS, PLAIN):
        plan = plan_of(form, rest, exact, shared)
        corrected = [
            attempt(idx, nanos, each.hold_nanos, usage)
            for idx, (each, nanos, usage) in enumerate(plan.shared)
        ]
        again = plan_of(form, rest, exact, corrected)

        assert again.known("", "") == []


def test_tokens_without_dollars_are_priced_by_the_attempts_own_prices() -> None:
    rest, exact = Charge(), Sum(nanos=500, attempts=2)
    exact.add(0, [60, 0, 0, 0, 10, 0, 0, 0, 0], 0)
    rest.add(0, {"input": 100, "cached_read": 0, "output": 30})
    plan = plan_of(USAGE, rest, exact, [attempt(0, 400, 10_000, Usage(input=80, output=150))])

    ((_, nanos, usage),) = plan.shared
    assert usage == Usage(input=40, output=20)
    assert nanos == 40 + 2 * 20 + 3


def test_an_attempt_without_a_price_keeps_what_it_was_booked_with() -> None:
    rest = Charge()
    rest.add(0, {"input": 9})
    plan = plan_of(USAGE, rest, Sum(), [attempt(0, 400, 0, Usage(input=1), price=None)])

    assert [(nanos, usage) for _, nanos, usage in plan.shared] == [(400, Usage(input=9))]


def test_rounded_costs_are_no_alarm_within_their_rounding() -> None:
    from gateway.ledger.exports.anthropic_costs import FORMAT

    rest = Charge()
    for _ in range(2):
        rest.add_nanos(10_000_000, {}, 1)
    near = model_day(GROUP, "m", rest, Sum(nanos=29_000_000), plan_of(FORMAT, rest, Sum(), []))
    far = model_day(GROUP, "m", rest, Sum(nanos=31_000_000), plan_of(FORMAT, rest, Sum(), []))

    assert (near.is_alarm, far.is_alarm) == (False, True)


def test_more_than_one_percent_is_an_alarm() -> None:
    rest = Charge()
    rest.add_nanos(100_000, {}, 1)
    plan = plan_of(COSTS, rest, Sum(), [])

    def is_alarm(ours: int) -> bool:
        return model_day(GROUP, "m", rest, Sum(nanos=ours), plan).is_alarm

    assert [is_alarm(nanos) for nanos in (99_000, 98_999, 101_000, 101_001)] == [
        False, True, False, True,
    ]  # fmt: skip
