"""What plain decoding costs here, measured before the first request: drafts are held against it.

Where everybody drafts there are no plain steps, and what is not measured cannot be compared.
"""

from __future__ import annotations

from backend.engine.engine import Engine
from backend.engine.interface import EngineRequest, SpeculationWish
from backend.sampling.params import SamplingParams

BATCHES = (1, 2, 4, 8, 16)
# The first ones compile, capture and touch memory; the median is over the others too.
_STEPS = 8
# A short context, as most answers begin; a whole block of it is found in the cache from the second
# request on, so that decoding is most of the work.
_PROMPT_LEN = 33
_NAME = "calibration"


def measure_plain_steps(engine: Engine, at_once_max: int) -> None:
    """Decodes a few tokens without drafts, in batches of several sizes. 0.9 s for a model of 135M
    parameters on one core."""
    prompt = tuple(1 + place % 7 for place in range(min(_PROMPT_LEN, engine.context_len_max // 2)))
    tokens_max = min(_STEPS, engine.context_len_max - len(prompt) - 1)
    params = SamplingParams(max_tokens=max(1, tokens_max), temperature=0.0, ignore_eos=True)
    for batch in (each for each in BATCHES if each <= at_once_max):
        for number in range(batch):
            engine.add(
                EngineRequest(
                    f"{_NAME}-{number}",
                    prompt,
                    params,
                    tenant=_NAME.encode(),
                    speculation=SpeculationWish(is_off=True),
                )
            )
        while engine.has_work():
            engine.step()
