"""The policy as the page and the admin API show and change it: one home for both.

The text lives where the gateway reads it from (`gateway.policy.home`), and its history in the audit
log; nothing is kept here. An edit is a whole text, made from the version that it may replace.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from gateway.core import Network
from gateway.dashboard.page import AnyRequest, Desk, actor_of, session_of
from gateway.dashboard.policy_diff import Changes, TextDiff, changes_between, text_diff
from gateway.dashboard.roles import has_role
from gateway.errors import InvalidRequest, NotFound, PermissionDenied, Place, PolicyError
from gateway.policy.home import Change, Held, PolicyHome
from gateway.policy.load import Policy, load_policy, version_of
from gateway.policy.problems import PROBLEMS_MAX
from gateway.policy.yaml_guard import TEXT_BYTES_MAX
from gateway.store.policies import (
    PUBLISHED,
    ROLLED_BACK,
    PolicyChange,
    find_policy,
    kept_versions,
    list_policy_changes,
)

NOTE_CHARS_MAX = 300
CHANGES_A_PAGE = 25


class PolicyShown(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force, and what a change has to know."""

    kind: Literal["file", "store"]  # where it lives
    place: str  # the file's path
    version: str  # in force
    text: str  # in force, verbatim
    change: PolicyChange | None  # how it came into force; null = before there was an audit log
    held: str  # version of what lies there now; publish on this one
    fault: str  # why `held` is not in force; "" = it is
    locked: str  # why it cannot be written from here; "" = it can
    warnings: list[str]


class TextWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole policy as YAML."""

    text: str


class PublishWanted(TextWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new text, the version that it was made from, and why."""

    base: str
    note: str


class RollbackWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version that is there now, which is to go, and why."""

    base: str
    note: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a text, or what it would change of the policy in force."""

    version: str
    is_valid: bool
    problems: list[Place]
    num_problems: int  # of which `problems` has the first
    warnings: list[str]
    diff: TextDiff  # against the text in force
    changes: Changes | None  # null = the text does not load
    num_models: int = 0
    num_endpoints: int = 0
    num_routes: int = 0


