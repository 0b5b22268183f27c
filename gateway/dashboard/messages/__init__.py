"""What the pages say: one dict a language, all with the same keys. A page's words are one module.

Keys are `area.name`; a value may have `{fields}`. A module here has two dicts, `EN` and `ZH`, and
its place in AREAS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.dashboard.messages import (
    backend,
    batch,
    endpoints,
    frame,
    keys,
    login,
    now,
    playground,
    policy,
    requests,
    settings,
    spend,
)

ENGLISH: Final = "en"
CHINESE: Final = "zh"
HTML_LANGUAGES: Final = {ENGLISH: "en", CHINESE: "zh-Hans"}
AREAS: Final = (
    frame,
    batch,
    login,
    now,
    endpoints,
    keys,
    settings,
    requests,
    spend,
    playground,
    policy,
    backend,
)
_ACCEPT_PARTS_MAX = 16


def merged(parts: list[dict[str, str]]) -> dict[str, str]:
    """All areas as one; no two may have a key in common."""
    found: dict[str, str] = {}
    for part in parts:
        assert not found.keys() & part.keys(), f"said twice: {found.keys() & part.keys()}"
        found.update(part)
    return found


CATALOGUES: Final[Mapping[str, Mapping[str, str]]] = {
    ENGLISH: merged([area.EN for area in AREAS]),
    CHINESE: merged([area.ZH for area in AREAS]),
}


def text(language: str, key: str, **values: object) -> str:
    """One message with its `{values}` filled in. Raises KeyError: a missing word is our bug."""
    found = CATALOGUES[language][key]
    return found.format(**values) if values else found


def language_of(chosen: str, accept_language: str) -> str:
    """
    The language chosen before, else the first that the browser accepts (RFC 9110 12.5.4), else
    English. Weights are honoured; both arguments may be anything.
    """
    if chosen in CATALOGUES:
        return chosen
    wanted: list[tuple[float, int, str]] = []
    for place, part in enumerate(accept_language.split(",")[:_ACCEPT_PARTS_MAX]):
        tag, _, weight = part.strip().partition(";q=")
        primary = tag.split("-")[0].lower()
        try:
            quality = float(weight) if weight else 1.0
        except ValueError:
            continue
        if primary in CATALOGUES and quality > 0.0:
            wanted.append((-quality, place, primary))
    return min(wanted)[2] if wanted else ENGLISH
