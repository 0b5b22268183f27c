"""What OpenRouter's newer rule measures per endpoint, and the two limits it puts on top.

Source: OpenRouter documentation, "How OpenRouter Routes Traffic Between Providers" (autumn 2026);
gateways 2. It names the quantities, not the numbers: windows, thresholds and steps here are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.readings import (
    RATE_LIMITED,
    is_its_failure,
    is_success,
    output_tokens,
    ttft_s,
    whole_s,
)

SLOT_S = 10.0
MEASURED_SLOTS = 30  # "reacts within minutes": five
LIMIT_SLOTS = 6  # breaker and cap look at one minute
BREAKER_ATTEMPTS_MIN = 5
BREAKER_ABOVE_PEERS = 0.3  # of its attempts went wrong beyond what peers' did
BREAKER_PAUSE_S = 30.0
CAP_LIMITED_SHARE = 0.05  # a steady share of 429s up to here holds the cap
CAP_CUT, CAP_GROWTH = 0.9, 1.1  # at a spike; each slot without a 429


@dataclass(slots=True)
class Slot:
    """Ten seconds of one endpoint."""

    number: int
    succeeded: int = 0
    failed: int = 0  # 429s left out
    limited: int = 0
    lost_s: float = 0.0  # by failures and 429s
    ttft_s: float = 0.0
    output_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cost_nanos: int = 0

    @property
    def attempts(self) -> int:
        return self.succeeded + self.failed + self.limited


class Traffic:
    """One endpoint's recent attempts, its breaker and its learned cap."""

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque(maxlen=MEASURED_SLOTS)
        self.paused_until_s = 0.0
        self.cap_per_s: float | None = None  # None: no 429 has been seen
        self._cap_changed_in = -1
        self._judged_from = 0

    def add(self, outcome: AttemptOutcome, cost_nanos: int, now_s: float) -> None:
        number = int(now_s // SLOT_S)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(Slot(number))
        slot = self._slots[-1]
        if is_success(outcome):
            slot.succeeded += 1
            slot.ttft_s += ttft_s(outcome) or 0.0
            slot.output_tokens += output_tokens(outcome)
            slot.tokens += outcome.usage.input_total if outcome.usage else 0
            slot.tokens += output_tokens(outcome)
            slot.seconds += whole_s(outcome, now_s)
        elif is_its_failure(outcome):
            slot.limited += outcome.failure == RATE_LIMITED
            slot.failed += outcome.failure != RATE_LIMITED
            slot.lost_s += whole_s(outcome, now_s)
        slot.cost_nanos += cost_nanos

    def sums(self, now_s: float, num_slots: int = MEASURED_SLOTS) -> Slot:
        """Everything of the last `num_slots`, added."""
        oldest = int(now_s // SLOT_S) - num_slots
        total = Slot(oldest)
        for slot in self._slots:
            if slot.number > oldest:
                total.succeeded += slot.succeeded
                total.failed += slot.failed
                total.limited += slot.limited
                total.lost_s += slot.lost_s
                total.ttft_s += slot.ttft_s
                total.output_tokens += slot.output_tokens
                total.tokens += slot.tokens
                total.seconds += slot.seconds
                total.cost_nanos += slot.cost_nanos
        return total

    def judge(self, peers: Sequence[Traffic], now_s: float) -> None:
        """Pause it where far more of its attempts go wrong than of its peers' (the breaker)."""
        number = int(now_s // SLOT_S)
        num_slots = min(LIMIT_SLOTS, number - self._judged_from + 1)
        own = self.sums(now_s, num_slots)
        if now_s < self.paused_until_s or own.attempts < BREAKER_ATTEMPTS_MIN:
            return
        others = [peer.sums(now_s, LIMIT_SLOTS) for peer in peers if peer is not self]
        attempts = sum(each.attempts for each in others)
        wrong = sum(each.failed + each.limited for each in others)
        peers_share = wrong / attempts if attempts else 0.0
        if (own.failed + own.limited) / own.attempts > peers_share + BREAKER_ABOVE_PEERS:
            self.paused_until_s = now_s + BREAKER_PAUSE_S
            # What was before the pause is not held against it again.
            self._judged_from = int(self.paused_until_s // SLOT_S)

    def learn_cap(self, now_s: float) -> None:
        """Once a slot: cut the cap at a spike of 429s, raise it when they have stopped."""
        number = int(now_s // SLOT_S)
        if number == self._cap_changed_in:
            return
        seen = self.sums(now_s, LIMIT_SLOTS)
        if seen.attempts and seen.limited > CAP_LIMITED_SHARE * seen.attempts:
            passed_per_s = max(1, seen.succeeded) / (LIMIT_SLOTS * SLOT_S)
            self.cap_per_s = CAP_CUT * min(passed_per_s, self.cap_per_s or passed_per_s)
            self._cap_changed_in = number
        elif self.cap_per_s is not None and not seen.limited:
            self.cap_per_s *= CAP_GROWTH
            self._cap_changed_in = number