class VersionShown(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the history."""

    change: PolicyChange
    has_text: bool  # it can be opened and rolled back to
    is_live: bool


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    versions: list[VersionShown]
    next: int | None  # give it as `before` for the next page; null = this is the last


class VersionText(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier text, checked against today's policy."""

    version: str
    text: str
    checked: Checked


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The version that was published, and whether it is in force already."""

    version: str
    is_in_force: bool


def home_of(desk: Desk) -> PolicyHome:
    """NotFound for a gateway without one (a part of it in a test)."""
    home = desk.gateway.policy_home
    if home is None:
        raise NotFound("this gateway does not say where its policy lives")
    return home


async def read_held(home: PolicyHome) -> Held:
    """What lies there; a file that cannot be read now is an empty text with that fault."""
    try:
        return await home.held()
    except OSError as error:
        return Held(text=b"", version="", fault=f"{home.place}: {error.strerror}")


async def show_policy(desk: Desk) -> PolicyShown:
    """The policy in force and the state of its home."""
    home, policy = home_of(desk), desk.gateway.policy()
    held = await read_held(home)
    async with desk.gateway.store.read() as connection:
        last = await list_policy_changes(connection, limit=1)
    return PolicyShown(
        kind=home.kind,
        place=home.place,
        version=policy.version,
        text=home.text.decode(),
        change=last[0] if last and last[0].version == policy.version else None,
        held=held.version,
        fault=held.fault,
        locked=await home.locked(),
        warnings=list(policy.warnings),
    )


async def check_text(desk: Desk, text: str) -> Checked:
    """Everything but deciding: off the event loop, for a long text takes its time."""
    live, policy = home_of(desk).text.decode(), desk.gateway.policy()
    return await asyncio.to_thread(_checked, desk, text, live, policy)


def _checked(desk: Desk, text: str, live: str, policy: Policy) -> Checked:
    data = text.encode(errors="surrogatepass")
    version = version_of(data)
    problems: tuple[Place, ...] = ()
    found: Policy | None = None
    try:
        found = load_policy(data, environ=desk.gateway.settings.environ)
    except PolicyError as error:
        problems = error.places
    is_long = len(data) > TEXT_BYTES_MAX  # said as the one problem; not compared
    return Checked(
        version=version,
        is_valid=found is not None,
        problems=list(problems[:PROBLEMS_MAX]),
        num_problems=len(problems),
        warnings=list(found.warnings) if found is not None else [],
        diff=text_diff(live, live if is_long else text),
        changes=changes_between(policy, found) if found is not None else None,
        num_models=len(found.models) if found is not None else 0,
        num_endpoints=len(found.endpoints) if found is not None else 0,
        num_routes=len(found.routes) if found is not None else 0,
    )


async def loaded(desk: Desk, text: str) -> Policy:
    """The policy of a text. InvalidRequest with every problem."""
    data = text.encode(errors="surrogatepass")
    environ = desk.gateway.settings.environ
    try:
        return await asyncio.to_thread(load_policy, data, environ=environ)
    except PolicyError as error:
        detail = [
            {"path": at.path, "message": at.message, "line": at.line, "column": at.column}
            for at in error.places[:PROBLEMS_MAX]
        ]
        raise InvalidRequest(
            f"the policy does not load: {error}", param="text", code="bad_policy", detail=detail
        ) from error


async def publish(request: AnyRequest, desk: Desk, wanted: PublishWanted) -> Published:
    """Check, and put into force. Conflict where it was changed since `base`."""
    return await _publish(request, desk, wanted, PUBLISHED)


async def roll_back(
    request: AnyRequest, desk: Desk, version: str, wanted: RollbackWanted
) -> Published:
    """Publish an earlier text again; it must still load."""
    text = await _text_of(desk, version)
    again = PublishWanted(text=text, base=wanted.base, note=wanted.note)
    return await _publish(request, desk, again, ROLLED_BACK)


async def _publish(
    request: AnyRequest, desk: Desk, wanted: PublishWanted, action: str
) -> Published:
    home, note = home_of(desk), wanted.note.strip()
    if not note or len(note) > NOTE_CHARS_MAX or not note.isprintable():
        raise InvalidRequest(
            f"note: say in one line, of at most {NOTE_CHARS_MAX} characters, why", param="note"
        )
    policy = await loaded(desk, wanted.text)
    live = desk.gateway.policy()
    held = await read_held(home)
    if policy.version == live.version == held.version:
        raise InvalidRequest(
            "this is the policy in force; there is nothing to publish", code="nothing_changed"
        )
    if not has_role(session_of(request).admin.role, "owner"):
        _refuse_new_reach(live, policy)
    change = Change(
        text=wanted.text.encode(),
        version=policy.version,
        base=wanted.base,
        actor=actor_of(request),
        action=action,
        note=note,
    )
    await home.publish(change)
    return Published(
        version=policy.version, is_in_force=desk.gateway.policy().version == policy.version
    )


def _refuse_new_reach(live: Policy, new: Policy) -> None:
    """Into the operator's own network a policy reaches by an owner's word or by the file alone."""
    known = {each.base_url for each in live.providers.values() if each.network is Network.PRIVATE}
    for name, provider in new.providers.items():
        if provider.network is Network.PRIVATE and provider.base_url not in known:
            raise PermissionDenied(
                f"providers.{name}.network: a new address in your own network "
                f"({provider.base_url[:100]}) is published by an owner, or written into the file",
                code="needs_owner",
            )


async def list_versions(desk: Desk, *, before: int | None) -> History:
    """Who put which version into force."""
    async with desk.gateway.store.read() as connection:
        found = await list_policy_changes(connection, limit=CHANGES_A_PAGE, before_id=before)
        kept = await kept_versions(connection, [each.version for each in found])
    live = desk.gateway.policy().version
    return History(
        versions=[
            VersionShown(change=each, has_text=each.version in kept, is_live=each.version == live)
            for each in found
        ],
        next=found[-1].id if len(found) == CHANGES_A_PAGE else None,
    )


async def find_version(desk: Desk, version: str) -> VersionText:
    """An earlier text and what going back to it would change."""
    text = await _text_of(desk, version)
    return VersionText(version=version, text=text, checked=await check_text(desk, text))


async def _text_of(desk: Desk, version: str) -> str:
    async with desk.gateway.store.read() as connection:
        row = await find_policy(connection, version[:64])
    if row is None:
        raise NotFound(f"there is no policy version {version[:64]!r}, or its text is gone")
    return row.text
