"""Blocks: shared where the text is the same, evicted oldest first, never shared by mistake."""

from __future__ import annotations

import pytest

from backend.engine.block_manager import BlockCopy, BlockManager, BlockTable, OutOfBlocks

SIZE = 4


def manager(num_usable: int = 8, **given: object) -> BlockManager:
    return BlockManager(num_usable + 1, SIZE, **given)  # type: ignore[arg-type]


def computed(blocks: BlockManager, token_ids: list[int], tenant: bytes = b"") -> BlockTable:
    """A table whose tokens are all computed and published."""
    table = blocks.new_table(tenant)
    blocks.admit(table, token_ids, len(token_ids))
    blocks.publish(table, token_ids, len(token_ids))
    return table


def num_cached(blocks: BlockManager, token_ids: list[int], tenant: bytes = b"") -> int:
    """What would be found of a text; nothing is kept."""
    table = blocks.new_table(tenant)
    found = blocks.admit(table, token_ids, len(token_ids)).num_cached
    blocks.release(table)
    return found


def test_block_0_is_never_handed_out() -> None:
    blocks = manager(3)
    table = blocks.new_table(b"")

    assert blocks.grow(table, 3 * SIZE)
    assert sorted(table.blocks) == [1, 2, 3]
    assert not blocks.grow(table, 3 * SIZE + 1)
    assert sorted(table.blocks) == [1, 2, 3]


def test_growing_takes_all_or_nothing() -> None:
    blocks = manager(3)
    table = blocks.new_table(b"")

    assert not blocks.grow(table, 4 * SIZE)
    assert (table.blocks, blocks.num_free) == ([], 3)


def test_a_prefix_is_shared_while_it_is_in_use_and_afterwards() -> None:
    blocks = manager()
    text = list(range(10))
    first = computed(blocks, text)

    second = blocks.new_table(b"")
    assert blocks.admit(second, [*text[:8], 99], 9).num_cached == 8
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    assert blocks.num_used == 4
    blocks.release(first)
    blocks.release(second)

    assert blocks.num_used == 0
    assert num_cached(blocks, text) == 8


def test_a_block_that_is_not_full_is_not_shared() -> None:
    blocks = manager()
    table = blocks.new_table(b"")
    blocks.admit(table, [1, 2, 3, 4, 5, 6], 6)
    blocks.publish(table, [1, 2, 3, 4, 5, 6], 3)

    assert num_cached(blocks, [1, 2, 3, 4, 5, 6]) == 0

    blocks.publish(table, [1, 2, 3, 4, 5, 6], 6)
    assert num_cached(blocks, [1, 2, 3, 4, 5, 6]) == 4


def test_tenants_and_other_beginnings_share_nothing() -> None:
    blocks = manager()
    computed(blocks, [1, 2, 3, 4, 5, 6, 7, 8], b"a")

    assert num_cached(blocks, [1, 2, 3, 4, 9], b"b") == 0
    assert num_cached(blocks, [5, 6, 7, 8, 9], b"a") == 0
    assert num_cached(blocks, [1, 2, 3, 4, 9], b"a") == 4


def test_a_text_known_to_its_end_gets_a_copy_of_its_last_block() -> None:
    blocks = manager()
    text = list(range(8))
    first = computed(blocks, text)

    second = blocks.new_table(b"")
    given = blocks.admit(second, text, 9)

    assert given.num_cached == 7
    assert given.copy == BlockCopy(first.blocks[1], second.blocks[1])
    assert second.blocks[0] == first.blocks[0]
    assert blocks.is_own(second, 1)
    assert not blocks.is_own(first, 1)


def test_without_room_for_a_copy_the_last_block_is_computed_again() -> None:
    blocks = manager(3)
    text = list(range(8))
    blocks.release(computed(blocks, text))

    table = blocks.new_table(b"")
    given = blocks.admit(table, text, 12)

    assert (given.num_cached, given.copy) == (4, None)
    assert len(set(table.blocks)) == 3


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    blocks = manager(4)
    text = list(range(8))
    first = computed(blocks, text)
    table = blocks.new_table(b"")

    assert blocks.num_needed(table, [*text, 1, 2, 3], 17) == 3
    with pytest.raises(OutOfBlocks):
        blocks.admit(table, [*text, 1, 2, 3], 17)

    assert table.blocks == []
    assert (blocks.num_free, blocks.ref_count(first.blocks[0])) == (2, 1)


