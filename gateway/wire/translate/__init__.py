"""Between the chat and the messages dialect, both ways: requests, plain answers and streams.

What one dialect cannot say is never lost in silence: `Translated.dropped` names it, or
CannotTranslate refuses the request. The official SDKs' types are the specification.
"""

from gateway.wire.translate.plain import (
    count_tokens_answer,
    translate_answer,
    translate_request,
)
from gateway.wire.translate.shapes import CannotTranslate, Target, Translated, target_of
from gateway.wire.translate.streams import ChatFromMessages, MessagesFromChat

__all__ = [
    "CannotTranslate",
    "ChatFromMessages",
    "MessagesFromChat",
    "Target",
    "Translated",
    "count_tokens_answer",
    "target_of",
    "translate_answer",
    "translate_request",
]
