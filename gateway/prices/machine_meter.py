"""What a token of a self-hosted machine costs on average: the machine's time over its tokens.

Time is cut into windows of ten minutes. In each of them the price is that of the window before:
so it is known when a request is held, and stays the same while it runs. Where fewer tokens than
`tokens_per_hour_min` were measured (a quiet time, the first minutes after a start) that many are
assumed, so the price has a bound; the rest of the hour is the operator's, billed to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.core import AttemptOutcome, Endpoint, PriceRow
from gateway.prices.rows import average_row

WINDOW_S = 600
OBSERVED_S_MIN = 300  # of a window; less says nothing about its rest
REPORT_GAP_S_MAX = 5.0  # between two reports of a rate: longer, and what was between is unknown
MACHINES_MAX = 1_024
MS_PER_HOUR = 3_600_000


@dataclass(slots=True)
class _Window:
    """One machine's tokens in one window, as counted here and as the machine said itself."""

    index: int
    counted: int = 0
    reported: float = 0.0

    @property
    def num_tokens(self) -> int:
        # Its own account holds what others sent it; ours holds what it said too late or not at all.
        return max(self.counted, int(self.reported))


@dataclass(slots=True)
class _Machine:
    now: _Window
    before: _Window
    reported_at_s: float | None = None


class MachineMeter:
    """Tokens by machine. Times are Unix seconds; `began_s` is when the counting began."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._machines: dict[str, _Machine] = {}
        self._rows: dict[str, tuple[int, Endpoint, tuple[PriceRow, ...]]] = {}

    def observe(
        self, endpoints: Mapping[str, Endpoint], outcomes: Sequence[AttemptOutcome], at_s: float
    ) -> None:
        """Count the tokens of ended attempts."""
        for outcome in outcomes:
            endpoint = endpoints.get(outcome.endpoint_id)
            if endpoint is None or not endpoint.machine or outcome.usage is None:
                continue
            usage = outcome.usage
            self._at(endpoint.machine, at_s).now.counted += usage.input_total + usage.output_total

    def report(self, machine: str, tokens_per_s: float, at_s: float) -> None:
        """The machine says how fast it works, prompts and answers together."""
        found = self._at(machine, at_s)
        last_s, found.reported_at_s = found.reported_at_s, at_s
        if last_s is not None and 0.0 < at_s - last_s <= REPORT_GAP_S_MAX:
            found.now.reported += tokens_per_s * (at_s - last_s)

    def rows(self, endpoint: Endpoint, at_s: float) -> tuple[PriceRow, ...]:
        """The average price of the window before; () where the endpoint's assumed one holds."""
        found = self._machines.get(endpoint.machine)
        if found is None or endpoint.usd_per_hour_nanos is None:
            return ()
        window = self._at(endpoint.machine, at_s).before
        kept = self._rows.get(endpoint.id)
        if kept is not None and kept[:2] == (window.index, endpoint):
            return kept[2]
        rows = self._price(endpoint, endpoint.usd_per_hour_nanos, window)
        self._rows[endpoint.id] = (window.index, endpoint, rows)
        if len(self._rows) > MACHINES_MAX:
            del self._rows[next(iter(self._rows))]
        return rows

    def _price(self, endpoint: Endpoint, hour_nanos: int, window: _Window) -> tuple[PriceRow, ...]:
        ends_s = (window.index + 1) * WINDOW_S
        observed_ms = int(1_000 * min(WINDOW_S, ends_s - self._began_s))
        is_too_short = observed_ms < 1_000 * OBSERVED_S_MIN
        if is_too_short or window.num_tokens * MS_PER_HOUR <= (
            endpoint.tokens_per_hour_min * observed_ms
        ):
            return ()
        began = datetime.fromtimestamp(window.index * WINDOW_S, UTC)
        price_id = f"measured:{endpoint.machine}@{began:%Y-%m-%dT%H:%MZ}:{window.num_tokens}"
        cost_nanos = -(-hour_nanos * observed_ms // MS_PER_HOUR)
        return (average_row(cost_nanos, window.num_tokens, price_id),)

    def _at(self, machine: str, at_s: float) -> _Machine:
        """The machine with its windows moved on to this second; a clock set back changes none."""
        index = int(at_s // WINDOW_S)
        found = self._machines.get(machine)
        if found is None:
            found = _Machine(_Window(index), _Window(index - 1))
            self._machines[machine] = found
            if len(self._machines) > MACHINES_MAX:
                del self._machines[next(iter(self._machines))]
        elif index == found.now.index + 1:
            found.now, found.before = _Window(index), found.now
        elif index > found.now.index:
            found.now, found.before = _Window(index), _Window(index - 1)
        return found
