"""In any order of submit, step, cancel, preempt and fork the books of blocks stay straight."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.engine.interface import Priority
from tests.support.scheduler_world import SchedulerWorld, small_config

# Few different tokens, so that prompts share prefixes; 0 is the end of a text.
TOKENS = st.integers(1, 2)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=24)
STEPS_PER_SEQUENCE_MAX = 80


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(14, 30), is_prefix_cached=st.booleans())
    def start(self, num_blocks: int, is_prefix_cached: bool) -> None:
        self.world = SchedulerWorld(num_blocks, small_config(is_prefix_cached=is_prefix_cached))

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 12),
        priority=st.sampled_from(Priority),
        tenant=st.sampled_from((b"a", b"b", b"c")),
    )
    def submit(self, prompt: list[int], max_tokens: int, priority: Priority, tenant: bytes) -> None:
        self.world.submit(prompt, max_tokens=max_tokens, priority=priority, tenant=tenant)

    @precondition(lambda self: self.world.sequences)
    @rule(data=st.data(), more=st.lists(TOKENS, max_size=6), max_tokens=st.integers(1, 12))
    def submit_again(self, data: st.DataObject, more: list[int], max_tokens: int) -> None:
        """A request that goes on from another one's text, as a conversation does."""
        earlier = data.draw(st.sampled_from(self.world.sequences))
        prompt = (earlier.token_ids + more)[:40]
        self.world.submit(prompt, max_tokens=max_tokens, tenant=earlier.request.tenant)

    @rule(
        draws=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        num_drafts=st.integers(0, 2),
        seconds=st.sampled_from((0.0, 1.0, 30.0)),
    )
    def step(self, draws: list[int], num_drafts: int, seconds: float) -> None:
        self.world.step(draws, num_drafts, seconds)

    @precondition(lambda self: self.world.unfinished)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(self.world.unfinished)))

    @precondition(lambda self: self.world.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.world.scheduler.preempt(data.draw(st.sampled_from(self.world.scheduler.running)))

    @precondition(lambda self: self.world.scheduler.running and len(self.world.forks) < 2)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.world.scheduler.running))
        self.world.fork(sequence, data.draw(st.integers(0, sequence.num_computed)))

    @precondition(lambda self: self.world.forks)
    @rule(data=st.data(), token_id=TOKENS)
    def write_fork(self, data: st.DataObject, token_id: int) -> None:
        self.world.write_fork(data.draw(st.sampled_from(self.world.forks)), token_id)

    @precondition(lambda self: self.world.forks)
    @rule(data=st.data())
    def drop_fork(self, data: st.DataObject) -> None:
        self.world.drop_fork(data.draw(st.sampled_from(self.world.forks)))

    @invariant()
    def books_are_straight(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Nobody starves: what is there finishes, and every block comes back."""
        if not hasattr(self, "world"):
            return
        for forked in list(self.world.forks):
            self.world.drop_fork(forked)
        self.world.drain(STEPS_PER_SEQUENCE_MAX * (1 + len(self.world.unfinished)))
        self.world.check()
        assert self.world.blocks.num_used == 0
        assert len(self.world.scheduler.waiting) == 0
        # Only blocks that somebody outside the scheduler holds can leave one without room.
        assert self.world.has_forked or not self.world.failed


class TestScheduler(SchedulerMachine.TestCase):  # type: ignore[name-defined]
    settings = settings(stateful_step_count=40)


@pytest.mark.slow
class TestSchedulerAtLength(SchedulerMachine.TestCase):  # type: ignore[name-defined]
    """More than ten thousand rules, and as many steps of the scheduler."""

    settings = settings(max_examples=320, stateful_step_count=50, deadline=None)
