"""The audit log, admins and settings as the page and the admin API show and take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core import dollars
from gateway.dashboard import accounts
from gateway.dashboard.accounts import IssuedAdmin
from gateway.dashboard.forms import moment
from gateway.dashboard.page import AnyRequest, Desk, actor_of, session_of
from gateway.dashboard.security import visit_of
from gateway.dashboard.sessions import ABSOLUTE_S, IDLE_S
from gateway.errors import InvalidRequest, PermissionDenied
from gateway.store import admins
from gateway.store.admins import AdminRow
from gateway.store.audit import WHOLE_GATEWAY, AuditEvent, append_events, list_all_events
from gateway.store.retention import Kept, choose_days, chosen_days, kept_of

EVENTS_A_PAGE = 50
INSTANT_S_MAX = 253_402_300_800  # the year 10000: a number beyond it is shown as it is
_UNSAID: tuple[Any, ...] = (None, "", False, [])


class AdminWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new admin; the password is made by the gateway and shown once."""

    name: str
    role: str  # "viewer" | "operator" | "owner"


class AdminChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be another; null = as it is."""

    role: str | None = None
    is_disabled: bool | None = None


class PasswordChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One's own password, before and after."""

    current: str
    new: str

    def __repr__(self) -> str:
        return "PasswordChange()"


class AdminIssued(msgspec.Struct, frozen=True, kw_only=True):
    """An admin and a password just made, which is shown this once."""

    name: str
    role: str
    password: str

    def __repr__(self) -> str:
        return f"AdminIssued(name={self.name!r})"


class RetentionWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whole days that rows are kept; 0 = for ever, null = as the environment says."""

    requests: int | None = None  # the log
    decisions: int | None = None  # the fleet as it was: decisions are explained and tried with it
    attempts: int | None = None  # those that no money was booked for; the others stay
    minutes: int | None = None  # figures by the minute
    hours: int | None = None  # figures by the hour; those by the day stay
    audit: int | None = None


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the audit log, newest first."""

    events: list[AuditEvent]
    next: int | None  # give it as `before` for the next page; null = this is the last


class SettingsShown(msgspec.Struct, frozen=True, kw_only=True):
    """How this gateway is set up: from the environment and fixed limits, no secret in it."""

    database: str  # "sqlite" | "postgresql"
    has_redis: bool
    replicas: int
    allowed_hosts: list[str]
    trusted_proxies: list[str]
    policy_version: str
    session_idle_hours: float
    session_hours_max: float
    retention: list[Kept]  # what is not named here stays


async def list_events(desk: Desk, query: Mapping[str, str], *, before: int | None) -> EventList:
    """Events of all tenants. `query` may have `actor`, `action` (beginnings) and `subject`."""
    async with desk.gateway.store.read() as connection:
        events = await list_all_events(
            connection,
            actor=query.get("actor", ""),
            action=query.get("action", ""),
            subject=query.get("subject", ""),
            limit=EVENTS_A_PAGE,
            before_id=before,
        )
    return EventList(events=events, next=events[-1].id if len(events) == EVENTS_A_PAGE else None)


async def create_admin(request: AnyRequest, desk: Desk, wanted: AdminWanted) -> AdminIssued:
    """A new admin with a random password."""
    now = desk.gateway.wall_clock()
    issued = await accounts.create_admin(
        desk.gateway.store, wanted.name, wanted.role, now=now, actor=actor_of(request)
    )
    return _issued(issued)


async def change_admin(
    request: AnyRequest, desk: Desk, name: str, change: AdminChange
) -> list[AdminRow]:
    """Another role, disabled or enabled again; all admins as they are then."""
    store, now, actor = desk.gateway.store, desk.gateway.wall_clock(), actor_of(request)
    if change.role is not None:
        await accounts.set_role(store, name, change.role, now=now, actor=actor)
    if change.is_disabled is not None:
        turn = accounts.disable_admin if change.is_disabled else accounts.enable_admin
        await turn(store, name, now=now, actor=actor)
    return await accounts.list_admins(store)


async def reset_admin(request: AnyRequest, desk: Desk, name: str) -> AdminIssued:
    """A new random password for an admin, whose sessions all end."""
    now = desk.gateway.wall_clock()
    issued = await accounts.reset_password(
        desk.gateway.store, name, now=now, actor=actor_of(request)
    )
    return _issued(issued)


