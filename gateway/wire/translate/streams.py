"""The two stream writers that translate."""

from gateway.wire.translate.stream_to_chat import ChatFromMessages
from gateway.wire.translate.stream_to_messages import MessagesFromChat

__all__ = ["ChatFromMessages", "MessagesFromChat"]
