"""The batch lane's long-lived objects, built once in `app` and handed to its handlers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.batch.creating import Planner
from gateway.batch.storage import FileStorage
from gateway.pipeline import Gateway


def new_id(prefix: str) -> str:
    """Random, so that no id tells of another; safe in a path."""
    return f"{prefix}{secrets.token_hex(12)}"


@dataclass(slots=True)
class BatchLane:
    """
    `wake` tells the worker that there is something new to do. Whoever makes a batch holds `making`
    from its plan until its lines are written, so that two plans do not count on the same room.
    """

    gateway: Gateway
    storage: FileStorage
    planner: Planner
    wake: Callable[[], None]
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
