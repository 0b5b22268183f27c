"""Token usage as disjoint buckets: every token a provider bills is in exactly one of them."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens by bucket. `input` excludes cached and written tokens; `output` excludes reasoning."""

    input: int = 0
    cached_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0
    audio_input: int = 0
    audio_output: int = 0
    image_input: int = 0

    @property
    def input_total(self) -> int:
        """All prompt-side tokens, as OpenAI's `prompt_tokens` counts them."""
        return (
            self.input
            + self.cached_read
            + self.cache_write_5m
            + self.cache_write_1h
            + self.audio_input
            + self.image_input
        )

    @property
    def output_total(self) -> int:
        """All completion-side tokens, reasoning included."""
        return self.output + self.reasoning + self.audio_output

    @property
    def is_zero(self) -> bool:
        return self.input_total == 0 and self.output_total == 0


BUCKETS: tuple[str, ...] = Usage.__struct_fields__
