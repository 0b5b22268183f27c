"""Suffix decoding: what followed in this text, else what most often followed in earlier answers.

After Oliaro et al., SuffixDecoding (2024), with the measured change that the text itself goes
first: it is looked up as in `ngram`, and only where it knows nothing the tree of the tenant's
earlier answers is asked. A draft is as long as the match that it rests on and two tokens more, and
ends where it has become improbable.

The tree holds answers, never prompts, and each tenant has its own: what one was answered speeds up
nobody else. Still the timing of a request tells its own tenant what was answered before, so the
method has to be asked for. Memory is bounded; the tenant that asked longest ago loses its oldest
answers first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.config import EngineConfig
from backend.models.interface import CausalModel, FeatureTap
from backend.speculate.proposers.ngram import TRUSTED_MORE, NgramIndex
from backend.speculate.protocol import Proposal, ProposeInput
from backend.speculate.suffix_tree import SuffixTree
from backend.speculate.text import proposal_of

CONTEXT_LENS = (8, 5, 4, 3, 2, 1)
MATCH_LEN_MAX = 8
DEPTH = 2 * MATCH_LEN_MAX + TRUSTED_MORE
POOLS_MAX = 256  # tenants; one costs a little even if it has nothing left
CHANCE_MIN = 0.1  # of a draft, by its own and all the counts before it


@dataclass(slots=True, eq=False)
class _Answer:
    """One answer as far as it is known; suffixes [num_removed, num_added) are in the tree."""

    number: int
    tokens: list[int] = field(default_factory=list)
    num_added: int = 0
    num_removed: int = 0
    is_whole: bool = False

    @property
    def num_held(self) -> int:
        return self.num_added - self.num_removed


class AnswerPool:
    """The earlier answers of one tenant."""

    def __init__(self) -> None:
        self._tree = SuffixTree(DEPTH)
        self._answers: dict[int, _Answer] = {}  # by number: the oldest first
        self._num_begun = 0

    @property
    def num_tokens(self) -> int:
        """Suffixes that are known: about 500 bytes each."""
        return self._tree.num_suffixes

    def begin(self) -> _Answer:
        answer = _Answer(self._num_begun)
        self._answers[answer.number] = answer
        self._num_begun += 1
        return answer

    def extend(self, answer: _Answer, tokens: Sequence[int], *, is_whole: bool = False) -> int:
        """How many suffixes came in. What may still change by tokens to come waits for them."""
        answer.tokens.extend(tokens)
        end = len(answer.tokens) - (0 if is_whole else DEPTH - 1)
        num_before = answer.num_added
        for start in range(num_before, end):
            self._tree.add(answer.tokens, start)
        answer.num_added = max(num_before, end)
        answer.is_whole = is_whole
        self._drop_empty(answer)
        return answer.num_added - num_before

    def forget_one(self) -> bool:
        """The oldest suffix of the oldest answer that has one; False where there is none."""
        for answer in self._answers.values():
            if answer.num_held:  # else it is being written, and nothing of it has come in yet
                self._tree.remove(answer.tokens, answer.num_removed)
                answer.num_removed += 1
                self._drop_empty(answer)
                return True
        return False

    def _drop_empty(self, answer: _Answer) -> None:
        if answer.is_whole and not answer.num_held:
            del self._answers[answer.number]

    def find(self, text: Sequence[int], num_drafts: int) -> list[int]:
        """What most often followed the longest known end of the text."""
        match = self._tree.longest(text, MATCH_LEN_MAX)
        if match is None:
            return []
        drafts: list[int] = []
        chance = 1.0
        for token, count, total in self._tree.following(match):
            # One more than were seen: what was seen once is not certain.
            chance *= count / (total + 1)
            if chance < CHANCE_MIN or len(drafts) == min(num_drafts, match.length + TRUSTED_MORE):
                break
            drafts.append(token)
        return drafts


@dataclass(slots=True)
class _Writing:
    """A sequence that decodes."""

    tenant: bytes
    text: Sequence[int]  # grows while it is answered
    index: NgramIndex
    pool: AnswerPool
    answer: _Answer
    num_known: int  # tokens of the text that are the prompt or in the answer


class SuffixProposer:
    name = "suffix"
    num_drafts_max = MATCH_LEN_MAX + TRUSTED_MORE
    taps: tuple[FeatureTap, ...] = ()

    def __init__(self, model: CausalModel, config: EngineConfig) -> None:
        self._tokens_max = config.suffix_tokens_max
        self._num_tokens = 0
        self._pools: OrderedDict[bytes, AnswerPool] = OrderedDict()  # the next to forget first
        self._writing: dict[int, _Writing] = {}

    @property
    def num_tokens(self) -> int:
        """Of earlier answers, all tenants together."""
        return self._num_tokens

    def propose(self, given: ProposeInput) -> Proposal | None:
        drafts = []
        for row, (slot, limit) in enumerate(zip(given.slot_ids, given.limits, strict=True)):
            text = given.histories[row]
            writing = self._writing.get(slot)
            if writing is None:
                writing = self._begin(slot, given.tenants[row], text)
            writing.text = text
            self._pools.move_to_end(writing.tenant)
            writing.index.extend(text)
            self._learn(writing)
            drafts.append(self._find(writing, limit) if limit else [])
        return proposal_of(drafts, given)

    def release(self, slot: int) -> None:
        writing = self._writing.pop(slot, None)
        if writing is not None:
            self._learn(writing, is_whole=True)

    def _begin(self, slot: int, tenant: bytes, text: Sequence[int]) -> _Writing:
        pool = self._pools.setdefault(tenant, AnswerPool())
        # The prompt's last step made one token; more are there if the sequence was preempted, and
        # then they have been learnt.
        num_known = len(text) - 1
        index = NgramIndex(CONTEXT_LENS)
        writing = _Writing(tenant, text, index, pool, pool.begin(), num_known)
        self._writing[slot] = writing
        return writing

    def _find(self, writing: _Writing, limit: int) -> list[int]:
        return writing.index.find(writing.text, limit) or writing.pool.find(writing.text, limit)

    def _learn(self, writing: _Writing, *, is_whole: bool = False) -> None:
        fresh = writing.text[writing.num_known :]
        writing.num_known = len(writing.text)
        self._num_tokens += writing.pool.extend(writing.answer, fresh, is_whole=is_whole)
        while self._num_tokens > self._tokens_max and self._forget_one():
            self._num_tokens -= 1
        while len(self._pools) > POOLS_MAX and self._drop_pool():
            pass

    def _forget_one(self) -> bool:
        return any(pool.forget_one() for pool in self._pools.values())

    def _drop_pool(self) -> bool:
        """The one that was asked for longest ago, of those that nobody writes to."""
        used = {each.tenant for each in self._writing.values()}
        tenant = next((each for each in self._pools if each not in used), None)
        if tenant is None:
            return False
        self._num_tokens -= self._pools.pop(tenant).num_tokens
        return True
