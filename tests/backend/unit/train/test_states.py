"""States on disk are bit by bit those of the teacher, whatever a run that was killed left there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from backend.config import DType
from backend.models.interface import FeatureTap
from backend.models.loading import load_model
from backend.train.corpus import States, Text
from backend.train.states import StateStore, token_counts
from backend.train.teacher import Teacher
from kernels.dispatch import select
from tests.support.engine_world import Tiny, random_prompt, tiny_engine_config
from tests.support.tiny_checkpoints import CONTEXT

PLENTY = 1 << 30
TAPS = (FeatureTap(1, "in"), FeatureTap(2, "in"))


class Reading(Teacher):
    """Notes what it had to compute."""

    def __init__(self, target: Tiny, taps: Sequence[FeatureTap] = TAPS) -> None:
        super().__init__(
            target.model, taps, context_len=CONTEXT, rows_max=32, device=torch.device("cpu")
        )
        self.read_texts: list[tuple[int, ...]] = []

    def read(self, token_ids: Sequence[int]) -> States:
        self.read_texts.append(tuple(token_ids))
        return super().read(token_ids)


@dataclass
class Disk:
    """A folder, and what the states of each text truly are."""

    target: Tiny
    folder: Path
    taps: Sequence[FeatureTap] = TAPS
    truth: dict[tuple[int, ...], States] = field(default_factory=dict)

    def open(self, *, key: str = "k", bytes_max: int = PLENTY) -> tuple[StateStore, Reading]:
        teacher = Reading(self.target, self.taps)
        return StateStore(self.folder, teacher, key, bytes_max), teacher

    def check(self, store: StateStore, texts: Sequence[Text]) -> None:
        """Bit by bit."""
        for text, found in zip(texts, store.of_all(texts), strict=True):
            if text.token_ids not in self.truth:
                self.truth[text.token_ids] = Reading(self.target, self.taps).read(text.token_ids)
            expected = self.truth[text.token_ids]
            assert found.features.dtype is expected.features.dtype
            assert torch.equal(found.features, expected.features)
            assert torch.equal(found.last, expected.last)

    @property
    def data(self) -> Path:
        (found,) = self.folder.glob("*/states.bin")
        return found

    @property
    def index(self) -> Path:
        (found,) = self.folder.glob("*/states.jsonl")
        return found


@pytest.fixture
def disk(target: Tiny, tmp_path: Path) -> Disk:
    return Disk(target, tmp_path)


def some_texts(seed: int, *lengths: int) -> list[Text]:
    rng = random.Random(seed)
    return [Text("k", tuple(random_prompt(rng, size)), (11, 12, 13)) for size in lengths]


TEXTS = some_texts(0, 9, 30, 12)
MORE = some_texts(1, 14, 40)


def test_each_text_is_computed_once(disk: Disk) -> None:
    store, teacher = disk.open()

    disk.check(store, TEXTS)
    disk.check(store, TEXTS[::-1])

    assert teacher.read_texts == [text.token_ids for text in TEXTS]


def test_another_run_reads_what_is_there_and_adds_to_it(disk: Disk) -> None:
    disk.check(disk.open()[0], TEXTS)
    store, teacher = disk.open()

    disk.check(store, [*TEXTS, *MORE])
    assert teacher.read_texts == [text.token_ids for text in MORE]

    store, teacher = disk.open()
    disk.check(store, [*MORE, *TEXTS])
    assert teacher.read_texts == []


def test_trainings_of_two_heads_share_what_either_computes(disk: Disk) -> None:
    (one, first), (other, second) = disk.open(), disk.open()
    a, b, c = TEXTS

    disk.check(one, [a])
    disk.check(other, [a, b])
    disk.check(one, [b, c, *MORE])
    disk.check(other, [c, *MORE, a])

    assert first.read_texts == [each.token_ids for each in (a, c, *MORE)]
    assert second.read_texts == [b.token_ids]
    late, third = disk.open()
    disk.check(late, [*MORE, *TEXTS])
    assert third.read_texts == []


def test_bfloat16_is_kept_as_it_is(target: Tiny, tmp_path: Path) -> None:
    config = tiny_engine_config(dtype=DType.BFLOAT16)
    model = load_model(target.directory, config, ops=select("cpu", "reference")).model
    disk = Disk(Tiny(target.directory, target.reference, model), tmp_path)
    store, teacher = disk.open()
    assert teacher.dtype is torch.bfloat16

    disk.check(store, TEXTS)
    disk.check(disk.open()[0], TEXTS)

    num_rows = sum(map(len, TEXTS))
    assert disk.data.stat().st_size == num_rows * teacher.columns * 2


def test_half_a_text_behind_the_index_is_written_over(disk: Disk) -> None:
    disk.check(disk.open()[0], TEXTS)
    with disk.data.open("ab") as file:
        file.write(b"\xff" * 1001)

    store, teacher = disk.open()
    disk.check(store, [*TEXTS, *MORE])
    assert teacher.read_texts == [text.token_ids for text in MORE]

    store, teacher = disk.open()
    disk.check(store, [*TEXTS, *MORE])
    assert teacher.read_texts == []


@pytest.mark.parametrize("left", ["half", "all but its end", "too short", "zeros"])
def test_a_broken_last_line_of_the_index_costs_that_text_alone(disk: Disk, left: str) -> None:
    disk.check(disk.open()[0], TEXTS)
    content = disk.index.read_bytes()
    *_, last = content.splitlines(keepends=True)
    broken = {
        "half": last[: len(last) // 2],
        "all but its end": last[:-1],
        "too short": b'["0a1b", 3]\n',
        "zeros": b"\0" * 40,
    }[left]
    disk.index.write_bytes(content[: -len(last)] + broken)

    store, teacher = disk.open()
    disk.check(store, [*TEXTS, *MORE])
    assert TEXTS[0].token_ids not in teacher.read_texts
    assert set(teacher.read_texts) <= {text.token_ids for text in (TEXTS[2], *MORE)}

    # What was computed then is found by every later run.
    store, teacher = disk.open()
    disk.check(store, [*TEXTS, *MORE])
    assert teacher.read_texts == []


def test_an_index_of_data_that_is_gone_is_not_believed(disk: Disk) -> None:
    """Neither now nor when other texts have come to lie in that place."""
    disk.check(disk.open()[0], TEXTS)
    first = len(TEXTS[0]) * Reading(disk.target).columns * 4
    with disk.data.open("r+b") as file:
        file.truncate(first + 100)

    store, _ = disk.open()
    disk.check(store, MORE)
    store, teacher = disk.open()
    disk.check(store, TEXTS)

    assert teacher.read_texts == [text.token_ids for text in TEXTS[1:]]


@pytest.mark.parametrize("missing", ["data", "index"])
def test_one_file_without_the_other_is_nothing(disk: Disk, missing: str) -> None:
    disk.check(disk.open()[0], TEXTS)
    (disk.data if missing == "data" else disk.index).unlink()

    store, teacher = disk.open()
    disk.check(store, TEXTS)
    assert len(teacher.read_texts) == len(TEXTS)
    assert disk.open()[0].of(TEXTS[0]).last.shape[0] == len(TEXTS[0])


def test_what_does_not_fit_is_computed_each_time(disk: Disk) -> None:
    row_bytes = Reading(disk.target).columns * 4
    limit = (len(TEXTS[0]) + len(TEXTS[2])) * row_bytes
    store, teacher = disk.open(bytes_max=limit)

    disk.check(store, TEXTS)
    disk.check(store, TEXTS)

    # The second one is too large for what is left, the third is not.
    assert disk.data.stat().st_size == limit
    assert teacher.read_texts == [each.token_ids for each in (*TEXTS, TEXTS[1])]
    store, teacher = disk.open(bytes_max=limit)
    disk.check(store, TEXTS)
    assert teacher.read_texts == [TEXTS[1].token_ids]


def test_no_room_at_all_keeps_nothing(disk: Disk) -> None:
    store, teacher = disk.open(bytes_max=0)

    disk.check(store, TEXTS[:1])
    disk.check(store, TEXTS[:1])

    assert len(teacher.read_texts) == 2
    assert disk.data.stat().st_size == disk.index.stat().st_size == 0


def test_another_key_starts_anew_and_leaves_the_other_s(disk: Disk) -> None:
    disk.check(disk.open(key="one")[0], TEXTS)
    store, teacher = disk.open(key="two")

    disk.check(store, TEXTS)

    assert len(teacher.read_texts) == len(TEXTS)
    for key in ("one", "two"):
        store, teacher = disk.open(key=key)
        disk.check(store, TEXTS)
        assert teacher.read_texts == []


def test_other_features_under_the_same_key_are_computed_anew(target: Tiny, tmp_path: Path) -> None:
    Disk(target, tmp_path).open()[0].of_all(TEXTS)
    other = Disk(target, tmp_path, taps=(FeatureTap(2, "in"),))
    store, teacher = other.open()

    other.check(store, TEXTS)
    assert len(teacher.read_texts) == len(TEXTS)

    store, teacher = other.open()
    other.check(store, TEXTS)
    assert teacher.read_texts == []


def test_tokens_that_the_target_wrote_are_counted() -> None:
    texts = [Text("k", (5, 5, 5), (1, 2, 2)), Text("k", (3,), (2, 0)), Text("k", (4,), ())]

    assert token_counts(texts, 7).tolist() == [1, 1, 3, 0, 0, 0, 0]
