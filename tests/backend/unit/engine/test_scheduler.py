"""Who is computed in a step, who waits, and who has to give up what it holds."""

from __future__ import annotations

import pytest

from backend.config import EngineConfig, ShapeSet
from backend.engine.interface import Priority
from backend.engine.sequence import Sequence, Status
from backend.engine.shapes import PIECES_MAX, Shapes
from backend.errors import SetupError
from tests.support.scheduler_world import BLOCK_SIZE, SchedulerWorld, small_config

LENS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)


def world(num_blocks: int = 60, **changes: object) -> SchedulerWorld:
    return SchedulerWorld(num_blocks, small_config(**changes))


def numbers(sequences: list[Sequence]) -> list[str]:
    return [each.request_id for each in sequences]


def test_decoding_comes_first_and_prompts_take_what_is_left() -> None:
    busy = world(rows_max=16)
    for _ in range(2):
        busy.submit([1] * 4)
    busy.step([1])
    busy.submit([2] * 30)

    step = busy.step([1], num_drafts=2)

    # Two sequences with two drafts each are six rows; the ten left are filled by two pieces.
    assert (len(step.decodes), step.num_drafts) == (2, 2)
    assert [(each.num_tokens, each.num_rows) for each in step.chunks] == [(8, 8), (2, 2)]


def test_a_prompt_already_begun_goes_on_before_a_new_one() -> None:
    busy = world(rows_max=8, prefills_max=2, sequences_max=2)
    busy.submit([1] * 20)
    busy.submit([2] * 8)

    steps = [busy.step([1]) for _ in range(3)]

    assert [[each.sequence.request_id for each in step.chunks] for step in steps] == [
        ["0"],
        ["0"],
        ["0", "1"],
    ]


def test_tenants_take_turns() -> None:
    busy = world(sequences_max=1)
    for _ in range(3):
        busy.submit([1], tenant=b"a", max_tokens=1)
    busy.submit([1], tenant=b"b", max_tokens=1)
    busy.submit([1], tenant=b"c", max_tokens=1)

    order = [busy.step([1]).admitted[0].request_id for _ in range(5)]

    assert order == ["0", "3", "4", "1", "2"]


def test_a_new_tenant_does_not_wait_behind_another_s_flood() -> None:
    busy = world(sequences_max=1)
    for _ in range(50):
        busy.submit([1], tenant=b"flood", max_tokens=1)
    for _ in range(10):
        busy.step([1])
    late = busy.submit([1], tenant=b"late", max_tokens=1)

    busy.step([1])
    busy.step([1])

    assert late.status is Status.FINISHED


def test_interactive_goes_before_batch_until_batch_has_aged() -> None:
    busy = world(sequences_max=1, batch_age_s=10.0)
    for _ in range(2):
        busy.submit([1], priority=Priority.BATCH, max_tokens=1)
    for _ in range(2):
        busy.submit([1], max_tokens=1)

    first = busy.step([1]).admitted
    second = busy.step([1], seconds=20.0).admitted
    third = busy.step([1]).admitted

    assert numbers([*first, *second, *third]) == ["2", "0", "1"]


def test_an_interactive_request_takes_the_place_of_a_young_batch_request() -> None:
    busy = world(sequences_max=2)
    old, young = (busy.submit([1] * 4, priority=Priority.BATCH, max_tokens=9) for _ in range(2))
    busy.step([1])
    busy.step([1])
    urgent = busy.submit([2] * 4)

    step = busy.step([1])
    busy.check()

    assert not step.decodes  # and the old one, which keeps its place, skips this step
    assert old.status is Status.DECODE
    assert numbers(step.admitted) == [urgent.request_id]
    assert young.status is Status.WAITING
    assert busy.scheduler.num_preemptions == 1
    busy.drain(100)
    assert young.num_generated == 9