def test_the_longest_unused_is_evicted_first_and_ends_before_beginnings() -> None:
    blocks = manager(4)
    old, new = [1] * 8, [2] * 8
    for text in (old, new):
        blocks.release(computed(blocks, text))
    assert num_cached(blocks, [*old, 0]) == 8  # used again: now the other one is older
    taken = blocks.new_table(b"")

    blocks.grow(taken, SIZE)
    found_after_one = num_cached(blocks, [*new[:7], 0]), num_cached(blocks, [*new[:4], 0])
    blocks.grow(taken, 2 * SIZE)

    assert found_after_one == (4, 4)
    assert num_cached(blocks, [*old[:4], 0]) == 4
    assert taken.blocks != []


def test_blocks_without_content_go_before_known_ones() -> None:
    blocks = manager(4)
    text = list(range(8))
    blocks.release(computed(blocks, text))
    table = blocks.new_table(b"")

    blocks.grow(table, 2 * SIZE)

    assert num_cached(blocks, text) == 7 - 3 * (blocks.num_free < 3)


def test_a_collision_of_digests_is_not_taken_for_a_hit() -> None:
    """A hash that gives every content the same digest."""
    blocks = manager(digest=lambda parent, content: b"same")
    first = computed(blocks, [1, 2, 3, 4, 5])

    assert num_cached(blocks, [6, 7, 8, 9, 5]) == 0
    assert num_cached(blocks, [1, 2, 3, 4, 6]) == 4
    second = computed(blocks, [6, 7, 8, 9, 1, 2, 3, 4, 5])
    assert not second.is_publishable
    blocks.release(first)
    blocks.release(second)
    assert blocks.num_used == 0


def test_digests_differ_from_process_to_process() -> None:
    one, other = manager(), manager()

    assert one.new_table(b"").digests != other.new_table(b"").digests


def test_the_prefix_cache_can_be_turned_off() -> None:
    blocks = manager(is_prefix_cached=False)
    blocks.release(computed(blocks, [1, 2, 3, 4, 5]))

    assert num_cached(blocks, [1, 2, 3, 4, 5]) == 0


def test_a_fork_copies_the_block_that_it_writes_to() -> None:
    blocks = manager()
    table = blocks.new_table(b"")
    blocks.admit(table, [1, 2, 3, 4, 5, 6], 6)

    fork = blocks.fork(table, 6)
    copy = blocks.make_writable(fork, 1)

    assert copy == BlockCopy(table.blocks[1], fork.blocks[1])
    assert fork.blocks[0] == table.blocks[0]
    assert blocks.make_writable(fork, 1) is None
    blocks.release(table)
    assert blocks.num_used == 2
    assert blocks.make_writable(fork, 0) is None
    blocks.release(fork)
    assert blocks.num_used == 0


def test_a_fork_without_room_changes_nothing() -> None:
    blocks = manager(1)
    table = blocks.new_table(b"")
    blocks.admit(table, [1, 2], 2)
    fork = blocks.fork(table, 2)

    with pytest.raises(OutOfBlocks):
        blocks.make_writable(fork, 0)

    assert fork.blocks == table.blocks
    assert blocks.ref_count(table.blocks[0]) == 2


def test_a_second_computation_of_a_known_block_stays_its_owner_s() -> None:
    """Two tables computed the same text at once: one is known by it, both are given back."""
    blocks = manager()
    text = [1, 2, 3, 4, 5]
    tables = [blocks.new_table(b""), blocks.new_table(b"")]
    for table in tables:
        blocks.admit(table, text, 5)
    for table in tables:
        blocks.publish(table, text, 5)

    assert blocks.num_used == 4
    for table in tables:
        blocks.release(table)
    assert blocks.num_used == 0
    assert num_cached(blocks, text) == 4
