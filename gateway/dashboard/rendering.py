"""Templates to HTML. Every value is escaped; a name that is missing is an error, not a gap."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from litestar import Response

from gateway import __version__
from gateway.dashboard.i18n import language_of, translator
from gateway.dashboard.look import KEYS, ROOT, THEMES, has_file, static_url, theme_of
from gateway.dashboard.page import AnyRequest, Desk
from gateway.dashboard.pages import pages_for
from gateway.dashboard.security import visit_of

_HERE = Path(__file__).parent
HTML: Final = "text/html; charset=utf-8"


@cache
def templates() -> Any:
    """Built for the first page: a server that only routes needs no templates."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        root=ROOT,
        version=__version__,
        static=static_url,
        has_file=has_file,
        themes=THEMES,
        keys=KEYS,
    )
    return made


def render(
    request: AnyRequest, desk: Desk, template: str, *, status: int = 200, **values: Any
) -> Response[bytes]:
    """
    A whole page, or a fragment for htmx: the same call.

    Besides `values` a template has: `t` (texts by key), `language`, `theme`, `me` (the admin or
    None), `pages` (the navigation), `here` (path below /admin), `csrf` (for forms and
    hx-headers), `root`, `version`, `static` and `has_file`.
    """
    visit = visit_of(request)
    language = language_of(request)
    me = visit.session.admin if visit.session is not None else None
    context = {
        "t": translator(language),
        "language": language,
        "theme": theme_of(request),
        "me": me,
        "pages": pages_for(me.role) if me is not None else [],
        "here": request.url.path.removeprefix(ROOT).rstrip("/") or "/",
        "csrf": desk.sessions.csrf_token(visit.token),
    }
    html = templates().get_template(template).render(**context, **values)
    return Response(html.encode(), status_code=status, media_type=HTML)
