"""How every page looks: language and theme as chosen, words, navigation, and one Jinja environment.

A page is `page("now.html", look_of(request, desk), values…)`. Templates extend `base.html`, which
has the blocks `title`, `head` (more scripts) and `content`. Besides its values a template has:
`t` (a word by its key), `look`, `me` (the admin or None), `pages` (the navigation), `here` (path
below /admin), `csrf` (for forms), `language`, `static(name)` and `has_file(name)`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from litestar import Response

from gateway.dashboard.figures import FUNCTIONS
from gateway.dashboard.messages import HTML_LANGUAGES, language_of, text
from gateway.dashboard.page import AnyRequest, Desk
from gateway.dashboard.security import visit_of
from gateway.store.admins import AdminRow

ROOT: Final = "/admin"
LANGUAGE_COOKIE: Final = "looprouter_language"
THEME_COOKIE: Final = "looprouter_theme"
THEMES: Final = ("auto", "light", "dark")
_HERE = Path(__file__).parent
FOLDERS: Final = (_HERE / "static", _HERE / "assets")  # our own files; the libraries built
MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
# "g" and then this letter goes there.
KEYS: Final = {
    "/now": "n",
    "/requests": "r",
    "/endpoints": "e",
    "/policy": "p",
    "/keys": "k",
    "/spend": "s",
    "/batch": "b",
    "/backend": "m",
    "/race": "c",
    "/settings": "a",
}


@dataclass(frozen=True, slots=True)
class Look:
    """Who looks at which page, and how."""

    language: str
    theme: str
    here: str  # path of the page below ROOT
    csrf: str
    me: AdminRow | None = None  # None = nobody is logged in

    def t(self, key: str, **values: object) -> str:
        """A word in this language; KeyError for one that is in no catalogue."""
        return text(self.language, key, **values)


def look_of(request: AnyRequest, desk: Desk) -> Look:
    """Language and theme by cookie, else as the browser prefers."""
    visit = visit_of(request)
    theme = request.cookies.get(THEME_COOKIE, "")
    chosen = request.cookies.get(LANGUAGE_COOKIE, "")
    return Look(
        language=language_of(chosen, request.headers.get("accept-language", "")),
        theme=theme if theme in THEMES else THEMES[0],
        here=request.url.path.removeprefix(ROOT).rstrip("/") or "/",
        csrf=desk.sessions.csrf_token(visit.token),
        me=visit.session.admin if visit.session is not None else None,
    )


@cache
def templates() -> Any:
    """Built for the first page: a server that only routes needs none."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(root=ROOT, keys=KEYS, themes=THEMES, static=static_url, has_file=has_file)
    made.globals.update(FUNCTIONS)
    return made


def render(template: str, look: Look, **values: Any) -> str:
    """HTML of a page, or of a part of one."""
    from gateway.dashboard.pages import pages_for  # the pages use this module

    found: str = (
        templates()
        .get_template(template)
        .render(
            look=look,
            t=look.t,
            me=look.me,
            pages=pages_for(look.me.role) if look.me is not None else [],
            here=look.here,
            csrf=look.csrf,
            theme=look.theme,
            language=look.language,
            html_language=HTML_LANGUAGES[look.language],
            **values,
        )
    )
    return found


def page(template: str, look: Look, *, status: int = 200, **values: Any) -> Response[bytes]:
    """A whole page."""
    return Response(
        render(template, look, **values).encode(),
        status_code=status,
        media_type="text/html",
        headers={"cache-control": "no-store", "vary": "cookie, accept-language"},
    )


@cache
def served_files() -> dict[str, Path]:
    """What `/admin/static/` serves, by name."""
    return {
        path.name: path
        for folder in FOLDERS
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix in MEDIA_TYPES
    }


def has_file(name: str) -> bool:
    """Whether a browser library is here; without it pages show less, and say so."""
    return name in served_files()


@cache
def static_url(name: str) -> str:
    """With the content's hash, so that browsers may keep it for ever."""
    digest = hashlib.sha256(served_files()[name].read_bytes()).hexdigest()[:12]
    return f"{ROOT}/static/{name}?v={digest}"
