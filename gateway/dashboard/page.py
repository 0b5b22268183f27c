"""What a page of the dashboard is, and what its handlers are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from litestar import Request
from litestar.types import ControllerRouterHandler

from gateway.batch.lane import BatchLane
from gateway.dashboard.passwords import PasswordChecker
from gateway.dashboard.sessions import Session, Sessions
from gateway.dashboard.throttle import LoginThrottle
from gateway.pipeline import Gateway

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Desk:
    """What handlers work with; pages get it once, when their routes are built."""

    gateway: Gateway
    sessions: Sessions
    passwords: PasswordChecker
    throttle: LoginThrottle
    batch: BatchLane | None = None  # None: a gateway without the batch lane, as some tests run
    made: dict[Any, Any] = field(default_factory=dict, compare=False)

    def only(self, kind: Callable[[Desk], T]) -> T:
        """The one object of this kind that pages and API share; made when first asked for."""
        if kind not in self.made:
            self.made[kind] = kind(self)
        found: T = self.made[kind]
        return found


Routes = Callable[[Desk], Sequence[ControllerRouterHandler]]


@dataclass(frozen=True, slots=True)
class Page:
    """
    One entry of the navigation, and its routes below /admin and /admin/api.

    `path` is where its link goes ("/keys" is /admin/keys). `title` is a key of the message
    catalogue. `role` is the least that sees the link; what a route takes, it says itself (`opt`).
    """

    path: str
    title: str
    role: str
    routes: Routes
    api_routes: Routes = lambda _desk: ()


def session_of(request: AnyRequest) -> Session:
    """Who asks. For routes that take a role: the guard has seen to it that there is one."""
    session: Session = request.scope["auth"]
    return session


def actor_of(request: AnyRequest) -> str:
    """Who asks, as audit events name them."""
    return f"admin:{session_of(request).admin.name}"
