"""Ahead-of-time compiles: what is recorded, what is judged, and every op's main case for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cases import table
from kernels.cases.case import Call
from kernels.ops.launching import BUFFER_BYTES_MAX
from kernels.specs import OPS
from kernels.targets import BY_ARCH, find
from kernels.tools import aot, budgets
from kernels.tools.aot import Report, Row
from kernels.tools.budgets import (
    ALLOWANCES,
    BUDGETS,
    Allowance,
    Budget,
    Measured,
    judged,
    waves_min,
)
from kernels.tools.compiling import triton_version
from kernels.tools.occupancy import Occupancy
from kernels.tools.recipes import (
    Job,
    Plan,
    Planned,
    Recipe,
    has_caches,
    launches_of,
    plan,
    recipes,
    with_large_caches,
)
from kernels.tools.resources import Resources
from tests.support.source_tree import ROOT

BUDGETED = ("gfx942", "gfx950")
MAIN_S_MAX = 240.0
BUDGET = Budget(vgpr_spills_max=0, scratch_bytes_max=0, waves_min={128: 3.0, 512: 1.0})
GOOD = Resources(
    *(16_384, ("v_mfma_f32_16x16x16_bf16",), 4),
    vgprs=120,
    vgpr_spills=0,
    scratch_bytes=0,
    waves=Occupancy(4.0, 4.0, 4.0),
)


def main_recipe(op: str, arch: str = "gfx942") -> Recipe:
    return next(each for each in recipes([arch], ops=[op], is_main_only=True))


def verdicts(resources: Resources, allowances: Sequence[Allowance] = (), **more: Any) -> list[str]:
    measured = Measured(main_recipe("paged_attention"), "attention_part", resources)
    return [each.message for each in judged([measured], BUDGET, allowances, **more)]


def allowance(limit: str, allowed: float, **more: str) -> Allowance:
    given = {"op": "paged_attention", "kernel": "attention_part", "arch": "gfx942", **more}
    return Allowance(limit=limit, allowed=allowed, reason="a reason", **given)


# What is recorded


def test_recipes_are_each_serving_case_on_each_chip_in_each_type() -> None:
    found = recipes(BUDGETED)
    cases = {(case.op, case.name): case for case in table.cases() if case.is_serving}

    assert {(each.op, each.case) for each in found} == set(cases)
    assert {each.arch for each in found} == set(BUDGETED)
    assert (
        len(found)
        == len(set(found))
        == 2 * sum(len(case.dtypes) * (2 if has_caches(case) else 1) for case in cases.values())
    )


def test_main_recipes_are_one_case_an_op() -> None:
    found = recipes(["gfx942"], is_main_only=True)

    assert [op for op in table.ops()] == list(dict.fromkeys(each.op for each in found))
    assert all(table.find(each.op, each.case).size == "main" for each in found)


def test_unknown_names_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no cases of swiglu; ops with cases: "):
        recipes(["gfx942"], ops=["swiglu"])
    with pytest.raises(ValueError, match="no target 'gfx1100'"):
        recipes(["gfx1100"])


def test_large_pools_are_beyond_a_buffers_reach_and_change_nothing_else() -> None:
    k_cache = torch.empty(4, 8, 16, 128, dtype=torch.bfloat16, device="meta")
    q = torch.empty(1, 32, 128, dtype=torch.bfloat16, device="meta")
    call = Call((q, k_cache), {"v_cache": k_cache, "scale": 0.1})

    large = with_large_caches("paged_attention", call)

    assert large.args[0] is q
    assert large.kwargs["scale"] == 0.1
    for cache in (large.args[1], large.kwargs["v_cache"]):
        assert cache.shape[1:] == k_cache.shape[1:]
        assert cache.numel() * cache.itemsize > BUFFER_BYTES_MAX


def test_attention_over_a_large_pool_is_promised_no_reach() -> None:
    near = main_recipe("paged_attention")
    far = replace(near, is_large=True)

    def reaches(recipe: Recipe) -> dict[str, bool]:
        launch = next(each for each in launches_of(recipe) if "k_cache" in each.signature)
        return {
            parameter.name: ["tt.pointer_range", 32] in launch.attrs.get((parameter.num,), [])
            for parameter in launch.kernel.params
            if parameter.name in ("q", "k_cache", "v_cache")
        }

    assert reaches(far) == {"q": True, "k_cache": False, "v_cache": False}
    assert reaches(near)["q"]


def test_equal_launches_are_compiled_once_for_all_that_have_them() -> None:
    recipe = main_recipe("paged_attention")
    once = plan([recipe])
    [first, *_] = once.planned

    both = plan([recipe, recipe, replace(recipe, arch="gfx950")])

    assert len(both.planned) == 2 * len(once.planned)
    assert first.used_by == [recipe]
    assert {each.job.recipe.arch for each in both.planned} == set(BUDGETED)


def test_case_that_cannot_be_recorded_is_told_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = main_recipe("paged_attention")
    bad = replace(good, case="no such case")

    found = plan([bad, good])

    assert list(found.failures) == [bad]
    assert "no case 'no such case' of paged_attention" in found.failures[bad]
    assert found.planned


# What is judged


def test_within_its_budget_nothing_is_said() -> None:
    assert verdicts(GOOD) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vgpr_spills": 1}, "vgpr_spills is 1; at most 0"),
        ({"scratch_bytes": 8}, "scratch_bytes is 8; at most 0"),
        ({"lds_bytes": 65_537}, "lds_bytes is 65537; at most 65536"),
        ({"waves": Occupancy(2.0, 2.0, 4.0)}, "waves is 2; at least 3"),
        ({"matrix": ()}, "no matrix instruction in any of its kernels"),
    ],
)
def test_each_limit_is_held(change: dict[str, Any], message: str) -> None:
    assert verdicts(replace(GOOD, **change)) == [message]


def test_allowance_lets_its_own_figure_pass_and_no_more() -> None:
    spilling = replace(GOOD, vgpr_spills=4)

    assert verdicts(spilling, [allowance("vgpr_spills", 4)]) == []
    assert "vgpr_spills is 4; at most 0" in verdicts(spilling, [allowance("vgpr_spills", 3)])
    slow = replace(GOOD, waves=Occupancy(2.0, 2.0, 4.0))
    assert verdicts(slow, [allowance("waves", 2)]) == []
    assert "waves is 2; at least 3" in verdicts(slow, [allowance("waves", 3)])


@pytest.mark.parametrize(
    "other", [{"op": "moe_matmul"}, {"kernel": "attention_sum"}, {"case": "another"}]
)
def test_allowance_of_another_does_not_help(other: dict[str, str]) -> None:
    found = verdicts(replace(GOOD, vgpr_spills=1), [allowance("vgpr_spills", 9, **other)])

    assert "vgpr_spills is 1; at most 0" in found


def test_allowance_that_nothing_needs_is_a_breach_where_all_was_compiled() -> None:
    idle = [allowance("vgpr_spills", 4)]

    assert verdicts(GOOD, idle) == ["its allowance for vgpr_spills is not needed: remove it"]
    assert verdicts(GOOD, idle, is_whole=False) == []
    assert verdicts(GOOD, [allowance("waves", 2, arch="gfx950")]) == []  # not compiled here


def test_every_allowance_has_a_reason_and_names_what_exists() -> None:
    for version, allowances in ALLOWANCES.items():
        assert version in BUDGETS
        for each in allowances:
            assert len(each.reason) > 20
            assert each.op in table.ops()
            assert not find(each.arch).is_compile_only
            assert each.limit in ("vgpr_spills", "scratch_bytes", "lds_bytes", "waves")


def test_waves_are_asked_of_decode_and_verify_by_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"query_len": 1, "head_dim": 128}

    def call_of(case: object, recipe: Recipe) -> Call:
        q = torch.empty(4, 8, sizes["head_dim"], device="meta")
        return Call((q,), {"query_len": sizes["query_len"]})

    monkeypatch.setattr(budgets, "call_of", call_of)
    recipe = main_recipe("paged_attention")

    def asked(query_len: int, head_dim: int) -> float:
        sizes.update(query_len=query_len, head_dim=head_dim)
        return waves_min(recipe, BUDGET)

    assert [asked(1, 64), asked(8, 128), asked(16, 128)] == [3.0, 3.0, 3.0]
    assert [asked(8, 256), asked(1, 512)] == [1.0, 1.0]
    assert asked(256, 128) == 0.0  # a prompt


def test_every_case_of_decode_and_verify_has_waves_asked_of_it() -> None:
    """In every type: a case may make its cache in the chip's own fp8, so it must know the chip."""
    found = {each: waves_min(each, BUDGET) for each in recipes(BUDGETED, ops=["paged_attention"])}

    assert {0.0, 1.0, 3.0} == set(found.values())
    assert all(waves for each, waves in found.items() if "decode" in each.case)


