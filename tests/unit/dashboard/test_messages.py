"""Both languages say the same things, and every word that a page asks for exists."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from gateway.dashboard import look
from gateway.dashboard.messages import CATALOGUES, CHINESE, ENGLISH, language_of, merged, text

FOLDER = Path(look.__file__).parent
ASKED = re.compile(r"""\bt\(\s*["']([a-z_]+\.[a-z0-9_.]+)["']\s*[,)]""")
PREFIX = re.compile(r"""\bt\(\s*["']([a-z_]+\.)["']\s*[~+]""")
HAN = re.compile(r"[\u4e00-\u9fff]")
# Names, units and abbreviations that a Chinese reader knows as they are.
SAME_IN_BOTH = re.compile(r"^[\W\d]*$|^(tok/s|TTFT p\d+|English|中文|JSON|CSV|API|ID|USD)$")


def _fields(message: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(message) if name is not None}


def test_catalogues_have_the_same_keys_and_fields() -> None:
    english, chinese = CATALOGUES[ENGLISH], CATALOGUES[CHINESE]

    assert english.keys() == chinese.keys()
    assert {k: _fields(v) for k, v in english.items()} == {
        k: _fields(v) for k, v in chinese.items()
    }


def test_chinese_is_chinese() -> None:
    untranslated = [
        key
        for key, message in CATALOGUES[CHINESE].items()
        if not HAN.search(message) and not SAME_IN_BOTH.match(message)
    ]

    assert not untranslated


def test_every_word_that_pages_ask_for_exists() -> None:
    sources = [*FOLDER.glob("templates/**/*.html"), *FOLDER.glob("*.py")]
    texts = {path.name: path.read_text() for path in sources}
    known = CATALOGUES[ENGLISH]
    asked = {(name, key) for name, source in texts.items() for key in ASKED.findall(source)}
    prefixes = {(name, key) for name, source in texts.items() for key in PREFIX.findall(source)}

    assert len(asked) > 30
    assert sorted((name, key) for name, key in asked if key not in known) == []
    assert [each for each in prefixes if not any(key.startswith(each[1]) for key in known)] == []


@pytest.mark.parametrize(
    ("chosen", "accepted", "language"),
    [
        ("zh", "en-GB", "zh"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "en;q=0.5, zh;q=0.9", "zh"),
        ("", "zh;q=0, en", "en"),
        ("", "fr, de;q=0.8", "en"),
        ("../etc", "zh;q=high", "en"),
        ("", "", "en"),
    ],
)
def test_language_is_the_one_chosen_else_the_browsers(
    chosen: str, accepted: str, language: str
) -> None:
    assert language_of(chosen, accepted) == language


def test_unknown_word_and_a_word_said_twice_are_errors() -> None:
    with pytest.raises(KeyError):
        text(ENGLISH, "now.no_such_word")
    with pytest.raises(AssertionError, match="said twice"):
        merged([{"a.b": "1"}, {"a.b": "2"}])
