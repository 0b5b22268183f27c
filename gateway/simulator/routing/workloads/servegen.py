"""ServeGen's clients of a production fleet: rates by ten minutes, lengths by six hours.

alibaba/ServeGen, `data/language/m-large/chunk-N-{trace.csv,dataset.json}`, Apache-2.0; arXiv
2505.09999. A window holds as many arrivals as were counted in it, spaced by its fitted law (Weibull
or Gamma) and scaled to fill it. Prompt and answer lengths come from separate histograms, so they
are drawn independently: the files do not say how they depend on each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from gateway.simulator.routing.arrivals import Arrival
from gateway.simulator.routing.workloads.traces import (
    Floats,
    Ints,
    TraceError,
    check_scale,
    copies_of,
    merged,
    read_text,
)

FOLDER = "servegen"
PATTERN = "*-trace.csv"
WINDOW_S = 600
LENGTHS_S = 21_600  # one histogram holds for six hours
DAY_S = 86_400
PARTS = {"night": 0, "morning": 1, "afternoon": 2, "evening": 3}  # six hours each, from midnight
LAWS = ("Weibull", "Gamma")


@dataclass(frozen=True, slots=True)
class Window:
    """Ten minutes of one client."""

    requests_per_s: float
    law: str
    shape: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """A histogram of token counts as values and their cumulative share."""

    tokens: Ints
    share_up_to: Floats

    def draw(self, rng: np.random.Generator, num: int) -> Ints:
        at = np.searchsorted(self.share_up_to, rng.random(num), side="right")
        return self.tokens[np.minimum(at, len(self.tokens) - 1)]


@dataclass(frozen=True, slots=True)
class Client:
    """One client: windows from the first midnight on, and its histograms as text."""

    path: Path
    windows: tuple[Window | None, ...]  # None: nothing arrived
    lengths: tuple[tuple[int, str, str], ...]  # (start s, prompt, answer), only those that hold any


def servegen(
    traces_dir: Path, part: str, *, seed: int, duration_s: float, load: float
) -> tuple[Arrival, ...]:
    """
    `duration_s` of all clients together, beginning somewhere in that part of some day.

    The seed picks day and place; after the part's end it goes on at the part's beginning. Load xK
    overlays K different days.
    """
    check_scale(duration_s, load)
    rng = np.random.default_rng(seed)
    clients = read_servegen(traces_dir / FOLDER)
    num_days = min(len(client.windows) for client in clients) * WINDOW_S // DAY_S
    first_s = float(rng.integers(LENGTHS_S // WINDOW_S)) * WINDOW_S
    shares = copies_of(load)
    days = rng.permutation(num_days)[np.arange(len(shares)) % num_days]
    found: list[tuple[Floats, Ints, Ints]] = []
    for copy, share in enumerate(shares):
        midnight_s = int(days[copy]) * DAY_S
        for client in clients:
            for idx in range(math.ceil(duration_s / WINDOW_S)):
                part_s = (first_s + idx * WINDOW_S) % LENGTHS_S
                start_s = int(midnight_s + PARTS[part] * LENGTHS_S + part_s)
                drawn = _draw_window(client, start_s, share, rng)
                if drawn is not None:
                    found.append((drawn[0] + idx * WINDOW_S, drawn[1], drawn[2]))
    return merged(found, duration_s) if found else ()


def _draw_window(
    client: Client, start_s: int, share: float, rng: np.random.Generator
) -> tuple[Floats, Ints, Ints] | None:
    window = client.windows[start_s // WINDOW_S]
    if window is None:
        return None
    expected = window.requests_per_s * WINDOW_S * share
    num = int(expected) + int(rng.random() < expected % 1.0)
    if num == 0:
        return None
    prompts, outputs = _lengths_at(client, start_s)
    return spaced(window, num, rng), prompts.draw(rng, num), outputs.draw(rng, num)


def spaced(window: Window, num: int, rng: np.random.Generator) -> Floats:
    """
    `num` arrivals within one window, their gaps in the law's proportions.

    The number is what was counted. Drawing gaps until the window is full would begin each window
    with an arrival, and with laws this bursty that adds a third.
    """
    if window.law == "Gamma":
        gaps = rng.gamma(window.shape, size=num + 1)
    else:
        gaps = rng.weibull(window.shape, size=num + 1)
    total = float(gaps.sum())
    if total <= 0.0:  # a very small shape can make every gap vanish
        return np.sort(rng.random(num)) * WINDOW_S
    at_s: Floats = np.cumsum(gaps)[:num] * (WINDOW_S / total)
    return at_s


def _lengths_at(client: Client, start_s: int) -> tuple[Lengths, Lengths]:
    """The histograms of that time; where it has none, the nearest ones of the same client."""
    _, prompt, output = min(client.lengths, key=lambda each: abs(each[0] - start_s))
    return _histogram(client.path, prompt), _histogram(client.path, output)


@lru_cache(maxsize=256)
def _histogram(path: Path, text: str) -> Lengths:
    """`{224: 0.0003, 225: …}` as the file writes it."""
    try:
        pairs = np.array([pair.split(":") for pair in text.strip("{} ").split(",")], dtype=float)
    except ValueError as error:
        raise TraceError(path, f"not a histogram: {text[:40]}… ({error})") from error
    shares = pairs[:, 1]
    if (shares < 0.0).any() or shares.sum() <= 0.0:
        raise TraceError(path, f"shares must be positive: {text[:40]}…")
    tokens = np.maximum(pairs[:, 0].astype(np.int64), 1)
    return Lengths(tokens, np.cumsum(shares) / shares.sum())


@lru_cache(maxsize=2)
def read_servegen(folder: Path) -> tuple[Client, ...]:
    """Every client in the folder, by file name."""
    clients = tuple(_read_client(path) for path in sorted(folder.glob(PATTERN)))
    if not clients:
        raise TraceError(folder, f"holds no {PATTERN}")
    return clients


def _read_client(path: Path) -> Client:
    windows: list[Window | None] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            start, rate, _cv, law, shape, _scale = line.split(",")
            if float(start) != (number - 1) * WINDOW_S:
                raise ValueError(f"starts at {start}, not at {(number - 1) * WINDOW_S}")
            if float(rate) == 0.0:
                windows.append(None)
                continue
            if law not in LAWS or not float(rate) > 0.0 or not float(shape) > 0.0:
                raise ValueError(f"rate and shape must be positive, the law one of {LAWS}")
            windows.append(Window(float(rate), law, float(shape)))
        except ValueError as error:
            raise TraceError(path, f"line {number}: {error}") from error
    if len(windows) * WINDOW_S < DAY_S:
        raise TraceError(path, "holds less than a day")
    dataset = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
    return Client(dataset, tuple(windows), _read_lengths(dataset))


def _read_lengths(path: Path) -> tuple[tuple[int, str, str], ...]:
    try:
        table = msgspec.json.decode(read_text(path), type=dict[int, dict[str, str]])
        lengths = tuple(
            (start_s, each["input_tokens"], each["output_tokens"])
            for start_s, each in sorted(table.items())
            if ":" in each["input_tokens"] and ":" in each["output_tokens"]
        )
    except (msgspec.DecodeError, KeyError) as error:
        raise TraceError(path, f"not a table of histograms ({error!r})") from error
    if not lengths:
        raise TraceError(path, "holds no histogram")
    return lengths
