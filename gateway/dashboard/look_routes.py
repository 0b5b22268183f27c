"""The files of the pages, and the switch of language and theme."""

from __future__ import annotations

from functools import cache
from urllib.parse import urlsplit

from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from gateway.dashboard.look import (
    LANGUAGE_COOKIE,
    MEDIA_TYPES,
    ROOT,
    THEME_COOKIE,
    THEMES,
    served_files,
)
from gateway.dashboard.messages import CATALOGUES
from gateway.dashboard.page import AnyRequest
from gateway.dashboard.roles import ANYONE
from gateway.dashboard.security import visit_of

KEPT_S = 365 * 86_400
FOREVER = "public, max-age=31536000, immutable"
GZIP_FROM_BYTES = 1024


def look_routes() -> list[ControllerRouterHandler]:
    """Open to all, for the log-in looks like the rest. `/look` is what forms of `base.html` post:
    `theme` or `language`, and `next`, the page it was on.
    """

    @get("/static/{name:str}", opt=ANYONE)
    async def static(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
        path = served_files().get(name)
        if path is None:
            return Response(b"not found\n", status_code=404, media_type="text/plain")
        headers = {"x-content-type-options": "nosniff", "vary": "accept-encoding"}
        # Only the address with the hash names this content for ever.
        headers["cache-control"] = FOREVER if "v" in request.query_params else "no-cache"
        body = path.read_bytes()
        if "gzip" in request.headers.get("accept-encoding", "") and len(body) > GZIP_FROM_BYTES:
            headers["content-encoding"] = "gzip"
            body = _zipped(name)
        return Response(body, media_type=MEDIA_TYPES[path.suffix], headers=headers)

    @post("/look", status_code=303, opt=ANYONE)
    async def choose(request: AnyRequest) -> Response[bytes]:
        form = await request.form()
        chosen = [
            (THEME_COOKIE, str(form.get("theme", "")), THEMES),
            (LANGUAGE_COOKIE, str(form.get("language", "")), CATALOGUES),
        ]
        is_secure = visit_of(request).is_secure
        cookies = [
            Cookie(
                key=name,
                value=value,
                path=ROOT,
                max_age=KEPT_S,
                httponly=True,
                secure=is_secure,
                samesite="strict",
            )
            for name, value, known in chosen
            if value in known
        ]
        back = safe_next(str(form.get("next", "")))
        return Response(b"", status_code=303, headers={"location": back}, cookies=cookies)

    return [static, choose]


@cache
def _zipped(name: str) -> bytes:
    """Bounded by the number of files served."""
    import gzip

    return gzip.compress(served_files()[name].read_bytes(), 9, mtime=0)


def safe_next(wanted: str) -> str:
    """The page to go back to: of the dashboard, never of another host."""
    parts = urlsplit(wanted) if "\\" not in wanted and wanted.isprintable() else urlsplit("")
    is_ours = not parts.scheme and not parts.netloc
    is_below = parts.path == ROOT or parts.path.startswith(f"{ROOT}/")
    if not (is_ours and is_below and ".." not in parts.path):
        return f"{ROOT}/"
    return parts.path + (f"?{parts.query}" if parts.query else "")
