"""What of `bench` needs no GPU: statistics, the sharing of time, the order, and the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cases import table as cases
from kernels.cases.case import Call, Case, Maker, Work
from kernels.targets import find
from kernels.tools import bench
from kernels.tools.bench import Device, Progress, chosen, run, share_s, shown
from kernels.tools.ceilings import Ceilings, better
from kernels.tools.checking import checked, poisoned, relative_error
from kernels.tools.rivals import rival_of
from kernels.tools.tables import short, table
from kernels.tools.timing import ROUNDS_MAX, ROUNDS_MIN, ClockTimer, interleaved, summed_up


class Clock:
    """Seconds that pass only when something spends them."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def spends(self, seconds: float, told: list[str] | None = None, name: str = "") -> Any:
        def call(*_: Any, **__: Any) -> None:
            self.now_s += seconds
            if told is not None:
                told.append(name)

        return call


def test_median_and_quartiles_are_of_the_times() -> None:
    found = summed_up([5.0, 1.0, 2.0, 3.0, 4.0])

    assert (found.low_s, found.median_s, found.high_s, found.num_rounds) == (2.0, 3.0, 4.0, 5)
    assert summed_up([7.0]).median_s == 7.0
    with pytest.raises(ValueError, match="nothing was timed"):
        summed_up([])


def test_contenders_take_turns_and_the_order_turns_too() -> None:
    clock, told = Clock(), []
    runs = {"a": clock.spends(1.0, told, "a"), "b": clock.spends(2.0, told, "b")}

    found = interleaved(runs, ClockTimer(clock), budget_s=0.0, clock=clock)

    # No budget at all: one warm-up each, then a round, which took longer than the budget.
    assert told == ["a", "b", "a", "b"]
    assert (found["a"].median_s, found["b"].median_s) == (1.0, 2.0)

    told.clear()
    interleaved(runs, ClockTimer(clock), budget_s=21.0, clock=clock)
    # Two warm-ups each take 6 s, rounds of 3 s the other 15.
    assert "".join(told) == "aabb" + "ab" + "ba" + "ab" + "ba" + "ab"


def test_rounds_end_by_the_budget_or_at_the_most() -> None:
    clock = Clock()
    timer = ClockTimer(clock)

    quick = interleaved({"a": clock.spends(1e-6)}, timer, budget_s=10.0, clock=clock)
    slow = interleaved({"a": clock.spends(0.9)}, timer, budget_s=1.0, clock=clock)

    assert quick["a"].num_rounds == ROUNDS_MAX
    assert slow["a"].num_rounds == ROUNDS_MIN


def test_time_left_is_shared_and_what_is_saved_goes_to_the_rest() -> None:
    assert share_s(100.0, 10) == 10.0
    assert share_s(96.0, 8) == 12.0
    assert share_s(-5.0, 3) == 0.0


def test_numbers_are_short_and_columns_as_wide_as_they_must_be() -> None:
    assert [short(each) for each in (0.0, 1.2345, 123456.0, 1.5e9, 2e-5, None)] == [
        *("0", "1.23", "123456", "1.50e+09", "2.00e-05", "-"),
    ]
    assert table(("name", "us"), [("a", "1.5"), ("long name", "10")]) == (
        "name        us\n---------  ---\na          1.5\nlong name   10"
    )
    with pytest.raises(ValueError, match="1 entries for 2 headings"):
        table(("a", "b"), [("x",)])


# A small op in the place of the table's, so that what bench does to a case can be seen.


def doubling(factor: float, told: list[str]) -> Callable[..., Tensor]:
    def op(gate_up: Tensor, *, activation: str = "silu", out: Tensor | None = None) -> Tensor:
        told.append("ours")
        result = gate_up * factor
        return result if out is None else out.copy_(result)

    return op


def make(maker: Maker, dtype: torch.dtype) -> Call:
    x = maker.normal(4, 8, dtype=dtype)
    return Call((x,), {"out": torch.zeros_like(x)})


CASE = Case(
    op="gated_mul",
    name="doubled",
    size="main",
    make=make,
    work=lambda call: Work(2.0 * call.args[0].numel() * call.args[0].itemsize),
    truth=lambda call: (call.args[0].double() * 2.0,),
)


def device(clock: Clock) -> Device:
    def ticking() -> float:
        clock.now_s += 1e-3
        return clock.now_s

    timer = ClockTimer(ticking)
    return Device("cpu", "a clock", find("gfx942"), timer, clock, ceiling_sizes=(1 << 16, 16))


