"""What differs between two policies, by line and by name; bounded however long they are."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.dashboard import policy_diff
from gateway.dashboard.policy_diff import CONTEXT_LINES, changes_between, text_diff
from gateway.policy.load import load_policy

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "# x"]), max_size=40)
BASE = """\
version: 1
providers:
  a: {base_url: "https://a.example/v1"}
models:
  one: [{provider: a, model: x}]
  two: [{provider: a, model: y}]
routes:
  - {name: r, match: {stream: true}, prefer: {by: fastest}}
  - {name: s, prefer: {by: cheapest}}
"""


@given(LINES, LINES)
@example(["a", "a", "b", "a"], ["b", "a", "a"])  # the same line before and after a change
def test_a_diff_leads_from_one_text_to_the_other(old: list[str], new: list[str]) -> None:
    found = text_diff("\n".join(old) + "\n", "\n".join(new) + "\n")

    old, new = old or [""], new or [""]
    shown = [line for line in found.lines if line.kind != "gap"]
    assert all(old[line.old - 1] == line.text for line in shown if line.old is not None)
    assert all(new[line.new - 1] == line.text for line in shown if line.new is not None)
    removed = {line.old for line in shown if line.kind == "removed"}
    added = {line.new for line in shown if line.kind == "added"}
    kept = [text for idx, text in enumerate(old) if idx + 1 not in removed]
    assert kept == [text for idx, text in enumerate(new) if idx + 1 not in added]
    assert (found.num_removed, found.num_added) == (len(removed), len(added))
    numbers = [line.old for line in shown if line.old is not None]
    assert numbers == sorted(set(numbers))
    if old == new:
        assert found.lines == []


def test_only_the_surroundings_of_a_change_are_shown() -> None:
    old = [f"line {n}" for n in range(100)]
    new = [*old[:50], "other", *old[51:]]
    found = text_diff("\n".join(old), "\n".join(new))

    assert [line.kind for line in found.lines] == [
        "gap", *["same"] * CONTEXT_LINES, "removed", "added", *["same"] * CONTEXT_LINES, "gap",
    ]  # fmt: skip
    assert (found.lines[1].old, found.lines[1].new, found.lines[1].text) == (48, 48, "line 47")


def test_long_texts_cost_no_more_than_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_diff, "COMPARED_LINES_MAX", 10)
    monkeypatch.setattr(policy_diff, "SHOWN_LINES_MAX", 30)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compared")

    monkeypatch.setattr(policy_diff, "SequenceMatcher", refuse)
    found = text_diff("\n".join(map(str, range(40))), "\n".join(map(str, range(100, 140))))
    assert (len(found.lines), found.is_cut) == (30, True)
    assert (found.num_removed, found.num_added) == (40, 40)
    monkeypatch.setattr(policy_diff, "SequenceMatcher", difflib.SequenceMatcher)
    assert text_diff("a\nb", "a\nc").is_cut is False


def test_changes_are_told_by_name_and_words_that_mean_the_same_are_none() -> None:
    base = load_policy(BASE.encode(), environ=None)

    def against(*pairs: tuple[str, str]) -> policy_diff.Changes:
        text = BASE
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        return changes_between(base, load_policy(text.encode(), environ=None))

    assert against(("version: 1\n", "# said\nversion: 1\n")).is_any is False
    gone = against(("  two: [{provider: a, model: y}]\n", ""))
    assert (gone.models.removed, gone.endpoints.removed) == (["two"], ["a/y"])
    priced = against(("model: x}", "model: x, price: {input: 1, output: 2}}"))
    assert (priced.endpoints.changed, priced.models.changed) == (["a/x"], [])
    moved = against(("https://a.example/v1", "https://b.example/v1"))
    assert moved.providers.changed == ["a"]
    assert against(("by: cheapest", "by: fastest")).routes.changed == ["s"]
    assert against(("version: 1", "version: 1\nretry: {max: 0}")).is_other_besides is True
    assert against(("routes:\n", "routes:\n  - {name: n, match: {lane: batch}, prefer: "
                    "{by: cheapest}}\n")).routes.added == ["n"]  # fmt: skip


def test_names_beyond_the_limit_are_counted() -> None:
    models = "".join(f"  m{n}: [{{provider: a, model: x}}]\n" for n in range(70))
    many = load_policy(BASE.replace("routes:", f"{models}routes:").encode(), environ=None)
    found = changes_between(load_policy(BASE.encode(), environ=None), many)

    assert (len(found.models.added), found.models.num_more) == (50, 20)
