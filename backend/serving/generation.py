"""One HTTP request's answers: prompts → sequences → deltas of every choice, and what they used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from backend.engine.interface import EngineRequest, Priority, SpeculationWish
from backend.errors import ContextOverflow
from backend.sampling.params import SamplingParams
from backend.serving.choice import Choice, Delta
from backend.serving.job import Job, split_choices
from backend.serving.prompting import Prompt
from backend.serving.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request asks beside its prompts. `params.max_tokens`: see `tokens_left`."""

    request_id: str
    params: SamplingParams
    num_choices: int = 1  # of each prompt
    priority: Priority = Priority.INTERACTIVE
    tenant: bytes = b""
    speculation: SpeculationWish = field(default_factory=SpeculationWish)
    workload: str = ""  # what kind of work it is: figures are kept for each


@dataclass(frozen=True, slots=True)
class Usage:
    """In tokens. A prompt counts once, however many choices it has."""

    prompt: int
    cached: int
    generated: int


def tokens_left(
    num_prompt_tokens: int, wanted: int | None, context_len: int, *, param: str = "messages"
) -> int:
    """`max_tokens` of one prompt: as wanted, else all that the context has left.

    Raises ContextOverflow, which blames `param`, when they do not fit.
    """
    left = context_len - num_prompt_tokens
    if left < (wanted or 1):
        overflow = ContextOverflow(
            f"this model's context is {context_len} tokens; the prompt has {num_prompt_tokens}"
            + (f" and {wanted} more are wanted" if wanted else "")
            + "; shorten one of them"
        )
        overflow.param = param
        raise overflow
    return wanted or left


class Generation:
    """Choices are numbered prompt by prompt. Give it back with `close`, however it ends."""

    def __init__(self, service: Service, prompts: Sequence[Prompt], wanted: Wanted) -> None:
        groups = _groups(prompts, wanted)
        self._prompts = prompts
        self._num_choices = wanted.num_choices
        self._choices = [
            Choice(prompt.shape) for prompt in prompts for _ in range(wanted.num_choices)
        ]
        requests = (each for group in groups for each in group)
        self._index = {each.request_id: idx for idx, each in enumerate(requests)}
        self._job: Job = service.job(groups)

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def usage(self) -> Usage:
        leaders = self._choices[:: self._num_choices]
        return Usage(
            prompt=sum(len(prompt.token_ids) for prompt in self._prompts),
            cached=sum(each.num_cached_tokens for each in leaders),
            generated=sum(each.num_generated for each in self._choices),
        )

    async def deltas(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """What is new, by choice; an empty list is a sign of life. See Job.events for errors."""
        async for events in self._job.events():
            news: list[tuple[int, Delta]] = []
            for event in events:
                idx = self._index[event.request_id]
                choice = self._choices[idx]
                if choice.has_ended:
                    continue
                delta = choice.take(event)
                if delta.finish is not None and event.finish is None:
                    self._job.end(event.request_id)
                if delta:
                    news.append((idx, delta))
            if news or not events:
                yield news

    def abandon(self) -> None:
        """The client has left: everything is cancelled, `deltas` ends."""
        self._job.abandon()

    def close(self) -> None:
        self._job.close()


def _groups(prompts: Sequence[Prompt], wanted: Wanted) -> list[list[EngineRequest]]:
    made = []
    for idx, prompt in enumerate(prompts):
        request = EngineRequest(
            wanted.request_id,
            prompt.token_ids,
            wanted.params,
            priority=wanted.priority,
            tenant=wanted.tenant,
            speculation=wanted.speculation,
            workload=wanted.workload,
        )
        made.append(split_choices(request, wanted.num_choices, idx * wanted.num_choices))
    return made