def placed(monkeypatch: pytest.MonkeyPatch, factor: float = 2.0) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(cases, "cases", lambda: (CASE,))
    monkeypatch.setattr(cases, "function", lambda op: doubling(factor, told))
    monkeypatch.setattr(
        bench, "rival_of", lambda op, call: ("torch.mul", lambda: call.args[0] * 2.0)
    )
    return told


def test_right_case_is_timed_against_its_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    told = placed(monkeypatch)

    progress = run([(CASE, torch.float32)], device(Clock()), limit_s=60.0)

    [result] = progress.results
    assert result.message == ""
    assert result.verdict is not None
    assert result.verdict.is_right
    assert result.ours is not None
    assert result.theirs is not None
    assert (result.rival, result.ours.num_rounds) == ("torch.mul", ROUNDS_MAX)
    assert result.ours.median_s == pytest.approx(1e-3)
    assert len(told) == 1 + 2 + ROUNDS_MAX


def test_wrong_case_is_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = placed(monkeypatch, factor=2.1)

    progress = run([(CASE, torch.float32)], device(Clock()), limit_s=60.0)

    [result] = progress.results
    assert told == ["ours"]
    assert result.ours is None
    assert result.message == "WRONG: error 0.05 of the largest value; at most 1e-05"
    text = shown(progress.results, progress.ceilings, "a clock")
    assert "gated_mul/doubled float32: WRONG" in text
    assert "1 cases, 1 wrong, 1 without times" in text


def test_what_raises_costs_its_own_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    placed(monkeypatch)
    broken = replace(CASE, name="broken", truth=lambda call: 1 / 0)

    progress = run([(broken, torch.float32), (CASE, torch.float32)], device(Clock()))

    assert progress.results[0].message.startswith("ZeroDivisionError")
    assert progress.results[1].ours is not None


def test_torch_that_cannot_do_it_leaves_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    placed(monkeypatch)

    def cannot(op: str, call: Call) -> Any:
        raise RuntimeError("not on this device")

    monkeypatch.setattr(bench, "rival_of", cannot)
    progress = run([(CASE, torch.float32)], device(Clock()))

    [result] = progress.results
    assert result.ours is not None
    assert (result.rival, result.theirs) == ("none runs", None)
    assert "none runs" in shown(progress.results, progress.ceilings, "a clock")


def test_cases_that_time_does_not_reach_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    placed(monkeypatch)
    clock = Clock()
    slow = replace(CASE, name="slow", truth=lambda call: (spend(), call.args[0].double() * 2)[1:])

    def spend() -> None:
        clock.now_s += 100.0

    wanted = [(slow, torch.float32), (CASE, torch.float32)]
    progress = run(wanted, device(clock), limit_s=60.0)

    assert progress.results[0].ours is not None
    assert progress.results[1].message == "no time was left"


def test_main_cases_come_first_and_types_are_the_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    fp8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
    served = replace(CASE, name="served", size="serving", dtypes=(torch.bfloat16, *fp8))
    small = replace(CASE, name="small", size="small")
    monkeypatch.setattr(cases, "cases", lambda: (small, served, CASE))

    def named(**more: Any) -> list[tuple[str, torch.dtype]]:
        return [(case.name, dtype) for case, dtype in chosen(find("gfx942"), **more)]

    assert named() == [
        ("doubled", torch.float32),
        ("served", torch.bfloat16),
        ("served", torch.float8_e4m3fnuz),
    ]
    assert named(is_small=True) == [("small", torch.float32)]
    with pytest.raises(ValueError, match="no cases of swiglu; ops with cases: gated_mul"):
        named(ops=["swiglu"])


def test_table_holds_a_case_against_its_ceilings() -> None:
    times = summed_up([2e-3, 2e-3, 2e-3])
    result = bench.Result(
        *("gated_mul", "doubled", "float32", None, ""),
        work=Work(4e9, 1e12, "bf16"),
        ours=times,
        rival="torch.mul",
        theirs=summed_up([3e-3]),
    )
    text = shown([result], Ceilings(bytes_s=4e12, flops_s=1e15), "chip")
    entries = text.splitlines()[-1].split()

    # 4 GB in 2 ms are 2000 GB/s, half of 4000; 1 TFLOP in 2 ms 500 TFLOP/s, half of 1000; the
    # bound is 1 ms by either.
    assert entries[-8:] == ["torch.mul", "3000", "1.50", "2000", "50%", "500", "50%", "50%"]
    assert text.splitlines()[0] == "chip: 1 cases, 0 wrong, 0 without times"


