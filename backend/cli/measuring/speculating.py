"""What speculation was worth in a run: by the server's account, and pair by pair from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import msgspec
import numpy as np

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.http_client import ConnectionBroken, HttpClient
from backend.cli.measuring.load import Played
from backend.cli.measuring.summary import LEVEL, Figure, decode_rate
from gateway.stats.bootstrap import bootstrap_interval, row_quantiles

LOOPING_SHARE = 0.3  # of an answer's pieces of eight words: beyond it, it repeats itself
_PIECE_WORDS = 8


class Rounds(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one kind of work: counts and sums of seconds, as /v1/load has them."""

    method: str
    workload: str
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_at_risk: list[int]
    num_accepted: list[int]
    num_timed_rounds: int
    round_s: float
    round_plain_s: float
    num_timed_steps: int
    step_s: float
    step_plain_s: float

    @property
    def tokens_a_round(self) -> float:
        return 1.0 + self.num_accepted_tokens / self.num_drafts

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def round_cost(self) -> float | None:
        return self.round_s / self.round_plain_s if self.round_plain_s else None

    @property
    def speed_up(self) -> float | None:
        return self.step_plain_s / self.step_s if self.step_s else None

    def since(self, before: Rounds) -> Rounds:
        """What came between."""

        def places(now: list[int], then: list[int]) -> list[int]:
            return [more - less for more, less in zip_longest(now, then, fillvalue=0)]

        at_risk = places(self.num_at_risk, before.num_at_risk)
        depth = sum(each > 0 for each in at_risk)  # they only become fewer
        return Rounds(
            method=self.method,
            workload=self.workload,
            num_drafts=self.num_drafts - before.num_drafts,
            num_draft_tokens=self.num_draft_tokens - before.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens - before.num_accepted_tokens,
            num_at_risk=at_risk[:depth],
            num_accepted=places(self.num_accepted, before.num_accepted)[:depth],
            num_timed_rounds=self.num_timed_rounds - before.num_timed_rounds,
            round_s=self.round_s - before.round_s,
            round_plain_s=self.round_plain_s - before.round_plain_s,
            num_timed_steps=self.num_timed_steps - before.num_timed_steps,
            step_s=self.step_s - before.step_s,
            step_plain_s=self.step_plain_s - before.step_plain_s,
        )


class _Speculation(msgspec.Struct):
    figures: list[Rounds] = []


class _Load(msgspec.Struct):
    speculation: _Speculation = msgspec.field(default_factory=_Speculation)


async def read_rounds(client: HttpClient, headers: Mapping[str, str]) -> list[Rounds]:
    """Since the server's start; empty where it does not tell."""
    body = bytearray()
    path = f"{client.address.path}/load"
    try:
        status = await client.request(
            "GET", path, headers, b"", lambda data, _at_s: body.extend(data)
        )
        return msgspec.json.decode(body, type=_Load).speculation.figures if status == 200 else []
    except (ConnectionBroken, msgspec.DecodeError):
        return []


def rounds_between(before: Sequence[Rounds], after: Sequence[Rounds]) -> list[Rounds]:
    """Of every kind of work that had a round meanwhile."""
    known = {(each.method, each.workload): each for each in before}
    found = []
    for each in after:
        then = known.get((each.method, each.workload))
        between = each if then is None else each.since(then)
        if between.num_drafts > 0:
            found.append(between)
    return found


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """Each question with speculation and without, one right after the other.

    Ratios of decode rates, above 1: faster with; the median over questions.
    """

    num_pairs: int  # both answered, both long enough for a rate
    ratio: Figure | None
    looping_ratio: Figure | None  # answers that repeat themselves flatter every lookup
    other_ratio: Figure | None
    num_compared: int
    num_identical: int  # texts


def pair(played: Played, seed: int) -> Paired | None:
    """None where nothing was asked twice."""
    if played.plain is None:
        return None
    rng = np.random.default_rng(seed)
    ratios: list[tuple[float, bool]] = []
    compared = identical = 0
    for ours, plain in zip(played.answers, played.plain.answers, strict=True):
        if ours.failure or plain.failure:
            continue
        compared += 1
        identical += is_identical(ours, plain)
        rates = decode_rate(ours), decode_rate(plain)
        if rates[0] is not None and rates[1]:
            ratios.append((rates[0] / rates[1], is_looping(plain.text)))
    return Paired(
        num_pairs=len(ratios),
        ratio=_median([ratio for ratio, _ in ratios], rng),
        looping_ratio=_median([ratio for ratio, loops in ratios if loops], rng),
        other_ratio=_median([ratio for ratio, loops in ratios if not loops], rng),
        num_compared=compared,
        num_identical=identical,
    )


def is_identical(one: Answer, other: Answer) -> bool:
    return (one.text, one.num_tokens, one.finish) == (other.text, other.num_tokens, other.finish)


def is_looping(text: str) -> bool:
    """Whether more than 30 % of its pieces of eight words stood there before."""
    words = text.split()
    pieces = Counter(
        tuple(words[start : start + _PIECE_WORDS]) for start in range(len(words) - _PIECE_WORDS + 1)
    )
    total = sum(pieces.values())
    return total > 0 and (total - len(pieces)) / total > LOOPING_SHARE


def _median(values: Sequence[float], rng: np.random.Generator) -> Figure | None:
    if not values:
        return None
    if len(values) == 1:
        return Figure(value=values[0], n=1)
    return Figure.of(bootstrap_interval(values, rng, statistic=row_quantiles(0.5), level=LEVEL))
