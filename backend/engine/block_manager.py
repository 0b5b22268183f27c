"""Who holds which blocks of the key-value cache, and which of them hold a known prefix.

A block is *in use* (reference count above 0) or free. A free block is *cached* if it still holds
the keys of a known prefix: then it can be taken up again by its digest, and it is handed out for
other work only when no plain free block is left, least recently freed first. Block 0 is never
handed out: padding rows write there.

The digest of a full block chains the tenant's salt, the digest of the block before and the block's
token ids (prefix caching as in vLLM's design document); a hit counts only if the token ids are the
same. The hash is keyed by a secret of this process, so that nobody can make prompts that collide.
"""

from __future__ import annotations

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

Digest = Callable[[bytes, bytes], bytes]

_DIGEST_BYTES = 32


def keyed_digest(secret: bytes) -> Digest:
    """(digest of the block before, content) → digest."""
    make = partial(blake2b, key=secret, digest_size=_DIGEST_BYTES)
    return lambda parent, content: make(parent + content).digest()


class OutOfBlocks(Exception):
    """No free block is left; nothing was changed."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence in order, and the digests of its full blocks as far as known.

    `digests[i]` names the first i blocks; entry 0 is the tenant's root. Token ids are only ever
    appended, so the digests stay true when the blocks are given back.
    """

    digests: list[bytes]
    blocks: list[int] = field(default_factory=list)
    num_published: int = 0  # full blocks that the cache has been told of
    is_publishable: bool = True  # False once a digest met other token ids


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The content of `source` must be in `target` before anything is written this step."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """`num_cached` tokens need no computing."""

    num_cached: int
    copy: BlockCopy | None = None


@dataclass(slots=True, eq=False)
class _Block:
    ref_count: int = 0
    digest: bytes | None = None  # while its content is known
    token_ids: tuple[int, ...] = ()


class BlockManager:
    """All bookkeeping of blocks; not one of its methods touches a tensor."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        is_prefix_cached: bool = True,
        digest: Digest | None = None,
    ) -> None:
        """`num_blocks` with block 0 among them. `digest` is for tests of collisions."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._is_prefix_cached = is_prefix_cached
        self._digest = digest or keyed_digest(secrets.token_bytes(_DIGEST_BYTES))
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, 0, -1))  # without content; the next one last
        self._cached_free: OrderedDict[int, None] = OrderedDict()  # the next to be evicted first
        self._by_digest: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones among them."""
        return len(self._free) + len(self._cached_free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def ref_count(self, block: int) -> int:
        return self._blocks[block].ref_count

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def new_table(self, tenant: bytes) -> BlockTable:
        return BlockTable([self._digest(b"", tenant)])

    def num_needed(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> int:
        """Free blocks that `admit` would take up, cached ones of the prefix among them."""
        return self._plan(table, token_ids, num_tokens)[1]

    def admit(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> Admitted:
        """Gives an empty table the blocks for `num_tokens`, known ones where the prefix is cached.

        At least the last token stays to be computed. If the cache knows all of them, the last block
        is taken as a copy, since the token computed again must not be written into a shared block.
        Raises OutOfBlocks.
        """
        assert not table.blocks
        prefix, num_needed = self._plan(table, token_ids, num_tokens)
        if num_needed > self.num_free:
            raise OutOfBlocks
        for block in prefix:
            self._take(block)
        table.blocks.extend(prefix)
        table.num_published = len(prefix)
        num_cached = min(len(prefix) * self.block_size, len(token_ids) - 1)
        copy = None
        if num_cached < len(prefix) * self.block_size:
            copy = self.make_writable(table, len(prefix) - 1)
        has_grown = self.grow(table, num_tokens)
        assert has_grown
        return Admitted(num_cached, copy)

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Blocks for `num_tokens` in all; False, and nothing changed, where too few are free."""
        num_missing = self.blocks_for(num_tokens) - len(table.blocks)
        if num_missing > self.num_free:
            return False
        for _ in range(num_missing):
            table.blocks.append(self._new())
        return True

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Lets others share the blocks that are full of computed tokens now."""
        num_full = num_computed // self.block_size
        if not self._is_prefix_cached or num_full <= table.num_published:
            return
        self._extend_digests(table, token_ids, num_full)
        for index in range(table.num_published, num_full):
            if not table.is_publishable:
                break
            self._publish_one(table, index, self._ids_of(token_ids, index))
        table.num_published = num_full

    def release(self, table: BlockTable) -> None:
        """Gives all blocks back at once; what they hold stays known until they are needed."""
        # The last one first: a block is evicted before the one that its digest chains from.
        for block in reversed(table.blocks):
            self._drop(block)
        table.blocks.clear()
        table.num_published = 0

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A second table that shares the first `num_tokens`, all of them computed.

        The first table may go on writing behind them; whoever fills the second one asks
        `make_writable` for the block of its first own token.
        """
        blocks = table.blocks[: self.blocks_for(num_tokens)]
        for block in blocks:
            self._take(block)
        num_full = num_tokens // self.block_size
        return BlockTable(
            digests=table.digests[: num_full + 1],
            blocks=blocks,
            num_published=min(table.num_published, num_full),
            is_publishable=table.is_publishable,
        )

    def is_own(self, table: BlockTable, index: int) -> bool:
        """Whether nobody else can read the block: it may be written."""
        block = self._blocks[table.blocks[index]]
        return block.ref_count == 1 and block.digest is None

    def make_writable(self, table: BlockTable, index: int) -> BlockCopy | None:
        """Copy on write: a block of one's own in place of a shared or a known one.

        None: it was the table's own already. Raises OutOfBlocks.
        """
        if self.is_own(table, index):
            return None
        if self.num_free == 0:
            raise OutOfBlocks
        source, target = table.blocks[index], self._new()
        table.blocks[index] = target
        table.num_published = min(table.num_published, index)
        self._drop(source)
        return BlockCopy(source, target)

    def _plan(
        self, table: BlockTable, token_ids: Sequence[int], num_tokens: int
    ) -> tuple[list[int], int]:
        """The cached blocks to share, and how many free blocks it takes in all."""
        prefix = self._match(table, token_ids)
        num_blocks = self.blocks_for(num_tokens)
        num_needed = num_blocks - self._num_in_use(prefix)
        if prefix and len(prefix) * self.block_size == len(token_ids):
            if num_needed < self.num_free:
                return prefix, num_needed + 1
            # No room for the copy of the last block: compute its tokens again instead.
            prefix.pop()
            num_needed = num_blocks - self._num_in_use(prefix)
        return prefix, num_needed

    def _num_in_use(self, blocks: Sequence[int]) -> int:
        return sum(self._blocks[block].ref_count > 0 for block in blocks)

    def _match(self, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
        found: list[int] = []
        if not self._is_prefix_cached:
            return found
        for index in range(len(token_ids) // self.block_size):
            self._extend_digests(table, token_ids, index + 1)
            block = self._by_digest.get(table.digests[index + 1])
            if block is None or self._blocks[block].token_ids != self._ids_of(token_ids, index):
                break
            found.append(block)
        return found

    def _extend_digests(self, table: BlockTable, token_ids: Sequence[int], num_full: int) -> None:
        for index in range(len(table.digests) - 1, num_full):
            content = array("q", self._ids_of(token_ids, index)).tobytes()
            table.digests.append(self._digest(table.digests[index], content))

    def _ids_of(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(token_ids[index * self.block_size : (index + 1) * self.block_size])

    def _publish_one(self, table: BlockTable, index: int, token_ids: tuple[int, ...]) -> None:
        digest = table.digests[index + 1]
        known = self._by_digest.get(digest)
        if known is None:
            block = self._blocks[table.blocks[index]]
            block.digest, block.token_ids = digest, token_ids
            self._by_digest[digest] = table.blocks[index]
        elif self._blocks[known].token_ids != token_ids:
            table.is_publishable = False

    def _new(self) -> int:
        """A free block without content; the caller has asked that there is one."""
        if self._free:
            number = self._free.pop()
        else:
            number, _ = self._cached_free.popitem(last=False)
            self._forget(number)
        self._blocks[number].ref_count = 1
        return number

    def _take(self, number: int) -> None:
        block = self._blocks[number]
        if block.ref_count == 0:
            del self._cached_free[number]
        block.ref_count += 1

    def _drop(self, number: int) -> None:
        block = self._blocks[number]
        assert block.ref_count > 0
        block.ref_count -= 1
        if block.ref_count:
            return
        if block.digest is None:
            self._free.append(number)
        else:
            self._cached_free[number] = None

    def _forget(self, number: int) -> None:
        block = self._blocks[number]
        if block.digest is not None:
            del self._by_digest[block.digest]
        block.digest, block.token_ids = None, ()
