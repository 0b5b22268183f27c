"""Every rule gives the target's distribution: exactly, over all texts of a small vocabulary.

The rules are asked as what they are, functions of uniform numbers: where they change their answer
is found by bisection, and the distances between such places are probabilities.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from backend.sampling.rejection import Drafted, Rule, block, standard
from kernels.dispatch import select
from tests.support.sampling_requests import random_logits

OPS = select("cpu", "reference")
TINY = 2.0**-60
LAST = 1.0 - 2.0**-53
NUM_HALVINGS = 53
TOLERANCE = 1e-12

Text = tuple[int, ...]


@dataclass(frozen=True)
class World:
    """A target and a draft that both look at the whole text before them."""

    vocab_size: int
    num_drafts: int
    target: dict[Text, Tensor]  # logits
    draft: dict[Text, Tensor] | None  # probabilities; None: one-hot at the token of `sure`
    sure: dict[Text, int]

    @classmethod
    def random(cls, seed: int, vocab_size: int, num_drafts: int, *, is_one_hot: bool) -> World:
        texts = [
            text
            for length in range(num_drafts + 1)
            for text in itertools.product(range(vocab_size), repeat=length)
        ]
        logits = random_logits(2, len(texts), vocab_size, seed=seed)
        # Now and then a filter takes a token out, or the draft is certain that it never comes.
        logits[0, ::3, seed % vocab_size] = -torch.inf
        others = logits[1].clone()
        others[1::4, (seed + 1) % vocab_size] = -torch.inf
        return cls(
            vocab_size,
            num_drafts,
            dict(zip(texts, logits[0], strict=True)),
            None if is_one_hot else dict(zip(texts, others.double().softmax(1), strict=True)),
            {text: int(row.argmax()) for text, row in zip(texts, others, strict=True)},
        )

    def p(self, text: Text) -> Tensor:
        return self.target[text].double().softmax(0)

    def q(self, text: Text) -> Tensor:
        if self.draft is not None:
            return self.draft[text]
        return torch.eye(self.vocab_size, dtype=torch.float64)[self.sure[text]]

    def drafts(self) -> Iterator[tuple[Text, float]]:
        """Every draft that may be drawn, with its probability."""
        for text in itertools.product(range(self.vocab_size), repeat=self.num_drafts):
            mass = 1.0
            for place, token in enumerate(text):
                mass *= float(self.q(text[:place])[token])
            if mass > 0.0:
                yield text, mass


def drafted(world: World, texts: list[Text], num_valid: int) -> Drafted:
    ends = range(world.num_drafts + 1)
    logits = [torch.stack([world.target[text[:end]] for end in ends]) for text in texts]
    probs = [torch.stack([world.q(text[:end]) for end in ends[:-1]]) for text in texts]
    return Drafted(
        logits=torch.stack(logits),
        temperature=torch.ones(len(texts), dtype=torch.float64),
        draft_ids=torch.tensor(texts),
        num_valid=torch.full((len(texts),), num_valid),
        draft_probs=None if world.draft is None else torch.stack(probs),
    )


def repeated(given: Drafted, times: int) -> Drafted:
    """All sequences, again and again."""
    return Drafted(
        logits=given.logits.repeat(times, 1, 1),
        temperature=given.temperature.repeat(times),
        draft_ids=given.draft_ids.repeat(times, 1),
        num_valid=given.num_valid.repeat(times),
        draft_probs=None if given.draft_probs is None else given.draft_probs.repeat(times, 1, 1),
    )


def bisected(is_below: Callable[[Tensor], Tensor], num: int) -> Tensor:
    """Up to where in [0, 1] decisions that fall once, from yes to no, are yes."""
    low = torch.zeros(num, dtype=torch.float64)
    high = torch.ones_like(low)
    for _ in range(NUM_HALVINGS):
        middle = ((low + high) / 2).clamp(TINY, LAST)
        yes = is_below(middle)
        low, high = torch.where(yes, middle, low), torch.where(yes, high, middle)
    # A decision that never falls, or is never yes, meets an end of the interval.
    return torch.where(low >= LAST - 2.0**-50, 1.0, torch.where(high <= 2.0**-50, 0.0, low))


def bars(rule: Rule, given: Drafted) -> Tensor:
    """[S, N]: up to which number the draft at a place stands, those before it given."""
    num, num_drafts = given.draft_ids.shape
    every = repeated(given, num_drafts)
    place = torch.arange(num_drafts).repeat_interleave(num).unsqueeze(1)

    def stands(marks: Tensor) -> Tensor:
        noise = torch.full((num * num_drafts, num_drafts + 1), LAST, dtype=torch.float64)
        noise[torch.arange(num_drafts + 1) < place] = TINY
        noise.scatter_(1, place, marks.unsqueeze(1))
        return rule(every, noise, OPS).num_accepted > place.squeeze(1)

    return bisected(stands, num * num_drafts).view(num_drafts, num).T


def numbers(rule: Rule, given: Drafted) -> Tensor:
    """[S, N + 1]: how probable it is that so many drafts stand."""
    each = bars(rule, given)
    one = torch.ones_like(each[:, :1])
    if rule is standard or given.draft_probs is None:
        chances = torch.cat((one, each.cumprod(1)), 1)
        return chances * torch.cat((1 - each, one), 1)
    # The largest place whose own number is small enough decides.
    none_behind = torch.cat(((1 - each).flip(1).cumprod(1).flip(1), one), 1)
    return none_behind * torch.cat((one, each), 1)


def behind(rule: Rule, given: Drafted, num_accepted: int) -> Tensor:
    """[S, V]: the distribution of the token behind so many accepted drafts; garbage where so many
    are never accepted."""
    (num, num_drafts), vocab_size = given.draft_ids.shape, given.logits.shape[2]
    every = repeated(given, vocab_size)
    token = torch.arange(vocab_size).repeat_interleave(num)

    def is_at_most(marks: Tensor) -> Tensor:
        noise = torch.full((num * vocab_size, num_drafts + 1), LAST, dtype=torch.float64)
        noise[:, :num_accepted] = TINY
        noise[:, -1] = marks
        return rule(every, noise, OPS).tokens <= token

    reached = bisected(is_at_most, num * vocab_size).view(vocab_size, num).T
    return reached.diff(dim=1, prepend=torch.zeros(num, 1, dtype=torch.float64))


def spoken(rule: Rule, world: World, num_valid: int) -> dict[Text, float]:
    """Every text of N + 1 tokens with its probability: the target goes on behind the round."""
    drafts = dict(world.drafts())
    given = drafted(world, list(drafts), num_valid)
    count = numbers(rule, given)
    found: dict[Text, float] = {}

    def add(text: Text, mass: float) -> None:
        if len(text) == world.num_drafts + 1:
            found[text] = found.get(text, 0.0) + mass
        elif mass > 0.0:
            for token, share in enumerate(world.p(text).tolist()):
                add((*text, token), mass * share)

    for num_accepted in range(num_valid + 1):
        last = behind(rule, given, num_accepted)
        for row, (text, mass) in enumerate(drafts.items()):
            chance = mass * float(count[row, num_accepted])
            if chance > 0.0:
                for token, share in enumerate(last[row].tolist()):
                    add((*text[:num_accepted], token), chance * share)
    assert torch.allclose(count[:, num_valid + 1 :], torch.zeros(()).double(), atol=0.0), (
        "a draft that does not count was accepted"
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize(
    ("rule", "is_one_hot"),
    [(standard, True), (standard, False), (block, False), (block, True)],
    ids=["one-hot", "standard", "block", "block-one-hot"],
)
def test_a_round_and_what_the_target_adds_are_distributed_as_the_target(
    rule: Rule, is_one_hot: bool, num_drafts: int
) -> None:
    vocab_size = 3 if num_drafts == 3 else 4
    for seed in range(2):
        world = World.random(seed, vocab_size, num_drafts, is_one_hot=is_one_hot)
        for num_valid in {num_drafts, num_drafts - 1, 0}:
            found = spoken(rule, world, num_valid)
            for text in itertools.product(range(vocab_size), repeat=num_drafts + 1):
                want = 1.0
                for place, token in enumerate(text):
                    want *= float(world.p(text[:place])[token])
                assert found.get(text, 0.0) == pytest.approx(want, abs=TOLERANCE)


def expected_accepted(rule: Rule, world: World) -> float:
    drafts = dict(world.drafts())
    given = drafted(world, list(drafts), world.num_drafts)
    count = numbers(rule, given)
    mean = (count * torch.arange(world.num_drafts + 1)).sum(1)
    return sum(mass * float(each) for mass, each in zip(drafts.values(), mean, strict=True))


@pytest.mark.slow
def test_a_block_never_accepts_fewer_and_with_one_hot_drafts_as_many() -> None:
    gains = []
    for seed in range(6):
        world = World.random(seed, 3, 3, is_one_hot=False)
        gains.append(expected_accepted(block, world) - expected_accepted(standard, world))
        sure = World.random(seed, 3, 3, is_one_hot=True)
        assert expected_accepted(block, sure) == pytest.approx(expected_accepted(standard, sure))

    assert min(gains) > -TOLERANCE
    assert max(gains) > 0.02


@pytest.mark.parametrize("rule", [standard, block])
def test_a_draft_that_is_the_target_itself_stands_whole(rule: Rule) -> None:
    """Where p is q nothing is ever rejected."""
    world = World.random(2, 4, 2, is_one_hot=False)
    same = World(4, 2, world.target, {text: world.p(text) for text in world.target}, {})
    texts = [text for text, _ in same.drafts()]
    noise = torch.full((len(texts), 3), LAST, dtype=torch.float64)

    accepted = rule(drafted(same, texts, 2), noise * (1 - 1e-9), OPS)

    assert accepted.num_accepted.tolist() == [2] * len(texts)


@pytest.mark.parametrize("rule", [standard, block])
def test_a_row_s_result_does_not_depend_on_the_others(rule: Rule) -> None:
    world = World.random(5, 4, 3, is_one_hot=False)
    texts = [text for text, _ in world.drafts()]
    whole = drafted(world, texts, 3)
    noise = torch.rand((len(texts), 4), generator=torch.Generator().manual_seed(3)).double()
    together = rule(whole, noise, OPS)
    for row in range(0, len(texts), 7):
        alone = rule(drafted(world, [texts[row]], 3), noise[row : row + 1], OPS)
        assert alone.num_accepted.tolist() == together.num_accepted[row : row + 1].tolist()
        assert alone.tokens.tolist() == together.tokens[row : row + 1].tolist()
