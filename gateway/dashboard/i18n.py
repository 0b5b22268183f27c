"""The dashboard's words in English and Chinese: one catalogue a language, chosen by cookie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway.dashboard.messages import AREAS
from gateway.dashboard.page import AnyRequest

LANGUAGES: Final = ("en", "zh")
LANGUAGE_COOKIE: Final = "looprouter_language"
# Each entry names its text in every language, in the order of LANGUAGES.
CATALOGUES: Final[Mapping[str, Mapping[str, str]]] = {
    language: {key: texts[idx] for area in AREAS for key, texts in area.items()}
    for idx, language in enumerate(LANGUAGES)
}

Translate = Callable[..., str]


def language_of(request: AnyRequest) -> str:
    """What the reader chose, else the first of the browser's languages that we have."""
    chosen = request.cookies.get(LANGUAGE_COOKIE, "")
    if chosen in LANGUAGES:
        return chosen
    for part in request.headers.get("accept-language", "")[:500].split(","):
        language = part.partition(";")[0].strip().lower().partition("-")[0]
        if language in LANGUAGES:
            return language
    return LANGUAGES[0]


def translator(language: str) -> Translate:
    """`t("keys.title")`, `t("keys.left", usd="3.20")`; KeyError for a key in no catalogue."""
    catalogue = CATALOGUES[language]

    def translate(key: str, **values: object) -> str:
        return catalogue[key].format(**values) if values else catalogue[key]

    return translate
