"""Prompt files say which line is wrong; prompts from the library, and openings of word problems."""

from __future__ import annotations

import ast
import itertools
import json
import random
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from backend.errors import SetupError
from backend.serving.loading import Prepared
from backend.train.prompts.code import DOC_CHARS, code_prompts
from backend.train.prompts.files import (
    LINE_BYTES_MAX,
    PromptLine,
    read_prompts,
    token_ids_of,
    write_prompts,
)
from backend.train.prompts.making import Recipe, make_prompts
from backend.train.prompts.word_problems import openings

USER = {"role": "user", "content": "Why?"}
ASSISTANT = {"role": "assistant", "content": "Because."}


def read(tmp_path: Path, *lines: Any) -> list[PromptLine]:
    file = tmp_path / "prompts.jsonl"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return list(read_prompts(file))


def test_chats_and_raw_prompts_with_what_was_left_out(tmp_path: Path) -> None:
    chat, drawn, raw = read(
        tmp_path,
        {"messages": [USER]},
        "",
        {"messages": [USER], "kind": "chat", "temperature": 0.7},
        {"prompt": "def f(", "kind": "code"},
    )

    assert chat == PromptLine(1, "", 0.0, messages=(USER,))
    assert drawn == PromptLine(3, "chat", 0.7, messages=(USER,))
    assert raw == PromptLine(4, "code", 0.0, text="def f(")


