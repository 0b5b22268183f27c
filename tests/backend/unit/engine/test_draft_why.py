"""Each step that decodes says how many drafts it had and why; the engine counts them by reason."""

from __future__ import annotations

import random
from collections.abc import Sequence

from backend.engine.draft_why import DraftTally, DraftWhy
from backend.engine.interface import SpeculationWish
from backend.engine.scheduler import Step
from tests.backend.unit.engine.test_speculation import drafting, prompts, texts
from tests.support.drafting_world import GuessingProposer, knowing
from tests.support.engine_world import MakeWorld, Tiny, bytes_for, random_prompt


def test_an_engine_without_a_method_says_so(make_world: MakeWorld) -> None:
    world = make_world()
    world.ask(prompts(1)[0], max_tokens=4)

    told = world.engine.load().speculation

    assert (told.num_drafts_now, told.why_now) == (0, DraftWhy.NO_METHOD)
    assert told.num_steps_by_why == {}


def test_reasons_of_full_shorter_and_last_steps(tiny: Tiny, make_world: MakeWorld) -> None:
    (prompt,) = prompts(1)
    (text,) = texts(tiny, [prompt], 24)
    world = drafting(make_world, GuessingProposer(knowing([text])))
    assert world.engine.load().speculation.why_now == DraftWhy.IDLE

    world.ask(prompt, max_tokens=10)  # 1, then 4 + 4, then one alone: it needs no draft
    full = world.engine.load().speculation
    world.ask(prompt, max_tokens=8)  # 1, then 4, then 3: two drafts are all that may count
    shorter = world.engine.load().speculation

    assert full.num_steps_by_why == {"full": 2, "ending": 1}
    assert (full.num_drafts_now, full.why_now) == (0, "ending")
    assert shorter.num_steps_by_why == {"full": 3, "ending": 1, "fewer_wanted": 1}
    assert (shorter.num_drafts_now, shorter.why_now) == (2, "fewer_wanted")


def test_reasons_of_steps_without_drafts(tiny: Tiny, make_world: MakeWorld) -> None:
    (prompt,) = prompts(1)

    def silent(history: Sequence[int], num_drafts: int) -> Sequence[int]:
        return []

    def failing(history: Sequence[int], num_drafts: int) -> Sequence[int]:
        raise RuntimeError("a method of a test")

    found = []
    for guess in (silent, failing):
        world = drafting(make_world, GuessingProposer(guess))
        world.ask(prompt, max_tokens=4)
        found.append(world.engine.load().speculation.num_steps_by_why)
    world.ask(prompt, max_tokens=3, speculation=SpeculationWish(is_off=True))

    assert found == [{"nothing_found": 2, "ending": 1}, {"failed": 2, "ending": 1}]
    assert world.engine.load().speculation.num_steps_by_why["unwanted"] == 2


def test_drafts_for_which_no_block_is_free_are_told_of(tiny: Tiny, make_world: MakeWorld) -> None:
    """One token a round, so that drafts reach into a block that somebody else holds."""
    asked = [random_prompt(random.Random(seed), 8) for seed in range(2)]
    cache = bytes_for(tiny.model, 6)
    guessing = GuessingProposer(lambda history, num_drafts: [0] * num_drafts)
    world = drafting(make_world, guessing, kv_cache_bytes=cache, context_len_max=48)
    for prompt in asked:
        world.add(prompt, max_tokens=8)
    world.step()
    held = world.blocks.new_table(b"elsewhere")
    assert world.blocks.grow(held, 8 * world.blocks.num_free)
    world.run()
    world.blocks.release(held)

    counts = world.engine.load().speculation.num_steps_by_why
    assert counts["no_room"] > 0
    assert counts["full"] > 0


def test_the_method_had_fewer_than_were_allowed() -> None:
    tally = DraftTally(5)
    step = Step(decodes=[object()], num_drafts=5)  # type: ignore[list-item]  # only counted

    tally.note(step, 2, limit=5, is_wanted=True, has_failed=False)

    assert (tally.num_drafts, tally.why) == (2, DraftWhy.FEWER_FOUND)


def test_timed_steps_are_counted_beside_their_seconds(tiny: Tiny, make_world: MakeWorld) -> None:
    (prompt,) = prompts(1)
    (text,) = texts(tiny, [prompt], 24)
    world = drafting(make_world, GuessingProposer(knowing([text])))
    world.ask(prompt, max_tokens=9, speculation=SpeculationWish(is_off=True))
    world.ask(prompt, max_tokens=13)

    told = world.engine.load().speculation

    assert told.num_steps == {1: {0: 8, 3: 3}}
    assert {batch: row.keys() for batch, row in told.step_s.items()} == {1: {0, 3}}