def test_chips_that_are_compiled_for_only_have_no_budget() -> None:
    recipe = main_recipe("paged_attention", "gfx1201")
    measured = Measured(recipe, "attention_part", replace(GOOD, vgpr_spills=99))

    assert judged([measured], BUDGET, ()) == []
    assert BY_ARCH["gfx1201"].is_compile_only


def test_report_names_everything_that_is_wrong() -> None:
    recipe = main_recipe("paged_attention")
    planned = [Planned(Job(recipe, index), f"kernel_{index}", 4, [recipe]) for index in (0, 1)]
    rows = [
        Row(planned[0], replace(GOOD, vgpr_spills=2), "", 1.0),
        Row(planned[1], None, "no end after 60 s; it was killed", 60.0),
    ]
    made = Plan(planned, {replace(recipe, case="other"): "ValueError: no"}, [])
    measured = [Measured(recipe, "kernel_0", replace(GOOD, vgpr_spills=2))]
    report = Report(rows, made, judged(measured, BUDGET, ()), 61.0)

    text = aot.shown(report)

    assert not report.is_good
    assert f"not compiled: gfx942 {recipe.shown} kernel_1: no end after 60 s" in text
    assert "not recorded: gfx942 paged_attention/other" in text
    assert "kernel_0: vgpr_spills is 2; at most 0" in text
    assert "NOT within budget" in text.splitlines()[-1]
    read = json.loads(aot.as_json(report))
    assert [row["error"] for row in read["rows"]] == ["", "no end after 60 s; it was killed"]


def test_budgets_are_of_the_triton_that_is_installed() -> None:
    assert triton_version() in BUDGETS


def test_other_triton_is_refused_until_it_has_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "triton_version", lambda: "9.9.9")

    with pytest.raises(ValueError, match=r"no budgets for triton 9\.9\.9, only for 3\.7\.1"):
        aot.run(["gfx942"])


# And for real


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_main_case_of_every_op_compiles_within_its_budget(tmp_path: Path) -> None:
    file = tmp_path / "aot.json"
    command = [sys.executable, "-m", "kernels", "aot", "--main", "--json", str(file)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
        timeout=MAIN_S_MAX,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kernels: 50 of " in done.stderr
    rows = json.loads(file.read_text())["rows"]
    compiled = {(row["arch"], case.split("/")[0]) for row in rows for case in row["cases"]}
    ops = {op.name for op in OPS} - table.TORCH_OPS
    assert compiled == {(arch, op) for arch in BUDGETED for op in ops}
    for row in rows:
        resources = row["resources"]
        # The compiler counts registers as we do, where a workgroup has a wave for each SIMD.
        if resources["num_warps"] == 4:
            assert resources["waves"]["by_registers"] == resources["compilers_waves"], row
