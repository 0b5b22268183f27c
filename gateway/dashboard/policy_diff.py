"""What differs between two policy texts, by line and by what they define. Pure and bounded."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Literal

import msgspec

from gateway.policy.policy import Policy

CONTEXT_LINES = 3
COMPARED_LINES_MAX = 3_000  # of either side, where they differ; beyond it all is called changed
SHOWN_LINES_MAX = 2_000
NAMES_MAX = 50  # of each kind


class DiffLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a unified diff; numbers begin at 1."""

    kind: Literal["same", "added", "removed", "gap"]  # gap: lines left out here
    old: int | None = None
    new: int | None = None
    text: str = ""


class TextDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Two texts line by line, with CONTEXT_LINES around each change."""

    lines: list[DiffLine]
    num_added: int
    num_removed: int
    is_cut: bool  # there are more than SHOWN_LINES_MAX


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """Names of one kind."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    num_more: int = 0  # of all three, beyond NAMES_MAX each


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy has, lacks or says otherwise than the one in force."""

    providers: Changed
    models: Changed
    endpoints: Changed
    routes: Changed
    is_other_besides: bool  # the order of routes, or a section without names: limits, rescue…

    @property
    def is_any(self) -> bool:
        parts = (self.providers, self.models, self.endpoints, self.routes)
        return self.is_other_besides or any(p.added or p.removed or p.changed for p in parts)


def text_diff(old: str, new: str) -> TextDiff:
    """`new` against `old`."""
    a, b = _lines(old), _lines(new)
    shown: list[DiffLine] = []
    num_added = num_removed = 0
    last = 0  # lines of `a` already shown or left out
    hunks = _hunks(a, b)
    for idx, (i1, i2, j1, j2) in enumerate(hunks):
        following = hunks[idx + 1][0] if idx + 1 < len(hunks) else len(a)
        begin = max(last, i1 - CONTEXT_LINES)
        if begin > last:
            shown.append(DiffLine(kind="gap"))
        shift = j1 - i1
        shown += [_same(a, i, shift) for i in range(begin, i1)]
        shown += [DiffLine(kind="removed", old=i + 1, text=a[i]) for i in range(i1, i2)]
        shown += [DiffLine(kind="added", new=j + 1, text=b[j]) for j in range(j1, j2)]
        num_removed, num_added = num_removed + i2 - i1, num_added + j2 - j1
        last = min(i2 + CONTEXT_LINES, following)
        shown += [_same(a, i, j2 - i2) for i in range(i2, last)]
    if shown and last < len(a):
        shown.append(DiffLine(kind="gap"))
    return TextDiff(
        lines=shown[:SHOWN_LINES_MAX],
        num_added=num_added,
        num_removed=num_removed,
        is_cut=len(shown) > SHOWN_LINES_MAX,
    )


def _lines(text: str) -> list[str]:
    """As editors count them: other characters that end a line for Python do not."""
    return text.removesuffix("\n").split("\n") if text else []


def _same(a: list[str], idx: int, shift: int) -> DiffLine:
    return DiffLine(kind="same", old=idx + 1, new=idx + shift + 1, text=a[idx])


def _hunks(a: list[str], b: list[str]) -> list[tuple[int, int, int, int]]:
    """Where they differ, as [i1, i2) of `a` against [j1, j2) of `b`."""
    head = tail = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    ours, theirs = a[head : len(a) - tail], b[head : len(b) - tail]
    if not ours and not theirs:
        return []
    if max(len(ours), len(theirs)) > COMPARED_LINES_MAX:
        return [(head, head + len(ours), head, head + len(theirs))]
    # Lines that repeat all over are no anchors (autojunk): with them the time is quadratic.
    matcher = SequenceMatcher(None, ours, theirs, autojunk=True)
    return [
        (head + i1, head + i2, head + j1, head + j2)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def changes_between(old: Policy, new: Policy) -> Changes:
    """By name; what is said of a name in other words but means the same is no change."""
    besides = (
        "rescue", "limits", "unpriced", "unpriced_cap_picos", "keep_alive_s", "drain_s",
        "exploration", "retry", "timeouts",
    )  # fmt: skip
    before = [route.name for route in old.routes]
    after = [route.name for route in new.routes]
    is_moved = [n for n in before if n in after] != [n for n in after if n in before]
    return Changes(
        providers=_changed(old.providers, new.providers),
        models=_changed(old.models, new.models),
        endpoints=_changed(old.endpoints, new.endpoints),
        routes=_changed(
            {route.name: route for route in old.routes}, {route.name: route for route in new.routes}
        ),
        is_other_besides=is_moved
        or any(getattr(old, each) != getattr(new, each) for each in besides),
    )


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> Changed:
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    changed = [name for name in new if name in old and old[name] != new[name]]
    groups = (added, removed, changed)
    return Changed(
        added=added[:NAMES_MAX],
        removed=removed[:NAMES_MAX],
        changed=changed[:NAMES_MAX],
        num_more=sum(max(0, len(each) - NAMES_MAX) for each in groups),
    )
