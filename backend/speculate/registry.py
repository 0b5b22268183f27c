"""Name → draft method. A method is one file under `proposers/` and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend.config import EngineConfig
from backend.errors import SetupError
from backend.models.interface import CausalModel
from backend.speculate.proposers import dflash, dspark, eagle3
from backend.speculate.proposers.draft_model import DraftModelProposer
from backend.speculate.proposers.lookup_first import SUFFIX, with_lookup
from backend.speculate.proposers.ngram import NgramProposer
from backend.speculate.proposers.none import NoProposer
from backend.speculate.proposers.suffix import SuffixProposer
from backend.speculate.protocol import Proposer

PROPOSERS: Mapping[str, Callable[[CausalModel, EngineConfig], Proposer]] = {
    "none": NoProposer,
    "ngram": NgramProposer,
    "suffix": SuffixProposer,
    "draft_model": DraftModelProposer.make,
    "eagle3": eagle3.make,
    "dflash": dflash.make,
    "dspark": dspark.make,
    "eagle3+ngram": with_lookup(eagle3.make),
    "dflash+ngram": with_lookup(dflash.make),
    "dspark+ngram": with_lookup(dspark.make),
}

# Methods whose draft is a head, trained for one target.
HEAD_METHODS = (eagle3.Eagle3Proposer.name, dflash.DFlashProposer.name, dspark.DSparkProposer.name)


def head_method(name: str) -> str | None:
    """The head that a method drafts with, "dspark" of "dspark+ngram"; None for one without."""
    method = name.removesuffix(SUFFIX)
    return method if method in HEAD_METHODS else None


# Tokens a round where nobody says how many: the best measured for SmolLM2 on one core. What was
# looked up costs nothing and is right in long runs or not at all; the target's products take up to
# six rows at a time; each further token of EAGLE-3 costs a pass of its own.
NUM_DRAFTS: Mapping[str, int] = {
    "none": 0,
    **dict.fromkeys(("ngram", "suffix", "eagle3+ngram", "dflash+ngram", "dspark+ngram"), 5),
    **dict.fromkeys(("dflash", "dspark"), 4),
    "eagle3": 3,
}
NUM_DRAFTS_OTHERS = 4


def make_proposer(model: CausalModel, config: EngineConfig) -> Proposer:
    """Raises SetupError for a name that is not known, and for what the method misses."""
    check_method(config.proposer)
    return PROPOSERS[config.proposer](model, config)


def check_method(name: str) -> None:
    """Raises SetupError for a name that is not known."""
    if name not in PROPOSERS:
        raise SetupError(
            f"there is no draft method {name!r}; known: {', '.join(sorted(PROPOSERS))}"
        )
