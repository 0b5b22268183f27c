"""Which adapter speaks which dialect: a new dialect is one more line here."""

from __future__ import annotations

from gateway.providers.adapter import Adapter
from gateway.providers.anthropic import AnthropicAdapter
from gateway.providers.openai import OpenAIAdapter
from gateway.wire.pieces import Dialect

ADAPTERS: dict[Dialect, Adapter] = {
    Dialect.OPENAI: OpenAIAdapter(),
    Dialect.ANTHROPIC: AnthropicAdapter(),
}