def test_answers_at_the_end_are_dropped_and_those_before_kept(tmp_path: Path) -> None:
    turns = [USER, ASSISTANT, USER, ASSISTANT, ASSISTANT]

    (line,) = read(tmp_path, {"messages": turns})

    assert list(line.messages) == turns[:3]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [', "not JSON"),
        ("\udcff\udcfe", "not JSON"),
        ("[1, 2]", "not an object"),
        ({"messages": "Why?"}, "`messages` is a list"),
        ({"messages": ["Why?"]}, "`messages` is a list"),
        ({"messages": [{"role": "user"}]}, "`messages` is a list"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "`messages` is a list"),
        ({"kind": "chat"}, "`messages` is a list"),
        ({"prompt": ""}, "`messages` is a list"),
        ({"prompt": 3}, "`messages` is a list"),
        ({"messages": []}, "no turn is left"),
        ({"messages": [ASSISTANT, ASSISTANT]}, "no turn is left"),
        ({"messages": [USER], "kind": 3}, "`kind` is a text"),
        ({"messages": [USER], "temperature": "hot"}, "`temperature` a number"),
        ({"messages": [USER], "temperature": 2.1}, "is not from 0 to 2"),
        ({"messages": [USER], "temperature": -0.1}, "is not from 0 to 2"),
        ('{"prompt": "x", "temperature": NaN}', "is not from 0 to 2"),
        ({"prompt": "x" * LINE_BYTES_MAX}, f"a line has at most {LINE_BYTES_MAX}"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(tmp_path: Path, line: Any, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    good = json.dumps({"messages": [USER]}).encode()
    file.write_bytes(good + b"\n\n" + text.encode("utf-8", "surrogateescape") + b"\n")

    with pytest.raises(SetupError) as caught:
        list(read_prompts(file))

    assert str(caught.value).startswith(f"{file}:3: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot read .*nowhere.jsonl: No such file"):
        list(read_prompts(tmp_path / "nowhere.jsonl"))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    turns = ["plain", "Größe 你好\u2028 and\x85 more\n\tlines", '"quoted" \\']
    lines = [{"messages": [{"role": "user", "content": turn}], "kind": "chat"} for turn in turns]

    assert write_prompts(file, lines) == 3
    assert [line.messages[0]["content"] for line in read_prompts(file)] == turns
    assert write_prompts(file, []) == 0
    assert list(read_prompts(file)) == []


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    write_prompts(file, [{"prompt": "old"}])

    def failing() -> Any:
        yield {"prompt": "new"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_prompts(file, failing())

    assert [line.text for line in read_prompts(file)] == ["old"]


def test_a_prompt_becomes_the_template_s_tokens(spelling: Prepared) -> None:
    tokenizer = spelling.tokenizer
    chat = PromptLine(1, "", 0.0, messages=(USER,))
    raw = PromptLine(2, "", 0.0, text="<|user|>Why?")

    shown = [
        tokenizer.decode(line.token_ids(spelling.text), shows_control=True) for line in (chat, raw)
    ]

    assert shown == ["<|user|>Why?<|go|>", "<|user|>Why?"]


def test_what_the_template_refuses_is_named_with_its_line(spelling: Prepared) -> None:
    line = PromptLine(7, "", 0.0, messages=({"role": "tool", "content": "no call"},))

    with pytest.raises(SetupError, match=r"^some/file.jsonl:7: .*no answer before a call"):
        token_ids_of(line, spelling.text, Path("some/file.jsonl"))


@pytest.mark.slow
def test_code_prompts_are_functions_with_docstrings() -> None:
    found = list(itertools.islice(code_prompts(0), 60))

    assert len(set(found)) > 50
    assert found == list(itertools.islice(code_prompts(0), 60))
    for prompt in found:
        stub = re.search(r'^def \w+\(.*\):\n    """.*?"""\n', prompt, re.DOTALL | re.MULTILINE)
        assert stub is not None
        signature, doc, _ = stub[0].split('"""', 2)
        (function,) = ast.parse(f"{signature}pass").body
        assert isinstance(function, ast.FunctionDef)
        assert not function.name.startswith("_")
        assert len(doc) >= DOC_CHARS[0]
        assert prompt != stub[0], "nothing is asked"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small one, in a folder whose name means tests within a library."""
    library = tmp_path / "test" / "python"
    library.mkdir(parents=True)
    doc = '"""What it does, said in thirty characters or more."""'
    for name in ("one", "two", "three", "four", "test/five", "six/tests/six"):
        file = library / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        own = file.stem
        file.write_text(
            f"class A:\n    def {own}_of_class(self, *, x=1): {doc}\n"
            f"def {own}(x: int) -> str: {doc}\n"
            f"def _{own}(x): {doc}\ndef {own}_bare(x): pass\ndef {own}_short(x): 'Short.'\n"
        )
    (library / "broken.py").write_text("def (")
    (library / "latin.py").write_bytes(b"# \xe9\n")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    return library


@pytest.mark.usefixtures("library")
def test_code_prompts_are_the_library_s_own_functions_in_the_seed_s_order() -> None:
    first, again, other = (list(code_prompts(seed)) for seed in (4, 4, 5))

    assert first == again
    assert first != other
    for found in (first, other):
        names = [re.findall(r"^def (\w+)\(", prompt, re.MULTILINE) for prompt in found]
        stems = ("one", "two", "three", "four")
        assert sorted(names) == sorted(
            [f"{stem}{end}"] for stem in stems for end in ("", "_of_class")
        )


def test_openings_are_filled_in_and_go_by_the_seed() -> None:
    first, again, other = (list(itertools.islice(openings(seed), 300)) for seed in (1, 1, 2))

    assert first == again
    assert first != other
    assert len(set(first)) > 200
    assert all(re.search(r"\d", each) and "{" not in each for each in first)
    # Whoever goes on with them, goes on: there is no end yet.
    assert not any(each.rstrip().endswith((".", "?")) for each in first)


def chats(path: Path, turns: list[str], kind: str = "more") -> Path:
    write_prompts(
        path, [{"messages": [{"role": "user", "content": turn}], "kind": kind} for turn in turns]
    )
    return path


@pytest.mark.usefixtures("library")
def test_what_is_held_out_is_not_among_the_prompts(tmp_path: Path, spelling: Prepared) -> None:
    rng = random.Random(0)
    words = [f"w{rng.randrange(9999)}" for _ in range(60)]
    turns = [" ".join(words[:30]), " ".join(words[30:]), "A short one.", "Another short one."]
    more = chats(tmp_path / "more.jsonl", turns)
    held_out = tmp_path / "held.jsonl"
    # U+2028 ends a line for some, and not in JSON.
    asked = ["Said:\u2028 " + " ".join(words[10:24]).upper(), "a SHORT one"]
    text = "\n".join(json.dumps({"prompt": each}, ensure_ascii=False) for each in asked)
    held_out.write_text(text + "\n", encoding="utf-8")
    said: list[str] = []
    recipe = Recipe(chat=0, math=0, code=5, more=(more,), hold_out=(held_out,))

    number = make_prompts(recipe, spelling, tmp_path / "out.jsonl", said.append)

    lines = list(read_prompts(tmp_path / "out.jsonl"))
    assert number == len(lines) == 7
    found = {line.messages[0]["content"] for line in lines}
    assert found & set(turns) == {turns[1], turns[3]}
    assert sorted(line.kind for line in lines) == ["code"] * 5 + ["more"] * 2
    assert said == ["2 left out, which share 13 words in a row with what is held out"]
    held_out.write_text(text + '\n{"question": "?"}\n', encoding="utf-8")
    with pytest.raises(SetupError, match=r"held.jsonl:3: no object with a `prompt`"):
        make_prompts(recipe, spelling, tmp_path / "out.jsonl", said.append)


def test_other_prompt_files_must_end_with_the_user(tmp_path: Path, spelling: Prepared) -> None:
    more = tmp_path / "more.jsonl"
    write_prompts(more, [{"messages": [USER]}, {"prompt": "raw"}])

    with pytest.raises(SetupError, match=r"more.jsonl:2: only chats whose last turn is the user's"):
        make_prompts(
            Recipe(0, 0, 0, more=(more,)), spelling, tmp_path / "out.jsonl", lambda _: None
        )
