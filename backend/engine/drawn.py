"""The tokens of a step on their way from the device to the host: the one wait of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.engine.interface import TokenLogprob
from backend.sampling.sampler import Sampled
from backend.sampling.verify import Verified


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step drew, still on the device: of the decode group, and first tokens of answers."""

    decodes: Verified | None
    prompts: Sampled | None


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Of one sequence; `logprobs` is empty if nobody in the step asked for any."""

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] = ()
    num_drafted: int = 0


def fetch(drawn: Drawn) -> tuple[list[DrawnTokens], list[DrawnTokens]]:
    """(decode group with its padding, prompts), in the order of their rows. Waits for the device.

    What went wrong there comes out here.
    """
    decodes = [] if drawn.decodes is None else _rows_of(drawn.decodes)
    prompts = [] if drawn.prompts is None else _rows_of(_as_verified(drawn.prompts))
    return decodes, prompts


def _as_verified(sampled: Sampled) -> Verified:
    """One token a row."""

    def column(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.unsqueeze(1)

    return Verified(
        tokens=sampled.tokens.unsqueeze(1),
        num_tokens=torch.ones_like(sampled.tokens),
        logprobs=column(sampled.logprobs),
        top_ids=column(sampled.top_ids),
        top_logprobs=column(sampled.top_logprobs),
    )


def _rows_of(verified: Verified) -> list[DrawnTokens]:
    # Counts and tokens in one transfer.
    columns = [verified.num_tokens.unsqueeze(1), verified.tokens]
    if verified.num_drafted is not None:
        columns.append(verified.num_drafted.unsqueeze(1))
    rows = torch.cat(columns, 1).tolist()
    tokens = [row[1 : 1 + row[0]] for row in rows]
    drafted = [0 if verified.num_drafted is None else row[-1] for row in rows]
    if verified.logprobs is None or verified.top_ids is None or verified.top_logprobs is None:
        return [DrawnTokens(each, (), num) for each, num in zip(tokens, drafted, strict=True)]
    logprobs = verified.logprobs.tolist()
    top_ids, top_logprobs = verified.top_ids.tolist(), verified.top_logprobs.tolist()
    return [
        DrawnTokens(
            each,
            [
                TokenLogprob(
                    token_id,
                    logprobs[row][place],
                    tuple(zip(top_ids[row][place], top_logprobs[row][place], strict=True)),
                )
                for place, token_id in enumerate(each)
            ],
            drafted[row],
        )
        for row, each in enumerate(tokens)
    ]
