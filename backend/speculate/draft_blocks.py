"""Which blocks of a draft's own cache belong to which sequence: bookkeeping on the host.

A sequence has a *lane*: its tokens, as far as they are known here, and blocks for one row a
position. Where the target took a prefix from its cache, the draft is shown nothing of it; then the
rows of another lane with the same beginning are used: whole blocks are shared, a begun one is
copied. What no lane has is a *gap*: the rows behind it lie closer together, and the draft goes
without. Lanes of ended sequences stay until their blocks are needed, the oldest go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

LANES_KEPT_MAX = 64  # of ended sequences: each is compared with a new prompt


@dataclass(slots=True, eq=False)
class Lane:
    """Rows 0 to `num_rows` - 1 of `blocks` are true, and will not be written again."""

    tenant: bytes
    tokens: Sequence[int]
    gap: int = 0  # positions at the front without a row
    num_rows: int = 0
    blocks: list[int] = field(default_factory=list)
    is_lost: bool = False  # no blocks, or rows missing in between: no drafts for it


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The content of `source` must be in `target` before anything else is written."""

    source: int
    target: int


class DraftBlocks:
    """`lookahead`: how many tokens behind a position its row depends on (EAGLE-3 reads one)."""

    def __init__(self, num_blocks: int, block_size: int, lookahead: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._lookahead = lookahead
        self._free = list(range(num_blocks - 1, 0, -1))  # block 0 takes what padding rows write
        self._ref_counts = [0] * num_blocks
        self._lanes: dict[int, Lane] = {}
        self._kept: OrderedDict[int, Lane] = OrderedDict()  # the next to be dropped first
        self._num_kept = 0

    @property
    def num_used(self) -> int:
        """Blocks that hold something, of ended sequences too."""
        return self.num_blocks - 1 - len(self._free)

    def lane(self, slot: int) -> Lane | None:
        return self._lanes.get(slot)

    def begin(
        self, slot: int, tenant: bytes, tokens: Sequence[int], start: int
    ) -> tuple[Lane, BlockCopy | None]:
        """A sequence whose first row to come stands at `start`; `tokens` reach at least there."""
        self.end(slot)
        lane = Lane(tenant, tokens)
        donor, num_rows = self._longest(tenant, tokens, start)
        copy = None
        if donor is not None:
            copy, num_rows = self._share(lane, donor, num_rows)
        lane.num_rows = num_rows
        lane.gap = start - num_rows
        self._lanes[slot] = lane
        return lane, copy

    def reach(self, lane: Lane, num_positions: int) -> bool:
        """Blocks for so many positions. False, and no more drafts for the lane: there are none."""
        num_blocks = -(-max(0, num_positions - lane.gap) // self.block_size)
        while not lane.is_lost and len(lane.blocks) < num_blocks:
            block = self._take()
            if block is None:
                self.lose(lane)
            else:
                lane.blocks.append(block)
        return not lane.is_lost

    def note(self, lane: Lane, tokens: Sequence[int], num_positions: int) -> None:
        """The rows of the first `num_positions` positions are true now; all tokens up to them are
        in `tokens`."""
        lane.tokens = tokens
        if not lane.is_lost:
            lane.num_rows = max(lane.num_rows, num_positions - lane.gap)

    def lose(self, lane: Lane) -> None:
        """Its rows are not complete and will not become so."""
        self._give_back(lane.blocks)
        lane.blocks = []
        lane.num_rows = 0
        lane.is_lost = True

    def lose_all(self) -> Sequence[int]:
        """Of every running sequence; gives their slots."""
        for lane in self._lanes.values():
            self.lose(lane)
        return list(self._lanes)

    def end(self, slot: int) -> None:
        """The sequence has left the slot. What another one can use is kept."""
        lane = self._lanes.pop(slot, None)
        if lane is None:
            return
        num_blocks = -(-lane.num_rows // self.block_size)
        if lane.gap or lane.is_lost:
            num_blocks = 0
        self._give_back(lane.blocks[num_blocks:])
        del lane.blocks[num_blocks:]
        if not lane.blocks:
            return
        # The list may grow on: a preempted sequence comes back with it.
        lane.tokens = tuple(lane.tokens[: lane.num_rows + self._lookahead])
        self._kept[self._num_kept] = lane
        self._num_kept += 1
        if len(self._kept) > LANES_KEPT_MAX:
            self._drop_oldest()

    def _longest(self, tenant: bytes, tokens: Sequence[int], start: int) -> tuple[Lane | None, int]:
        """The lane that has the most rows of the first `start` positions of these tokens."""
        best, most = None, 0
        if start == 0:
            return best, most
        wanted = list(tokens[: start + self._lookahead])
        for lane in (*self._kept.values(), *self._lanes.values()):
            if lane.tenant != tenant or lane.gap or lane.is_lost:
                continue
            same = _common(lane.tokens, wanted)
            num_rows = min(lane.num_rows, same - self._lookahead, start)
            if num_rows > most:
                best, most = lane, num_rows
        return best, most

    def _share(self, lane: Lane, donor: Lane, num_rows: int) -> tuple[BlockCopy | None, int]:
        """Whole blocks are read by both; the last one, if only begun, is the lane's own copy."""
        num_whole, rest = divmod(num_rows, self.block_size)
        lane.blocks = donor.blocks[:num_whole]
        for block in lane.blocks:
            self._ref_counts[block] += 1
        if rest == 0:
            return None, num_rows
        source = donor.blocks[num_whole]
        self._ref_counts[source] += 1  # not to be dropped while a block is looked for
        target = self._take()
        self._give_back([source])
        if target is None:
            return None, num_rows - rest
        lane.blocks.append(target)
        return BlockCopy(source, target), num_rows

    def _take(self) -> int | None:
        while not self._free and self._kept:
            self._drop_oldest()
        if not self._free:
            return None
        block = self._free.pop()
        self._ref_counts[block] = 1
        return block

    def _drop_oldest(self) -> None:
        self._give_back(self._kept.popitem(last=False)[1].blocks)

    def _give_back(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free.append(block)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning: whole pieces are compared, smaller and smaller."""
    low, high = 0, min(len(one), len(other))
    if list(one[:high]) == list(other[:high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if list(one[low:middle]) == list(other[low:middle]):
            low = middle
        else:
            high = middle
    return low
