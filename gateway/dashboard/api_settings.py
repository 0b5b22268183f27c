"""Audit log, admins and settings in the admin JSON API."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import get, patch, post, put
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.types import ControllerRouterHandler

from gateway.dashboard import accounts, settings_data
from gateway.dashboard.page import AnyRequest, Desk
from gateway.dashboard.roles import OWNER, SELF, VIEWER
from gateway.dashboard.settings_data import (
    AdminChange,
    AdminIssued,
    AdminWanted,
    EventList,
    PasswordChange,
    RetentionWanted,
    SettingsShown,
)
from gateway.store.admins import AdminRow
from gateway.store.retention import Kept


def settings_api(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Handlers below /admin/api."""

    @get("/audit", opt=VIEWER, tags=["audit"])
    async def list_events(
        actor: FromQuery[str] = "",
        action: FromQuery[str] = "",
        subject: FromQuery[str] = "",
        before: FromQuery[int | None] = None,
    ) -> EventList:
        """Who changed what, newest first. `actor` and `action` are beginnings."""
        query = {"actor": actor, "action": action, "subject": subject}
        return await settings_data.list_events(desk, query, before=before)

    @get("/settings", opt=VIEWER, tags=["settings"])
    async def read_settings() -> SettingsShown:
        """How this gateway is set up."""
        return await settings_data.settings_shown(desk)

    @put("/settings/retention", opt=OWNER, tags=["settings"])
    async def change_retention(request: AnyRequest, data: JSONBody[RetentionWanted]) -> list[Kept]:
        """Say how long rows are kept, all kinds at once. In force within a minute."""
        return await settings_data.change_retention(request, desk, data)

    @get("/admins", opt=VIEWER, tags=["admins"])
    async def list_admins() -> list[AdminRow]:
        """All admins, disabled ones too."""
        return await accounts.list_admins(desk.gateway.store)

    @post("/admins", opt=OWNER, tags=["admins"])
    async def create_admin(request: AnyRequest, data: JSONBody[AdminWanted]) -> AdminIssued:
        """Make an admin. The password is in this answer and nowhere else."""
        return await settings_data.create_admin(request, desk, data)

    @patch("/admins/{name:str}", opt=OWNER, tags=["admins"])
    async def change_admin(
        request: AnyRequest, name: FromPath[str], data: JSONBody[AdminChange]
    ) -> list[AdminRow]:
        """Change an admin's role, shut one out or let one in again. At once."""
        return await settings_data.change_admin(request, desk, name, data)

    @post("/admins/{name:str}/reset", opt=OWNER, tags=["admins"])
    async def reset_admin(request: AnyRequest, name: FromPath[str]) -> AdminIssued:
        """Give an admin a new random password and end their sessions."""
        return await settings_data.reset_admin(request, desk, name)

    @post("/password", opt=SELF, tags=["session"], status_code=204)
    async def change_password(request: AnyRequest, data: JSONBody[PasswordChange]) -> None:
        """Change one's own password; one's other sessions end."""
        await settings_data.change_password(request, desk, data)

    return [
        list_events,
        read_settings,
        change_retention,
        list_admins,
        create_admin,
        change_admin,
        reset_admin,
        change_password,
    ]
