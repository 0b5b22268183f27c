"""Many texts from the target itself, by its own batched engine: what a head is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from backend.engine.engine import Engine
from backend.engine.interface import EngineRequest, FinishReason, Priority
from backend.errors import BadRequest
from backend.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text to be written behind a prompt. `key` is the caller's."""

    key: int
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Written:
    """`finish` is ERROR for a prompt that the engine does not take; `said` tells why."""

    wanted: Wanted
    token_ids: tuple[int, ...]
    finish: FinishReason
    said: str = ""


def write_all(engine: Engine, wanted: Iterable[Wanted], *, at_once: int) -> Iterator[Written]:
    """In the order in which they finish; `at_once` are with the engine, the others wait here."""
    pending = iter(wanted)
    running: dict[str, tuple[Wanted, list[int]]] = {}
    is_exhausted = False
    while running or not is_exhausted:
        while len(running) < at_once and not is_exhausted:
            each = next(pending, None)
            if each is None:
                is_exhausted = True
                break
            try:
                engine.add(_request(each))
            except BadRequest as error:
                yield Written(each, (), FinishReason.ERROR, str(error))
                continue
            running[str(each.key)] = (each, [])
        for event in engine.step():
            each, tokens = running[event.request_id]
            tokens.extend(event.token_ids)
            if event.finish is not None:
                del running[event.request_id]
                yield Written(each, tuple(tokens), event.finish, event.error or "")


def _request(wanted: Wanted) -> EngineRequest:
    return EngineRequest(str(wanted.key), wanted.prompt, wanted.params, Priority.BATCH)