def test_prompts_of_the_batch_lane_never_make_a_step_a_long_one() -> None:
    lens = ShapeSet(decode_batches=(1, 2, 4), prefill_lens=(2, 4, 8, 40))
    busy = world(rows_max=256, batch_rows_max=16, batch_age_s=1_000.0, shapes=lens)
    for token in (4, 5, 6):
        busy.submit([token] * 40, priority=Priority.BATCH)
    rows = []
    for _ in range(12):
        step = busy.step([1])
        rows.append(sum(chunk.num_rows for chunk in step.chunks))
    assert max(rows) == 16
    assert sum(rows) >= 3 * 40

    # Who waits for an answer takes what a step has, alone, however short the prompt is.
    busy.submit([2] * 8, priority=Priority.BATCH)
    busy.submit([3] * 4)
    step = busy.step([1])
    assert sum(chunk.num_tokens for chunk in step.chunks if chunk.sequence.token_ids[0] == 3) == 4
    assert not [chunk for chunk in step.chunks if chunk.sequence.token_ids[0] == 2]


def test_the_batch_lane_skips_the_step_of_a_prompt_that_somebody_waits_for() -> None:
    busy = world(batch_age_s=20.0)
    line = busy.submit([5] * 4, max_tokens=12, priority=Priority.BATCH)
    answer = busy.submit([6] * 4, max_tokens=12)
    while not line.status is answer.status is Status.DECODE:
        busy.step([1])
    busy.submit([7] * 4)
    step = busy.step([1])
    busy.check()
    assert [chunk.sequence.token_ids[0] for chunk in step.chunks] == [7]
    assert numbers(step.decodes) == [answer.request_id]
    assert numbers(step.skipping) == [line.request_id]
    assert line.request_id in numbers(busy.step([1]).decodes)

    # One that has been here for long skips nothing more.
    busy.now_s += 20.0
    busy.submit([8] * 4)
    assert {line.request_id, answer.request_id} <= set(numbers(busy.step([1]).decodes))
    busy.drain(100)
    assert (line.num_generated, answer.num_generated) == (12, 12)


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 64),
        ({"batch_rows_max": 128}, 128),
        ({"batch_rows_max": 4_096}, 512),
        ({"rows_max": 48}, 48),
        ({"device": "cuda:0"}, 512),
    ],
)
def test_a_cpu_has_a_share_for_batch_prompts_and_a_gpu_all(
    changes: dict[str, object], rows: int
) -> None:
    assert EngineConfig(**changes).batch_rows == rows  # type: ignore[arg-type]  # by name


def test_an_aged_batch_request_keeps_its_place() -> None:
    busy = world(sequences_max=1, batch_age_s=5.0)
    batch = busy.submit([1] * 4, priority=Priority.BATCH, max_tokens=9)
    busy.step([1], seconds=0.0)
    busy.submit([2] * 4)

    busy.step([1], seconds=6.0)

    assert batch.status is Status.DECODE
    assert busy.scheduler.num_preemptions == 0


def test_nobody_is_preempted_where_that_would_not_make_room() -> None:
    busy = world(num_blocks=13, sequences_max=4)
    busy.submit([1] * 28, max_tokens=9)
    busy.step([1])
    busy.step([1])
    busy.submit([2] * 4, priority=Priority.BATCH, max_tokens=9)
    busy.step([1])
    large = busy.submit([3] * 40)

    step = busy.step([1])

    assert (len(step.decodes), step.admitted) == (2, [])
    assert large.status is Status.WAITING
    assert busy.scheduler.num_preemptions == 0


def test_without_blocks_the_youngest_of_the_least_urgent_gives_way() -> None:
    busy = world(num_blocks=10, sequences_max=4)
    oldest = busy.submit([1] * 7, max_tokens=20)
    batch = busy.submit([2] * 7, priority=Priority.BATCH, max_tokens=20)
    youngest = busy.submit([3] * 7, max_tokens=20)
    preempted: list[str] = []
    for _ in range(12):
        before = {each.request_id for each in busy.scheduler.running}
        busy.step([1])
        preempted += sorted(before - {each.request_id for each in busy.scheduler.running})

    assert preempted[:2] == [batch.request_id, youngest.request_id]
    assert oldest.num_generated >= 12
    busy.drain(200)
    busy.check()


def test_who_does_not_fit_holds_back_who_came_later() -> None:
    busy = world(num_blocks=13, sequences_max=4)
    first = busy.submit([1] * 28, max_tokens=3)
    busy.step([1])
    large = busy.submit([2] * 30)
    small = busy.submit([3] * 2)
    admitted: list[Sequence] = []
    while not admitted:
        admitted = busy.step([1]).admitted

    assert first.status is Status.FINISHED
    assert admitted[0] is large
    busy.drain(100)
    assert small.num_generated == 4


