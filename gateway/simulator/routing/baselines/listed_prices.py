"""Prices as rules compare them: of one request, or as the plain sum of both sides."""

from __future__ import annotations

from gateway.core import PriceRow
from gateway.prices.rows import cost_nanos
from gateway.simulator.routing.router import Ask
from gateway.wire.usage import Usage

OUTPUT_TOKENS_EXPECTED = 211  # mean of Azure's conversation hour


def list_price(row: PriceRow) -> float:
    """Input and output price of a token added, in pico-dollars: how listings are compared."""
    return float(row.input + row.output)


def request_price(row: PriceRow, ask: Ask) -> int:
    """Nano-dollars of this prompt, uncached, and an answer of usual length."""
    return cost_nanos(row, Usage(input=ask.prompt_tokens, output=OUTPUT_TOKENS_EXPECTED))
