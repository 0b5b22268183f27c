"""How many drafts would be accepted: the counts of one batch, by place in a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class PlaceCounts:
    """`at_risk[k]`: rounds whose drafts before place k were all right; `hits[k]`: and that one too.

    On greedy texts these are exactly what greedy decoding would accept.
    """

    at_risk: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)

    def add(self, other: PlaceCounts) -> None:
        missing = len(other.at_risk) - len(self.at_risk)
        self.at_risk += [0] * missing
        self.hits += [0] * missing
        for place, (risk, hit) in enumerate(zip(other.at_risk, other.hits, strict=True)):
            self.at_risk[place] += risk
            self.hits[place] += hit

    @property
    def rates(self) -> tuple[float, ...]:
        """Conditional acceptance by place."""
        pairs = zip(self.hits, self.at_risk, strict=True)
        return tuple(hit / risk if risk else 0.0 for hit, risk in pairs)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a round with all places, the target's own among them."""
        reached, length = 1.0, 1.0
        for rate in self.rates:
            reached *= rate
            length += reached
        return length


def count(places: Iterable[tuple[Tensor, Tensor]]) -> PlaceCounts:
    """`places`: (there is a token to be drafted, the draft was right), bool of one shape each."""
    made, alive = PlaceCounts(), None
    for is_there, is_hit in places:
        risk = is_there if alive is None else is_there & alive
        alive = risk & is_hit
        made.at_risk.append(int(risk.sum()))
        made.hits.append(int(alive.sum()))
    return made


def spread(values: Tensor, where: Tensor) -> Tensor:
    """`values` [N] bool back to the shape of the mask that they were taken by."""
    whole = torch.zeros_like(where)
    whole[where] = values
    return whole