def test_json_has_what_the_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    placed(monkeypatch)
    progress = run([(CASE, torch.float32)], device(Clock()))

    read = json.loads(bench.as_json(progress.results, progress.ceilings, "chip"))

    assert read["chip"] == "chip"
    assert read["ceilings"]["bytes_s"] > 0
    assert read["results"][0]["ours"]["num_rounds"] == ROUNDS_MAX
    assert read["results"][0]["verdict"]["is_right"] is True


def test_run_that_is_cut_short_still_has_a_table() -> None:
    progress = Progress(at="gated_mul/doubled")

    assert shown(progress.results, progress.ceilings, "chip").startswith("chip: 0 cases")


def test_better_ceilings_are_the_best_of_each() -> None:
    assert better(Ceilings(1.0, 4.0), Ceilings(2.0, 3.0)) == Ceilings(2.0, 4.0)
    assert Ceilings(2.0, 4.0).time_s(4.0, 4.0) == 2.0


# Correctness first: what `checked` finds, and what it must not take for right.


def test_output_left_alone_is_wrong() -> None:
    def forgets(gate_up: Tensor, *, out: Tensor) -> Tensor:
        out[:3] = gate_up[:3] * 2.0
        return out

    found = checked(CASE, torch.float32, forgets)

    assert not found.is_right
    assert found.error != found.error  # NaN: the poison shows


@pytest.mark.parametrize(
    ("given", "wanted", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([-torch.inf, 1.0], [-torch.inf, 1.0], 0.0),
        ([torch.inf, 1.0], [-torch.inf, 1.0], torch.inf),
        ([0.0, 1e-3], [0.0, 0.0], 1e-3),
    ],
)
def test_error_is_relative_to_the_largest_value(
    given: list[float], wanted: list[float], error: float
) -> None:
    found = relative_error(torch.tensor(given), torch.tensor(wanted, dtype=torch.float64))

    assert found == pytest.approx(error)


def test_exact_cases_are_equal_or_wrong() -> None:
    def make_logits(maker: Maker, dtype: torch.dtype) -> Call:
        return Call((maker.normal(3, 16), maker.uniform(3, salt=1)), {})

    case = Case("sample", "greedy", "small", make_logits, lambda _: Work(0.0), is_exact=True)

    right = checked(case, torch.float32, lambda logits, uniforms: logits.argmax(dim=1))
    wrong = checked(case, torch.float32, lambda logits, uniforms: logits.argmin(dim=1))

    assert right.is_right
    assert wrong.message == "3 of 3 differ from the reference"


def test_case_without_truth_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a truth nor is_exact"):
        checked(replace(CASE, truth=None), torch.float32, lambda gate_up, out: out)


def test_poison_spares_outputs_that_are_inputs() -> None:
    x, own = torch.ones(2, 4), torch.ones(2, 4)
    call = Call((x, torch.ones(4)), {"eps": 1e-6, "residual_out": x, "out": own})

    poisoned("rms_norm", call)

    assert bool((x == 1).all())
    assert bool(own.isnan().all())


def test_rival_of_attention_is_torchs_own_and_agrees() -> None:
    maker = Maker("cpu")
    q = maker.normal(2 * 3, 4, 16)
    k_cache, v_cache = maker.normal(6, 2, 8, 16, salt=1), maker.normal(6, 2, 8, 16, salt=2)
    tables = maker.tensor([[3, 1], [0, 5]], dtype=torch.int32)
    lens, starts = (maker.tensor(each, dtype=torch.int32) for each in ([12, 9], [9, 6]))
    given = {"query_len": 3, "scale": 0.25}
    call = Call((q, k_cache, v_cache, tables, lens, starts), given)
    v_cache[1, :, 4:] = torch.nan  # stale, behind the first sequence's end

    name, rival = rival_of("paged_attention", call)
    reference, plain = rival_of("paged_attention", replace(call, kwargs={**given, "window": 64}))

    assert (name, reference) == ("SDPA", "reference")
    found = rival().transpose(1, 2).reshape(6, 4, 16)
    torch.testing.assert_close(found, plain(), rtol=1e-5, atol=1e-5)
