"""The target's answers: each is written once, and a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backend.engine.interface import FinishReason, TokenEvent
from backend.errors import SetupError
from backend.sampling.params import SamplingParams
from backend.serving.loading import Prepared
from backend.train.answers import AnswerFile, regenerate
from backend.train.corpus import Text
from backend.train.generating import Wanted, write_all
from backend.train.loops import KEPT
from backend.train.prompts.files import PromptLine

TOKENS_MAX = 60
HELLO = "Hello world, how are you?"


def chat(number: int, content: str, temperature: float = 0.0) -> PromptLine:
    return PromptLine(number, "chat", temperature, messages=({"role": "user", "content": content},))


# Answers that end, that run in circles, and that are drawn at random.
LINES = [
    *(chat(number, f"Question {number}") for number in range(1, 6)),
    *(PromptLine(number, "raw", 0.0, text=f"go on {number}") for number in range(6, 9)),
    *(PromptLine(number, "raw", 1.0, text=f"draw {number}") for number in range(9, 14)),
]


def no_stop(done: int, num: int, tokens: int) -> None:
    pass


def answered(
    spelling: Prepared,
    folder: Path,
    lines: Sequence[PromptLine] = LINES,
    *,
    target: str = "sha256:0",
    tokens_max: int = TOKENS_MAX,
    on_progress: Callable[[int, int, int], None] = no_stop,
) -> list[Text]:
    return regenerate(
        spelling.make_engine(),
        spelling.text,
        lines,
        AnswerFile(folder / "answers.jsonl", target, tokens_max),
        prompts_path=Path("prompts.jsonl"),
        at_once=4,
        on_progress=on_progress,
    )


def stopping_after(count: int) -> Callable[[int, int, int], None]:
    left = [count]

    def on_progress(done: int, num: int, tokens: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return on_progress


def numbers(folder: Path) -> list[int]:
    """Of the prompts whose answers are in the file, in its order."""
    _, *lines = (folder / "answers.jsonl").read_bytes().splitlines()
    return [json.loads(line)["line"] for line in lines]


@pytest.fixture(scope="module")
def whole(spelling: Prepared, tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    """In one go."""
    return answered(spelling, tmp_path_factory.mktemp("whole"))


def test_texts_are_the_target_s_own_answers(spelling: Prepared, whole: list[Text]) -> None:
    decode = spelling.tokenizer.decode
    assert [text.kind for text in whole] == [line.kind for line in LINES]
    assert [text.is_greedy for text in whole] == [line.temperature == 0 for line in LINES]
    for line, text in zip(LINES, whole, strict=True):
        assert text.prompt == line.token_ids(spelling.text)
    # An answer that came to its end is kept with it.
    end = spelling.tokenizer.end_token_ids[0]
    for text in whole[:5]:
        assert (decode(text.answer), text.answer[-1]) == (HELLO, end)
    # One that runs in circles is cut, and has no end.
    for text in whole[5:8]:
        assert decode(text.answer) == "x" * (1 + KEPT)
    drawn = [decode(text.answer, shows_control=True) for text in whole[8:]]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("num_done", [1, 4, 9, len(LINES)])
def test_a_run_that_was_stopped_goes_on(
    spelling: Prepared, tmp_path: Path, whole: list[Text], num_done: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        answered(spelling, tmp_path, on_progress=stopping_after(num_done))
    kept = numbers(tmp_path)
    seen: list[tuple[int, int, int]] = []

    texts = answered(spelling, tmp_path, on_progress=lambda *shown: seen.append(shown))

    assert texts == whole
    assert len(kept) in (num_done - 1, num_done)
    assert numbers(tmp_path)[: len(kept)] == kept
    assert sorted(numbers(tmp_path)) == [line.number for line in LINES], "none was written twice"
    assert [done for done, _, _ in seen] == list(range(len(kept) + 1, len(LINES) + 1))
    assert all(num == len(LINES) for _, num, _ in seen)


def test_all_answered_asks_for_nothing(
    spelling: Prepared, tmp_path: Path, whole: list[Text]
) -> None:
    answered(spelling, tmp_path)
    before = (tmp_path / "answers.jsonl").read_bytes()

    texts = answered(spelling, tmp_path, on_progress=stopping_after(1))

    assert texts == whole
    assert (tmp_path / "answers.jsonl").read_bytes() == before


@pytest.mark.parametrize("left", ["half", "all but its end", "garbage"])
def test_a_half_last_line_is_written_anew(
    spelling: Prepared, tmp_path: Path, whole: list[Text], left: str
) -> None:
    answered(spelling, tmp_path)
    file = tmp_path / "answers.jsonl"
    content = file.read_bytes()
    *_, last = content.splitlines(keepends=True)
    broken = {"half": last[: len(last) // 2], "all but its end": last[:-1], "garbage": b"\xff\0{"}
    file.write_bytes(content[: -len(last)] + broken[left])

    assert answered(spelling, tmp_path) == whole
    # Whoever comes next finds a whole file.
    assert answered(spelling, tmp_path) == whole
    assert sorted(numbers(tmp_path)) == [line.number for line in LINES]


@pytest.mark.parametrize("content", [b"", b'{"target": "sha2'])
def test_a_file_that_had_hardly_begun_is_begun_anew(
    spelling: Prepared, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "answers.jsonl").write_bytes(content)

    answered(spelling, tmp_path, LINES[:2])

    assert numbers(tmp_path) == [1, 2] or numbers(tmp_path) == [2, 1]


@pytest.mark.parametrize("changes", [{"target": "sha256:1"}, {"tokens_max": TOKENS_MAX - 1}])
def test_answers_of_another_target_or_limit_are_refused(
    spelling: Prepared, tmp_path: Path, changes: dict[str, str | int]
) -> None:
    answered(spelling, tmp_path, LINES[:1])

    with pytest.raises(
        SetupError, match=r"answers.jsonl holds answers of another target or .*--work"
    ):
        answered(spelling, tmp_path, LINES[:1], **changes)  # type: ignore[arg-type]


def test_prompts_that_leave_no_room_are_left_out(spelling: Prepared, tmp_path: Path) -> None:
    context = spelling.context_len
    longest = "y" * (context - TOKENS_MAX)
    lines = [
        PromptLine(1, "raw", 0.0, text=longest),
        PromptLine(2, "raw", 0.0, text=longest + "y"),
        PromptLine(3, "raw", 0.0, text="y" * (2 * context)),
        chat(4, "Short"),
    ]

    texts = answered(spelling, tmp_path, lines)

    assert [len(text.prompt) for text in texts] == [context - TOKENS_MAX, len(texts[1].prompt)]
    assert spelling.tokenizer.decode(texts[1].answer) == HELLO
    assert sorted(numbers(tmp_path)) == [1, 4]


def test_an_answer_of_nothing_is_no_text(spelling: Prepared, tmp_path: Path) -> None:
    # Behind the last piece of a chain the text ends at once.
    assert answered(spelling, tmp_path, [PromptLine(1, "raw", 0.0, text=" you?")]) == []


def test_a_prompt_file_that_was_changed_since_is_answered_anew(
    spelling: Prepared, tmp_path: Path, whole: list[Text]
) -> None:
    """Line for line: what says the same as before keeps its answer."""
    answered(spelling, tmp_path)
    changed = [
        replace(LINES[0], text="go elsewhere", messages=()),
        replace(LINES[1], temperature=0.5),
        *LINES[2:],
        PromptLine(14, "raw", 1.0, text="one more"),
    ]
    done: list[int] = []

    texts = answered(spelling, tmp_path, changed, on_progress=lambda *shown: done.append(shown[0]))

    assert len(done) == 3
    assert texts[2:-1] == whole[2:]
    assert spelling.tokenizer.decode(texts[0].prompt) == "go elsewhere"
    assert not texts[1].is_greedy
    assert texts == answered(spelling, tmp_path, changed, on_progress=stopping_after(1))


def test_what_the_engine_does_not_take_is_told_and_the_others_go_on(spelling: Prepared) -> None:
    engine, num_running = spelling.make_engine(), list[int]()
    step = engine.step

    def noting() -> list[TokenEvent]:
        load = engine.load()
        num_running.append(load.num_running + load.num_waiting)
        return step()

    engine.step = noting  # type: ignore[method-assign] # only looks
    params = SamplingParams(max_tokens=5, temperature=0.0)
    prompts = [(87,), (87,) * 9, (87,) * 300, (87, 88), (10_000,), (88,), (87,) * 3]
    wanted = [Wanted(key, prompt, params) for key, prompt in enumerate(prompts)]

    found = {each.wanted.key: each for each in write_all(engine, wanted, at_once=2)}

    assert sorted(found) == list(range(len(prompts)))
    assert max(num_running) == 2
    for key, each in found.items():
        assert each.wanted is wanted[key]
        assert (each.finish is FinishReason.ERROR) == (key in (2, 4))
        assert len(each.token_ids) == (0 if key in (2, 4) else 5)
    assert "300 tokens" in found[2].said
    assert "outside of the vocabulary" in found[4].said


def test_a_prompt_that_the_template_refuses_is_named(spelling: Prepared, tmp_path: Path) -> None:
    refused = PromptLine(3, "chat", 0.0, messages=({"role": "tool", "content": "no"},))

    with pytest.raises(SetupError, match=r"^prompts.jsonl:3: "):
        answered(spelling, tmp_path, [LINES[0], refused])
