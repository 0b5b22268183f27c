"""The paths of the batch lane under `/v1`, for the same exchange as every other request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from gateway.api.exchange import Exchange
from gateway.batch import anthropic_handlers, batch_handlers, file_handlers
from gateway.batch.http import ID
from gateway.batch.lane import BatchLane
from gateway.errors import MethodNotAllowed, NotFound

Handler = Callable[[BatchLane, Exchange, str], Awaitable[None]]
_ROUTE = re.compile(
    r"/v1/(?P<kind>files|batches|messages/batches)(?:/(?P<id>[^/]+)(?:/(?P<verb>[a-z]+))?)?"
)
# (kind, whether an id follows, verb behind it) → handler by method.
_HANDLERS: dict[tuple[str, bool, str], dict[str, Handler]] = {
    ("files", False, ""): {"POST": file_handlers.upload, "GET": file_handlers.listing},
    ("files", True, ""): {"GET": file_handlers.show, "DELETE": file_handlers.delete},
    ("files", True, "content"): {"GET": file_handlers.content},
    ("batches", False, ""): {"POST": batch_handlers.create, "GET": batch_handlers.listing},
    ("batches", True, ""): {"GET": batch_handlers.show},
    ("batches", True, "cancel"): {"POST": batch_handlers.cancel},
    ("messages/batches", False, ""): {
        "POST": anthropic_handlers.create,
        "GET": anthropic_handlers.listing,
    },
    ("messages/batches", True, ""): {
        "GET": anthropic_handlers.show,
        "DELETE": anthropic_handlers.delete,
    },
    ("messages/batches", True, "cancel"): {"POST": anthropic_handlers.cancel},
    ("messages/batches", True, "results"): {"GET": anthropic_handlers.results},
}


async def serve_batch_path(lane: BatchLane, exchange: Exchange) -> bool:
    """Answer if the path is the batch lane's; False leaves it to others. Raises ApiError."""
    match = _ROUTE.fullmatch(exchange.path)
    if match is None:
        return False
    given_id = match["id"] or ""
    methods = _HANDLERS.get((match["kind"], bool(given_id), match["verb"] or ""))
    if methods is None or (given_id and not ID.fullmatch(given_id)):
        raise NotFound(f"there is no {exchange.method} {exchange.path[:200]}")
    handler = methods.get(exchange.method)
    if handler is None:
        raise MethodNotAllowed(exchange.path, exchange.method, allow=", ".join(methods))
    await handler(lane, exchange, given_id)
    return True
