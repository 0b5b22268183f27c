"""User turns that the target writes itself, on its bare template (Magpie, arXiv 2406.08464).

A chat model that is shown the start of a user's turn goes on with one. No questions of anybody else
are needed, and what comes is what the model was tuned on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend.engine.engine import Engine
from backend.engine.interface import FinishReason
from backend.sampling.params import SamplingParams
from backend.serving.control_guard import MarkedText
from backend.serving.prompting import ChatRequest, TextSide
from backend.train.generating import Wanted, write_all

_SENTINEL = "7f3a91"
TURN_TOKENS_MAX = 160
TURN_CHARS_MIN = 12


def turn_start(text_side: TextSide) -> tuple[int, ...]:
    """Tokens up to where the user's words begin. Raises BadRequest without a chat template."""
    message = {"role": "user", "content": _SENTINEL}
    whole = text_side.chat_prompt(ChatRequest(messages=(message,))).token_ids
    content = text_side.tokenizer.encode(_SENTINEL)
    size = len(content)
    for at in range(len(whole) - size + 1):
        if list(whole[at : at + size]) == content:
            return whole[:at]
    # The template glued it to something; without it the last turn still begins as it does here.
    text = text_side.tokenizer.decode(whole, shows_control=True)
    # The template has written the begin token, if there is one.
    start = MarkedText(text[: text.index(_SENTINEL)])
    return tuple(text_side.tokenizer.encode_chat(start))


def own_turns(
    engine: Engine,
    text_side: TextSide,
    openings: Sequence[str],
    *,
    temperature: float,
    seed: int,
    at_once: int,
) -> Iterator[str]:
    """One user turn for each opening ("" leaves it all to the model); those that have no end, or
    are hardly a turn, are left out."""
    start = turn_start(text_side)
    params = [
        SamplingParams(
            max_tokens=TURN_TOKENS_MAX, temperature=temperature, top_p=0.95, seed=seed + index
        )
        for index in range(len(openings))
    ]
    wanted = (
        Wanted(index, start + tuple(text_side.tokenizer.encode(opening)), params[index])
        for index, opening in enumerate(openings)
    )
    for written in write_all(engine, wanted, at_once=at_once):
        if written.finish is not FinishReason.STOP:
            continue
        turn = openings[written.wanted.key] + text_side.tokenizer.decode(written.token_ids)
        if len(turn.strip()) >= TURN_CHARS_MIN:
            yield turn.strip()
