"""What one more request costs on a machine that is paid by the hour: the seconds it adds. Pure.

    price = $/h · (seconds to finish all work with it − seconds to finish all work without it)

The machine said how long a step of each batch size takes and how long a prompt token. All that it
has to do runs in one batch, as far as its cache and its largest measured batch allow; what does
not fit shares the steps, so a step of twice the largest batch takes twice as long. A running answer
is taken to have as much before it as a new one: lengths vary so widely that its age says little.

So the first request of an idle machine pays for whole steps, one beside others for the little that
a larger batch takes longer, and one beyond a full batch for its share of a full step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from gateway.core import EndpointLive, MachineLoad

SECONDS_PER_HOUR = 3_600.0


def added_seconds(
    live: EndpointLive,
    *,
    prompt_tokens: int,
    output_tokens: float,
    others_tokens: float,
    num_choices: int = 1,
) -> float | None:
    """
    Seconds that a request adds to the work of this endpoint's machine; None where its steps were
    never measured.

    `prompt_tokens`: not cached ones. `output_tokens`: expected, of each choice. `others_tokens`:
    what each sequence already there is expected to generate yet.
    """
    load = live.machine
    if load is None or not (load.decode_step_s if output_tokens else load.prefill_token_s):
        return None
    seconds = prompt_tokens * load.prefill_token_s
    if not output_tokens:
        return seconds
    present = num_sequences(load, live.in_flight)
    beside = min(output_tokens, others_tokens) if present else 0.0
    if beside:
        larger = step_seconds(load, present + num_choices)
        seconds += beside * (larger - step_seconds(load, present))
    return seconds + (output_tokens - beside) * step_seconds(load, num_choices)


def cost_nanos(hour_nanos: int, seconds: float) -> int:
    """Nano-dollars of so many seconds, rounded up."""
    return ceil(hour_nanos * seconds / SECONDS_PER_HOUR)


def num_sequences(load: MachineLoad, in_flight: int) -> int:
    """
    Sequences that the machine has now.

    Its account is up to seconds old. What we have sent it since, and what has ended, is known of
    this instant: without that a burst would find the machine idle until the next account.
    """
    then = load.num_running + load.num_waiting
    return max(in_flight, then + in_flight - load.in_flight)


def step_seconds(load: MachineLoad, batch: int) -> float:
    """A decode step of so many sequences, between and beyond the measured sizes."""
    fits = min(load.decode_step_s[-1][0], max(1.0, _fitting(load)))
    if batch > fits:
        return _measured(load.decode_step_s, fits) * batch / fits
    return _measured(load.decode_step_s, float(batch))


def _measured(table: Sequence[tuple[int, float]], batch: float) -> float:
    """Straight lines between the sizes; noise must not make a larger batch the quicker one."""
    size_below, seconds_below = 0.0, 0.0
    for size, seconds in table:
        seconds = max(seconds, seconds_below)
        if batch <= size:
            if not seconds_below:
                return seconds  # below the smallest: no slower than that
            share = (batch - size_below) / (size - size_below)
            return seconds_below + share * (seconds - seconds_below)
        size_below, seconds_below = float(size), seconds
    return seconds_below


def _fitting(load: MachineLoad) -> float:
    """Sequences that the cache holds, if the others are like those that run."""
    if not load.num_running or not load.kv_blocks_used:
        return inf
    return load.num_running * load.kv_blocks_total / load.kv_blocks_used
