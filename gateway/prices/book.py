"""The price book: an endpoint's rows at an instant, in the order of truth, remembered by window.

Order: the operator's price in the policy → of an own machine the average measured, else assumed →
genai-prices at the request's time → unpriced. A price that the provider reports in its answer comes
later still and belongs to the ledger's settlement.

Where a source tells no price of a provider's batch API, that provider's discount
(catalogue/native_batch.py) makes rows of tier batch out of the standard ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from gateway.catalogue.native_batch import native_batch_of
from gateway.core import Endpoint, PriceRow
from gateway.prices.listed import ListPrices, Window
from gateway.prices.rows import BATCH, UNPRICED, batch_rows, complete_row

WINDOWS_MAX = 4_096  # remembered (endpoint, window) pairs; more forget the oldest
OPERATORS = "policy"  # the source of a price that the operator states
AHEAD_MAX = 64  # windows to come that are remembered of a model: over a week of six a day
RECHECK_S = 60.0  # an unknown model is looked up again at most once a minute

# An own machine's measured price: (endpoint, Unix seconds) → rows, or () when not measured yet.
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
LiveRows = Callable[[Endpoint, float], tuple[PriceRow, ...]]


class PriceBook:
    """Rows by endpoint and time. Cheap when warm: one dictionary look-up and one comparison."""

    def __init__(self, *, unpriced_cap_picos: int = 0, live_rows: LiveRows | None = None) -> None:
        self._listed: ListPrices | None = None
        self._live_rows = live_rows
        self._windows: dict[tuple[str, str], Window] = {}
        self._ahead: dict[tuple[str, str], tuple[Window, ...]] = {}
        self._past: dict[tuple[str, str, float], Window] = {}
        # An endpoint's rows as they were found → with its batch rows, made once.
        self._batched: dict[str, tuple[tuple[PriceRow, ...], tuple[PriceRow, ...]]] = {}
        self._unpriced = _unpriced(unpriced_cap_picos)

    def set_unpriced_cap(self, picos_per_token: int) -> None:
        """What a token without a known price is billed at (`unpriced: cap`); 0 = nothing."""
        self._unpriced = _unpriced(picos_per_token)

    def rows(self, endpoint: Endpoint, at_unix_s: float) -> tuple[PriceRow, ...]:
        """Every tier and context step valid then. Never empty: at least one `unpriced` row."""
        if lasting := self._lasting(endpoint, at_unix_s):
            return lasting
        key = (endpoint.base_url, endpoint.model)
        window = self._windows.get(key)
        if window is None or not window.from_s <= at_unix_s < window.until_s:
            window = self._find(key, at_unix_s, window)
        return self._with_batch(endpoint, window.rows) if window.rows else self._unpriced

    def windows(self, endpoint: Endpoint, from_s: float, until_s: float) -> tuple[Window, ...]:
        """
        The rows between two unix seconds, by the windows in which their prices stay the same.

        For planning ahead: later changes of the list itself cannot be known. Of an own machine, of
        an operator's price and of an unknown model it is one window with the rows of `from_s`.
        """
        lasting = self._lasting(endpoint, from_s)
        found: list[Window] = []
        at_s = from_s
        while not lasting and at_s < until_s:
            window = self._ahead_of((endpoint.base_url, endpoint.model), at_s)
            if not window.rows:
                break
            rows = _batched(endpoint, window.rows)
            if found and _prices(found[-1].rows) == _prices(rows):
                rows, at_s = found[-1].rows, found.pop().from_s
            found.append(Window(rows, at_s, min(window.until_s, until_s)))
            at_s = window.until_s
        return tuple(found) or (Window(lasting or self._unpriced, from_s, until_s),)

    def _ahead_of(self, key: tuple[str, str], at_s: float) -> Window:
        """The list's window then, compiled once, beside those that `rows` remembers."""
        known = self._windows.get(key)
        if known is not None and known.from_s <= at_s < known.until_s:
            return known
        ahead = self._ahead.get(key, ())
        window = next((each for each in ahead if each.from_s <= at_s < each.until_s), None)
        if window is None:
            window = self._compile(key, at_s)
            _remember(self._ahead, key, (*ahead[-AHEAD_MAX:], window))
        return window

    def _lasting(self, endpoint: Endpoint, at_unix_s: float) -> tuple[PriceRow, ...]:
        """Rows that come from no list and so have no hours; () where the list is asked."""
        stated = endpoint.prices
        if stated and stated[0].source == OPERATORS:
            return self._with_batch(endpoint, stated, is_stated=True)
        if self._live_rows is not None and endpoint.usd_per_hour_nanos is not None:
            live = self._live_rows(endpoint, at_unix_s)
            if live:
                return live
        return stated

    def _with_batch(
        self, endpoint: Endpoint, rows: tuple[PriceRow, ...], *, is_stated: bool = False
    ) -> tuple[PriceRow, ...]:
        known = self._batched.get(endpoint.id)
        if known is not None and known[0] is rows:
            return known[1]
        made = _batched(endpoint, rows, is_stated=is_stated)
        _remember(self._batched, endpoint.id, (rows, made))
        return made

    def _find(self, key: tuple[str, str], at_unix_s: float, newest: Window | None) -> Window:
        if newest is not None and at_unix_s < newest.from_s:
            # A question about the past (recomputing history) must not evict the present.
            for (url, model, from_s), past in self._past.items():
                if (url, model) == key and from_s <= at_unix_s < past.until_s:
                    return past
            window = self._compile(key, at_unix_s)
            _remember(self._past, (*key, window.from_s), window)
            return window
        window = self._compile(key, at_unix_s)
        _remember(self._windows, key, window)
        return window

    def _compile(self, key: tuple[str, str], at_unix_s: float) -> Window:
        if self._listed is None:
            self._listed = ListPrices()
        window = self._listed.window(*key, at_unix_s)
        return window or Window((), at_unix_s, at_unix_s + RECHECK_S)


def _batched(
    endpoint: Endpoint, rows: tuple[PriceRow, ...], *, is_stated: bool = False
) -> tuple[PriceRow, ...]:
    """The rows, with those of the provider's batch API where they do not tell them."""
    facts = native_batch_of(endpoint)
    is_told = any(row.tier == BATCH for row in rows)
    if facts is not None and not is_told and (is_stated or not facts.is_priced_in_list):
        return (*rows, *batch_rows(rows, facts.price_of_standard, facts.source))
    return rows


def _prices(rows: tuple[PriceRow, ...]) -> tuple[PriceRow, ...]:
    """The rows without their ids, which name the hour that they were found for."""
    return tuple(msgspec.structs.replace(row, price_id="") for row in rows)


def _unpriced(cap_picos: int) -> tuple[PriceRow, ...]:
    if not cap_picos:
        return (UNPRICED,)
    row = msgspec.structs.replace(
        UNPRICED, price_id="policy:unpriced.cap", input=cap_picos, output=cap_picos
    )
    return (complete_row(row),)


def _remember(found: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    found[key] = value
    while len(found) > WINDOWS_MAX:
        del found[next(iter(found))]
