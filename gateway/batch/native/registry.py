"""Which adapter speaks which provider's batch API: a new form is one more line here."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.batch.native.anthropic import AnthropicForm
from gateway.batch.native.api import NativeBatchApi
from gateway.batch.native.client import NativeClient
from gateway.batch.native.gemini import GeminiForm
from gateway.batch.native.mistral import MistralForm
from gateway.batch.native.openai_form import GroqForm, OpenAIForm
from gateway.batch.native.together import TogetherForm
from gateway.catalogue.native_batch import NativeBatchFacts, native_batch_of
from gateway.core import Endpoint
from gateway.providers.transport import Transport

FORMS: dict[str, Callable[[NativeBatchFacts, NativeClient], NativeBatchApi]] = {
    "openai": OpenAIForm,
    "anthropic": AnthropicForm,
    "gemini": GeminiForm,
    "mistral": MistralForm,
    "groq": GroqForm,
    "together": TogetherForm,
}


def native_api(
    endpoint: Endpoint,
    transport: Transport,
    *,
    secret: str | None,
    verify_tls: bool = True,
    wall_clock: Callable[[], float] = time.time,
    facts: NativeBatchFacts | None = None,
) -> NativeBatchApi | None:
    """The batch API behind an endpoint; None when none is known. `facts`: instead of the table."""
    facts = facts or native_batch_of(endpoint)
    if facts is None:
        return None
    client = NativeClient(
        endpoint, transport, secret=secret, verify_tls=verify_tls, wall_clock=wall_clock
    )
    return FORMS[facts.form](facts, client)