async def change_password(request: AnyRequest, desk: Desk, change: PasswordChange) -> None:
    """One's own password; all other sessions of this admin end. Wrong tries count as log-ins."""
    session = session_of(request)
    address, name = visit_of(request).address, session.admin.name
    desk.throttle.begin(address, name)
    async with desk.gateway.store.read() as connection:
        found = await admins.find_admin(connection, name)
    password_hash = found[1] if found is not None else None
    if not await desk.passwords.is_right(password_hash, change.current):
        raise PermissionDenied("the current password is another", code="wrong_password")
    desk.throttle.succeeded(address, name)
    if change.new == change.current:
        raise InvalidRequest("the new password is the current one", param="new")
    await accounts.reset_password(
        desk.gateway.store,
        name,
        now=desk.gateway.wall_clock(),
        actor=actor_of(request),
        password=change.new,
        keep_session=session.row.token_hash,
    )


async def settings_shown(desk: Desk) -> SettingsShown:
    """What an admin may know of the set-up."""
    gateway = desk.gateway
    settings = gateway.settings
    async with gateway.store.read() as connection:
        chosen = await chosen_days(connection)
    return SettingsShown(
        database="sqlite" if gateway.store.is_sqlite else "postgresql",
        has_redis=settings.redis_url is not None,
        replicas=settings.replicas,
        allowed_hosts=sorted(gateway.allowed_hosts),
        trusted_proxies=[str(network) for network in settings.trusted_proxies],
        policy_version=gateway.policy().version,
        session_idle_hours=IDLE_S / 3_600.0,
        session_hours_max=ABSOLUTE_S / 3_600.0,
        retention=list(kept_of(settings.retention_days, chosen).values()),
    )


async def change_retention(request: AnyRequest, desk: Desk, wanted: RetentionWanted) -> list[Kept]:
    """All ages at once, in force within a minute; what they are then."""
    gateway = desk.gateway
    given = gateway.settings.retention_days
    named = msgspec.structs.asdict(wanted)
    after = {name: days for name, days in named.items() if days is not None}
    async with gateway.store.begin() as connection:
        was = kept_of(given, await chosen_days(connection))
        try:
            await choose_days(connection, after)
        except ValueError as error:
            raise InvalidRequest(str(error), param="retention") from None
        now = kept_of(given, after)
        moved = [name for name in now if now[name].days != was[name].days]
        event = AuditEvent(
            tenant_id=WHOLE_GATEWAY,
            at=gateway.wall_clock(),
            actor=actor_of(request),
            action="retention.change",
            subject="retention",
            detail={
                "before": {name: was[name].days for name in moved},
                "after": {name: now[name].days for name in moved},
            },
        )
        if moved:
            await append_events(connection, [event])
    return list(now.values())


def detail_shown(event: AuditEvent) -> list[tuple[str, Any, Any]]:
    """
    An event's detail as rows (what, before, after) for a table; before is None where unsaid.

    What stayed as it was is left out. Money and instants read as people write them.
    """
    detail = dict(event.detail)
    if "message" in detail and detail.get("endpoint_id") == event.subject:
        # What the fleet saw: the rest of its event stands in the columns beside this one.
        said = str(detail["message"]).removeprefix(f"{event.subject}: ")
        return [("message", None, said)]
    before, after = detail.pop("before", None), detail.pop("after", None)
    rows = [(name, None, value) for name, value in detail.items() if value != ""]
    if isinstance(after, dict):
        was = before if isinstance(before, dict) else {}
        # Of something new only what was asked for: the rest is as it is without a word.
        asked = {name: value for name, value in after.items() if was or value not in _UNSAID}
        rows += [
            (name, None if was.get(name) == "" else was.get(name), value)
            for name, value in asked.items()
            if name not in was or was[name] != value
        ]
    elif isinstance(after, str):
        rows.append((event.action.partition(".")[0], before or None, after or "–"))
    return [_told(*row) for row in rows]


def _told(name: str, before: Any, after: Any) -> tuple[str, Any, Any]:
    return name.removesuffix("_nanos"), _value_told(name, before), _value_told(name, after)


def _value_told(name: str, value: Any) -> Any:
    """A number of the log in its unit, by the field that it stands in."""
    if isinstance(value, list):
        return [_value_told(name, each) for each in value]
    if isinstance(value, dict):
        return {each.removesuffix("_nanos"): _value_told(each, value[each]) for each in value}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if name.endswith("_nanos"):
        return f"${dollars(int(value))}"
    is_instant = name.endswith("_at") and 0 <= value < INSTANT_S_MAX
    return f"{moment(value)} UTC" if is_instant else value


def _issued(issued: IssuedAdmin) -> AdminIssued:
    return AdminIssued(name=issued.row.name, role=issued.row.role, password=issued.password)
