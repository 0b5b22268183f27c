"""The sizes a step may have: everything is padded up to one of these."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from backend.config import EngineConfig, ShapeSet
from backend.errors import SetupError

PIECES_MAX = 2  # of one prompt in one step


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

    def pieces(self, num_tokens: int, num_rows: int) -> list[tuple[int, int]]:
        """How a prompt of so many tokens goes into the rows left: (tokens, rows) of each piece.

        One padded piece, or one that fills its rows exactly and a padded one for the rest where
        that saves rows; of a longer prompt as much as fills its rows. Empty: no room.
        """
        whole = self._padded(num_tokens, num_rows)
        full = self._filled(num_tokens, num_rows)
        if full in (0, num_tokens):
            return [] if whole is None else [(num_tokens, whole)]
        rest = self._padded(num_tokens - full, num_rows - full)
        # A piece more is worth its trouble from the smallest length on.
        if whole is not None and (rest is None or whole <= full + rest + self.prefill_lens[0]):
            return [(num_tokens, whole)]
        if rest is not None:
            return [(full, full), (num_tokens - full, rest)]
        more = self._filled(num_tokens - full, num_rows - full)
        return [(full, full), (more, more)] if more else [(full, full)]

    def _filled(self, num_tokens: int, num_rows: int) -> int:
        """The largest length that the tokens fill, if the rows hold it; else 0."""
        return max(
            (each for each in self.prefill_lens if each <= min(num_tokens, num_rows)), default=0
        )

    def _padded(self, num_tokens: int, num_rows: int) -> int | None:
        """The smallest length that holds the tokens, if the rows hold it."""
        fitting = (each for each in self.prefill_lens if num_tokens <= each <= num_rows)
        return next(fitting, None)


def _widths(given: ShapeSet, num_blocks: int) -> tuple[int, ...]:
    """Powers of two if none are declared; the whole context is always one of them."""
    declared = given.table_widths or tuple(1 << power for power in range(num_blocks.bit_length()))
    return (*sorted(each for each in declared if 0 < each < num_blocks), num_blocks)
