"""All pages in the order of the navigation. A new page is one module and one line here."""

from __future__ import annotations

from gateway.dashboard import (
    backend_page,
    batch_page,
    endpoints_page,
    keys_page,
    now,
    playground,
    policy_page,
    requests,
    settings_page,
    spend,
)
from gateway.dashboard.page import Page

PAGES: tuple[Page, ...] = (
    now.PAGE,
    requests.PAGE,
    endpoints_page.PAGE,
    policy_page.PAGE,
    keys_page.PAGE,
    spend.PAGE,
    batch_page.PAGE,
    backend_page.PAGE,
    playground.PAGE,
    settings_page.PAGE,
)


def pages_for(role: str) -> list[Page]:
    """What an admin of this role sees in the navigation."""
    from gateway.dashboard.roles import has_role

    return [page for page in PAGES if has_role(role, page.role)]
