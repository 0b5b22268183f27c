"""The sizes a step may have: everything is padded up to one of these."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from backend.config import EngineConfig, ShapeSet
from backend.errors import SetupError

_PADDING_SHARE = 8  # padding of up to an eighth of a prompt costs less than a step more


@dataclass(frozen=True, slots=True)
class Shapes:
    """A `ShapeSet` made fit for one engine: sorted, bounded, and never empty."""

    decode_batches: tuple[int, ...]
    prefill_lens: tuple[int, ...]
    table_widths: tuple[int, ...]  # the last one holds the whole context

    @classmethod
    def of(cls, config: EngineConfig, context_len_max: int) -> Shapes:
        """Raises SetupError where no step could hold all sequences and a piece of a prompt."""
        given = config.shapes
        batches = {each for each in given.decode_batches if 0 < each < config.sequences_max}
        num_decode_rows = config.sequences_max * (1 + config.num_drafts_max)
        lens = {each for each in given.prefill_lens if 0 < each <= config.rows_max}
        if not lens or num_decode_rows + min(lens) > config.rows_max:
            raise SetupError(
                f"rows_max is {config.rows_max}, but {config.sequences_max} sequences with "
                f"{config.num_drafts_max} drafts each take {num_decode_rows} rows, and a prompt "
                f"needs {min(given.prefill_lens, default=1)} beside them; raise rows_max or lower "
                "sequences_max"
            )
        return cls(
            decode_batches=(*sorted(batches), config.sequences_max),
            prefill_lens=tuple(sorted(lens)),
            table_widths=_widths(given, -(-context_len_max // config.block_size)),
        )

    def batch(self, num_sequences: int) -> int:
        """The batch that so many decoding sequences are padded to."""
        return self.decode_batches[bisect_left(self.decode_batches, num_sequences)]

    def width(self, num_blocks: int) -> int:
        """The width that block tables of so many blocks are padded to."""
        return self.table_widths[bisect_left(self.table_widths, num_blocks)]

    def chunk(self, num_tokens: int, num_rows: int) -> tuple[int, int] | None:
        """How many of a prompt's tokens to take into the rows left, and the rows that they use.

        The rest of a prompt is padded only where that adds little; else a piece that fills its rows
        exactly comes first. None: no room.
        """
        rows = next((each for each in self.prefill_lens if each >= num_tokens), num_rows + 1)
        padding_max = max(self.prefill_lens[0] - 1, num_tokens // _PADDING_SHARE)
        if rows <= num_rows and rows - num_tokens <= padding_max:
            return num_tokens, rows
        full = bisect_right(self.prefill_lens, min(num_rows, num_tokens))
        if full:
            return self.prefill_lens[full - 1], self.prefill_lens[full - 1]
        return (num_tokens, rows) if rows <= num_rows else None


def _widths(given: ShapeSet, num_blocks: int) -> tuple[int, ...]:
    """Powers of two if none are declared; the whole context is always one of them."""
    declared = given.table_widths or tuple(1 << power for power in range(num_blocks.bit_length()))
    return (*sorted(each for each in declared if 0 < each < num_blocks), num_blocks)
