"""Bookkeeping of a draft's blocks against a model of what lies in them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.speculate.draft_blocks import LANES_KEPT_MAX, DraftBlocks, Lane, _common

BLOCK_SIZE = 4
SLOTS = st.integers(1, 4)
TOKENS = st.integers(0, 1)  # few, so that texts begin alike
TENANTS = st.sampled_from([b"", b"a"])


class Machine(RuleBasedStateMachine):
    """Sequences come, grow and go; `content` says which text a row was computed from."""

    @initialize(num_blocks=st.integers(6, 20), lookahead=st.integers(0, 1))
    def start(self, num_blocks: int, lookahead: int) -> None:
        self.blocks = DraftBlocks(num_blocks, BLOCK_SIZE, lookahead)
        self.lookahead = lookahead
        self.texts: dict[int, list[int]] = {}
        self.shared: dict[int, int] = {}
        self.content: dict[tuple[int, int], tuple[bytes, tuple[int, ...]]] = {}

    @rule(
        slot=SLOTS,
        tenant=TENANTS,
        data=st.data(),
        more=st.lists(TOKENS, min_size=3, max_size=10),
        share=st.sampled_from([0, 2, 4, 4]),
    )
    def come(
        self, slot: int, tenant: bytes, data: st.DataObject, more: list[int], share: int
    ) -> None:
        """Often a conversation that goes on."""
        known = [list(lane.tokens) for lane in self.lanes()]
        text = [*data.draw(st.sampled_from([[], *known])), *more][:20]
        if slot in self.texts:
            self.go(slot)
        start = (len(text) - 2) * share // 4
        lane, copy = self.blocks.begin(slot, tenant, text[: start + 1], start)
        if copy is not None:
            for row in range(BLOCK_SIZE):
                found = self.content.get((copy.source, row))
                self.content.pop((copy.target, row), None)
                if found is not None:
                    self.content[copy.target, row] = found
        self.texts[slot] = text
        self.shared[slot] = lane.num_rows
        assert lane.num_rows + lane.gap == start
        self.show(slot, lane, start)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), more=st.lists(TOKENS, min_size=1, max_size=5))
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        slot = data.draw(st.sampled_from(sorted(self.texts)))
        lane = self.blocks.lane(slot)
        assert lane is not None
        shown = len(self.texts[slot]) - 1
        self.texts[slot] += more
        self.show(slot, lane, shown)

    def show(self, slot: int, lane: Lane, start: int) -> None:
        """Rows of positions `start` and on are written; drafts scribble behind them."""
        text = self.texts[slot]
        if self.blocks.reach(lane, len(text) + 2):
            for position in range(start, len(text) + 2):
                place = position - lane.gap
                where = (lane.blocks[place // BLOCK_SIZE], place % BLOCK_SIZE)
                fed = tuple(text[: position + 1 + self.lookahead])
                is_true = position < len(text) - 1
                self.content[where] = (lane.tenant if is_true else b"draft", fed)
        self.blocks.note(lane, text, len(text) - 1)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.go(data.draw(st.sampled_from(sorted(self.texts))))

    @rule(chance=st.integers(0, 9))
    def fail(self, chance: int) -> None:
        if chance:
            return  # it ends everything, so not too often
        assert sorted(self.blocks.lose_all()) == sorted(self.texts)

    def go(self, slot: int) -> None:
        self.blocks.end(slot)
        del self.texts[slot]

    @invariant()
    def every_true_row_was_computed_from_its_own_text(self) -> None:
        for slot, lane in self.blocks._lanes.items():
            self.check_rows(lane, self.shared[slot])
        for lane in self.blocks._kept.values():
            assert lane.gap == 0
            self.check_rows(lane, 0)

    def check_rows(self, lane: Lane, num_shared: int) -> None:
        """Between the shared rows and the lane's own ones lies the gap."""
        for row in range(lane.num_rows):
            position = row if row < num_shared else row + lane.gap
            fed = tuple(lane.tokens[: position + 1 + self.lookahead])
            where = (lane.blocks[row // BLOCK_SIZE], row % BLOCK_SIZE)
            assert self.content[where] == (lane.tenant, fed)

    @invariant()
    def blocks_are_counted(self) -> None:
        held = [block for lane in self.lanes() for block in lane.blocks]
        counts = [held.count(block) for block in range(self.blocks.num_blocks)]
        assert self.blocks._ref_counts == counts
        free = [block for block, count in enumerate(counts) if count == 0 and block]
        assert sorted(self.blocks._free) == free
        assert counts[0] == 0
        assert len(self.blocks._kept) <= LANES_KEPT_MAX
        assert all(lane.num_rows == 0 for lane in self.lanes() if lane.is_lost)

    def lanes(self) -> list[Lane]:
        return [*self.blocks._lanes.values(), *self.blocks._kept.values()]


Machine.TestCase.settings = settings(stateful_step_count=30)
TestDraftBlocks = Machine.TestCase


def test_the_longest_beginning_is_found() -> None:
    blocks = DraftBlocks(30, BLOCK_SIZE, lookahead=1)
    for slot, text in ((1, [1, 2, 3, 4, 9, 9, 9, 9]), (2, [1, 2, 3, 4, 5, 6, 7, 8])):
        lane, _ = blocks.begin(slot, b"", text, 0)
        blocks.reach(lane, len(text))
        blocks.note(lane, text, len(text) - 1)

    lane, copy = blocks.begin(3, b"", [1, 2, 3, 4, 5, 6, 7, 0], 7)

    # Six of seven rows: the seventh looked ahead to another token.
    assert (lane.num_rows, lane.gap) == (6, 1)
    donor = blocks.lane(2)
    assert donor is not None
    assert lane.blocks[0] == donor.blocks[0]
    assert copy is not None
    assert (copy.source, copy.target) == (donor.blocks[1], lane.blocks[1])
    assert lane.blocks[1] != donor.blocks[1]


@given(one=st.lists(TOKENS, max_size=12), other=st.lists(TOKENS, max_size=12))
def test_common_beginning(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1

    assert _common(one, other) == expected