@pytest.mark.parametrize(("num_blocks", "is_admitted"), [(9, False), (10, True)])
def test_a_block_stays_free_for_each_that_runs(num_blocks: int, is_admitted: bool) -> None:
    """Two that run hold two blocks each; the third needs three, and leaves each of them one."""
    busy = world(num_blocks=num_blocks)
    for _ in range(2):
        busy.submit([1] * 6, max_tokens=2)
    busy.step([1])
    third = busy.submit([2] * 9)

    busy.step([1])

    assert (third.status is not Status.WAITING) == is_admitted
    busy.drain(50)


def test_the_queue_s_order_survives_preemption() -> None:
    busy = world(sequences_max=2)
    first = busy.submit([1] * 4, max_tokens=9)
    busy.step([1])
    for _ in range(3):
        busy.submit([1] * 4)
    busy.scheduler.preempt(first)

    assert busy.scheduler.waiting.next(Priority.INTERACTIVE, busy.now_s) is first


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "expected"),
    [
        (5, 512, [(5, 8)]),
        (8, 512, [(8, 8)]),
        (12, 512, [(12, 16)]),
        (40, 512, [(32, 32), (8, 8)]),
        (100, 512, [(96, 96), (4, 8)]),
        (126, 512, [(126, 128)]),
        (260, 512, [(256, 256), (4, 8)]),
        (260, 300, [(256, 256), (4, 8)]),
        (260, 256, [(256, 256)]),
        (260, 200, [(192, 192), (8, 8)]),
        (900, 600, [(512, 512), (64, 64)]),
        (900, 480, [(384, 384), (96, 96)]),
        (10, 12, [(8, 8)]),
        (3, 7, []),
    ],
)
def test_pieces_of_a_prompt_waste_few_rows(
    num_tokens: int, num_rows: int, expected: list[tuple[int, int]]
) -> None:
    shapes = Shapes((1,), LENS, (1,))

    assert shapes.pieces(num_tokens, num_rows) == expected


def test_every_length_makes_progress_within_the_rows() -> None:
    shapes = Shapes((1,), LENS, (1,))
    for num_tokens in range(1, 700):
        for num_rows in (8, 9, 15, 31, 100, 333, 512):
            pieces = shapes.pieces(num_tokens, num_rows)
            assert 0 < sum(taken for taken, _ in pieces) <= num_tokens
            assert sum(rows for _, rows in pieces) <= num_rows
            assert all(rows in LENS and taken <= rows for taken, rows in pieces)
            assert all(taken == rows for taken, rows in pieces[:-1])
            assert len(pieces) <= PIECES_MAX


def test_shapes_are_bounded_by_the_engine() -> None:
    config = EngineConfig(sequences_max=5, rows_max=100, block_size=BLOCK_SIZE)
    shapes = Shapes.of(config, 50)

    assert shapes.decode_batches == (1, 2, 3, 4, 5)
    assert shapes.prefill_lens == (8, 16, 32, 64, 96)
    assert shapes.table_widths == (1, 2, 4, 8, 13)
    assert [shapes.batch(each) for each in (1, 3, 5)] == [1, 3, 5]
    assert [shapes.width(each) for each in (1, 3, 9, 13)] == [1, 4, 13, 13]


def test_declared_widths_are_kept_and_the_context_added() -> None:
    config = EngineConfig(block_size=4, shapes=ShapeSet(table_widths=(3, 99)))

    assert Shapes.of(config, 50).table_widths == (3, 13)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows_max": 7},
        {"rows_max": 39, "num_drafts_max": 0},
        {"rows_max": 103, "num_drafts_max": 2},
        {"shapes": ShapeSet(prefill_lens=())},
    ],
)
def test_rows_for_all_sequences_and_a_piece_of_a_prompt_are_demanded(
    changes: dict[str, object],
) -> None:
    with pytest.raises(SetupError, match="rows_max"):
        Shapes.of(EngineConfig(**changes), 64)  # type: ignore[arg-type]
