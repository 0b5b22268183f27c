"""Who is admitted next: the more urgent first, tenants in turn, each tenant's own in order."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from backend.engine.interface import Priority
from backend.engine.sequence import Sequence


@dataclass(slots=True)
class _Lines:
    """One tenant's sequences by the priority they came with, oldest first."""

    interactive: list[Sequence] = field(default_factory=list)
    batch: list[Sequence] = field(default_factory=list)

    def of(self, priority: Priority) -> list[Sequence]:
        return self.interactive if priority is Priority.INTERACTIVE else self.batch


class WaitingQueue:
    """Sequences without blocks. A preempted one stands again where its arrival puts it.

    Nobody starves: a tenant that was served goes to the end of the ring, and a batch sequence that
    has waited `batch_age_s` competes with the interactive ones by its arrival.
    """

    def __init__(self, batch_age_s: float) -> None:
        self._batch_age_s = batch_age_s
        self._ring: OrderedDict[bytes, _Lines] = OrderedDict()
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Sequence]:
        for lines in self._ring.values():
            yield from lines.interactive
            yield from lines.batch

    def add(self, sequence: Sequence) -> None:
        lines = self._ring.setdefault(sequence.request.tenant, _Lines())
        insort(lines.of(sequence.request.priority), sequence, key=lambda each: each.order)
        self._num += 1

    def remove(self, sequence: Sequence) -> None:
        """Cancelled or failed; the turn of its tenant is not used up."""
        tenant = sequence.request.tenant
        lines = self._ring[tenant]
        lines.of(sequence.request.priority).remove(sequence)
        self._num -= 1
        if not lines.interactive and not lines.batch:
            del self._ring[tenant]

    def pop(self, sequence: Sequence) -> None:
        """Admitted: its tenant's turn is over."""
        self.remove(sequence)
        if sequence.request.tenant in self._ring:
            self._ring.move_to_end(sequence.request.tenant)

    def next(self, urgency: Priority, now_s: float) -> Sequence | None:
        """The sequence of this urgency that is to be admitted now."""
        for lines in self._ring.values():
            found = self._first(lines, urgency, now_s)
            if found is not None:
                return found
        return None

    def _first(self, lines: _Lines, urgency: Priority, now_s: float) -> Sequence | None:
        heads = [line[0] for line in (lines.interactive, lines.batch) if line]
        fitting = [each for each in heads if each.urgency(now_s, self._batch_age_s) is urgency]
        return min(fitting, key=lambda each: each.order, default=None)
