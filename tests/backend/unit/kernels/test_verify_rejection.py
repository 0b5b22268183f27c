"""Rejection sampling by enumeration: what comes out has the target's distribution, exactly.

Probabilities are sixths, so that every threshold a uniform is compared with is k / n with n ≤ 6.
Then 60 uniforms in the middles of 60 steps stand for all of them: counting is integrating.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from kernels.reference.residual_pick import residual_pick
from kernels.reference.verify_rejection import verify_rejection

V, N, GRID = 3, 2, 60
STEPS = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
DRAFTS = list(product(range(V), repeat=N))
TEMPERATURE = 0.5


class World:
    """A target p and a draft q, each a distribution after every prefix."""

    def __init__(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        prefixes = [p for length in range(N + 1) for p in product(range(V), repeat=length)]
        self.p = {prefix: self.sixths(random) for prefix in prefixes}
        self.q = {prefix: self.sixths(random) for prefix in prefixes}

    @staticmethod
    def sixths(random: torch.Generator) -> Tensor:
        thrown = torch.randint(0, V, (6,), generator=random)
        return torch.bincount(thrown, minlength=V).double() / 6

    def logits(self, drafts: tuple[int, ...]) -> Tensor:
        rows = [self.p[drafts[:length]] for length in range(N + 1)]
        return (torch.stack(rows).log() * TEMPERATURE).float()

    def draft_probs(self, drafts: tuple[int, ...]) -> Tensor:
        return torch.stack([self.q[drafts[:length]] for length in range(N)]).float()

    def chance(self, tokens: tuple[int, ...]) -> float:
        """Of the target, to say these tokens."""
        result = 1.0
        for place, token in enumerate(tokens):
            result *= float(self.p[tokens[:place]][token])
        return result


def of_counts(
    world: World, drafts: tuple[int, ...], num_valid: int, probs: Tensor | None
) -> Tensor:
    """How probable each count of accepted drafts is."""
    u = torch.cartesian_prod(STEPS, STEPS)
    size = u.shape[0]
    counts = verify_rejection(
        world.logits(drafts).expand(size, -1, -1),
        torch.tensor(drafts).expand(size, -1),
        torch.full((size,), num_valid),
        u,
        temperature=torch.full((size,), TEMPERATURE),
        draft_probs=None if probs is None else probs.expand(size, -1, -1),
    )
    return torch.bincount(counts, minlength=N + 1).double() / size


def of_token(
    world: World, drafts: tuple[int, ...], accepted: int, num_valid: int, probs: Tensor | None
) -> Tensor:
    """How probable each token after `accepted` drafts is."""
    given = torch.tensor([x if i < num_valid else -1 for i, x in enumerate(drafts)])
    tokens = residual_pick(
        world.logits(drafts).expand(GRID, -1, -1),
        torch.full((GRID,), accepted),
        STEPS,
        temperature=torch.full((GRID,), TEMPERATURE),
        draft_ids=given.expand(GRID, -1),
        draft_probs=None if probs is None else probs.expand(GRID, -1, -1),
    )
    return torch.bincount(tokens, minlength=V).double() / GRID


def said(
    world: World, drafts: tuple[int, ...], num_valid: int, probs: Tensor | None
) -> dict[tuple[int, ...], float]:
    """Every continuation of N + 1 tokens: what a round gives, and the target for the rest."""
    result = dict.fromkeys(product(range(V), repeat=N + 1), 0.0)
    for accepted, chance in enumerate(of_counts(world, drafts, num_valid, probs).tolist()):
        if not chance:
            continue
        picked = of_token(world, drafts, accepted, num_valid, probs).tolist()
        for rest in product(range(V), repeat=N - accepted):
            for token in range(V):
                tokens = (*drafts[:accepted], token, *rest)
                share = chance * picked[token]
                for place in range(accepted + 1, N + 1):
                    share *= float(world.p[tokens[:place]][tokens[place]])
                result[tokens] += share
    return result


def check(world: World, got: dict[tuple[int, ...], float]) -> None:
    assert got == pytest.approx({tokens: world.chance(tokens) for tokens in got}, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_valid", [0, 1, 2])
def test_drafts_drawn_from_q_leave_the_targets_distribution(seed: int, num_valid: int) -> None:
    world = World(seed)
    total = dict.fromkeys(product(range(V), repeat=N + 1), 0.0)

    for drafts in DRAFTS:
        chance = float(world.q[()][drafts[0]] * world.q[drafts[:1]][drafts[1]])
        if chance:
            for tokens, share in said(world, drafts, num_valid, world.draft_probs(drafts)).items():
                total[tokens] += chance * share

    check(world, total)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_valid", [0, 1, 2])
def test_any_one_draft_leaves_the_targets_distribution(seed: int, num_valid: int) -> None:
    world = World(seed)

    for drafts in DRAFTS:
        check(world, said(world, drafts, num_valid, None))


def test_acceptance_is_what_the_distributions_share() -> None:
    world = World(1)
    p, q = world.p[()], world.q[()]

    accepted = sum(
        float(q[x]) * float(of_counts(world, (x, 0), 1, world.draft_probs((x, 0)))[1])
        for x in range(V)
    )

    assert accepted == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-12)


def greedy_case() -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.randn(4, 4, 50, generator=torch.Generator().manual_seed(2))
    best = logits.argmax(dim=2)
    drafts = best[:, :3].clone()
    drafts[1, 1] += 1  # wrong at the second place
    drafts[2, 0] -= 1
    return logits, drafts % 50, best


@pytest.mark.parametrize("temperature", [None, torch.zeros(4)])
def test_greedy_accepts_what_it_would_have_said(temperature: Tensor | None) -> None:
    logits, drafts, best = greedy_case()
    num_valid, u = torch.tensor([3, 3, 3, 2]), torch.rand(4, 3)

    accepted = verify_rejection(logits, drafts, num_valid, u, temperature=temperature)
    tokens = residual_pick(logits, accepted, u[:, 0], temperature=temperature, draft_ids=drafts)

    assert accepted.tolist() == [3, 1, 0, 2]
    assert torch.equal(tokens, best.gather(1, accepted[:, None])[:, 0])


def test_greedy_and_drawn_sequences_share_a_batch() -> None:
    logits, drafts, _ = greedy_case()
    num_valid, u = torch.full((4,), 3), torch.rand(4, 3)
    mixed = torch.tensor([0.0, 1.5, 0.0, 1.5])

    def run(temperature: Tensor) -> tuple[Tensor, Tensor]:
        counts = verify_rejection(logits, drafts, num_valid, u, temperature=temperature)
        given = {"temperature": temperature, "draft_ids": drafts}
        return counts, residual_pick(logits, counts, u[:, 0], **given)

    for got, greedy, warm in zip(
        run(mixed), run(torch.zeros(4)), run(torch.full((4,), 1.5)), strict=True
    ):
        assert torch.equal(got, torch.where(mixed == 0.0, greedy, warm))


def test_results_are_written_where_they_are_wanted() -> None:
    logits, drafts, _ = greedy_case()
    counts, tokens = torch.full((4,), -9), torch.full((4,), -9)

    accepted = verify_rejection(logits, drafts, torch.full((4,), 3), torch.rand(4, 3), out=counts)
    picked = residual_pick(logits, accepted, torch.rand(4), out=tokens)

    assert accepted is counts
    assert picked is tokens
    assert (counts >= 0).all()
    assert (tokens >= 0).all()


def test_no_drafts_means_none_accepted_and_a_token_of_the_target() -> None:
    world = World(0)
    logits = world.logits((0, 0))[:1].expand(GRID, -1, -1)
    hot = torch.full((GRID,), TEMPERATURE)
    nothing = torch.empty(GRID, 0, dtype=torch.int64)

    accepted = verify_rejection(
        logits, nothing, torch.zeros(GRID).long(), torch.empty(GRID, 0), temperature=hot
    )
    tokens = residual_pick(logits, accepted, STEPS, temperature=hot, draft_ids=nothing)

    assert accepted.unique().tolist() == [0]
    got = torch.bincount(tokens, minlength=V).double() / GRID
    torch.testing.assert_close(got, world.p[()])


def test_residual_without_mass_falls_back_to_the_target() -> None:
    # q = p: nothing can be rejected but by rounding; then the token still comes from p.
    world = World(3)
    logits = world.logits((0, 0)).expand(GRID, -1, -1)
    same = torch.softmax(logits.double() / TEMPERATURE, dim=2)[:, :N].clamp(min=0)

    tokens = residual_pick(
        logits,
        torch.zeros(GRID).long(),
        STEPS,
        temperature=torch.full((GRID,), TEMPERATURE),
        draft_ids=torch.zeros(GRID, N).long(),
        draft_probs=same + 1e-9,
    )

    got = torch.bincount(tokens, minlength=V).double() / GRID
    torch.testing.assert_close(got, world.p[()])
