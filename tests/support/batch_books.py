"""Questions to fill batch files with, and a batch's books against its providers' invoices."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.batch_world import chat_line, invoice_ids

NAMES = ("Ada", "Ben", "Chidi", "Dora", "Emeka", "Farah", "Goran", "Hana")
THINGS = ("apples", "stamps", "marbles", "pencils", "tickets", "shells")


def question(number: int) -> str:
    """An arithmetic word problem in the manner of GSM8K (Cobbe et al., 2021), by its number."""
    draw = random.Random(number)
    who, other = draw.sample(NAMES, 2)
    thing = draw.choice(THINGS)
    had, bought, packs = draw.randint(3, 90), draw.randint(2, 12), draw.randint(2, 9)
    return (
        f"{who} had {had} {thing} and bought {packs} packs of {bought} {thing} each. "
        f"Then {who} gave {other} half of all the {thing}. How many {thing} does {who} have left? "
        "Show your steps and end with the number."
    )


def question_lines(num_lines: int, models: Sequence[str]) -> list[dict[str, Any]]:
    """Lines `case-0`, `case-1`, …, over the models in turn."""
    return [
        chat_line(f"case-{at}", models[at % len(models)], f"Case {at}. {question(at % 500)}")
        for at in range(num_lines)
    ]


def lines_of(client: httpx.Client, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Output and error file together."""
    found: list[dict[str, Any]] = []
    for name in ("output_file_id", "error_file_id"):
        if batch[name]:
            answer = client.get(f"/files/{batch[name]}/content", timeout=120.0)
            assert answer.status_code == 200, answer.text
            found += [json.loads(line) for line in answer.text.splitlines()]
    return found


def assert_each_once(found: Iterable[Mapping[str, Any]], num_lines: int) -> None:
    counted = Counter(each["custom_id"] for each in found)
    assert set(counted) == {f"case-{at}" for at in range(num_lines)}
    assert set(counted.values()) == {1}


@dataclass(frozen=True, slots=True)
class Compared:
    """Nano-dollars of the books and of the invoices, and how many attempts are estimates."""

    ours: int
    theirs: int
    num_exact: int
    num_estimated: int

    @property
    def above(self) -> float:
        """Share of the invoices that the books are above them."""
        return self.ours / self.theirs - 1.0


def compared(
    attempts: Iterable[Mapping[str, Any]],
    corrections: Iterable[Mapping[str, Any]],
    invoices: Iterable[Mapping[str, Any]],
) -> Compared:
    """
    Attempts and corrections as SQL has them against invoice lines.

    Fails where an attempt that counts as exact differs from its invoice line. One estimate may be
    a token or two off either way; how far all of them are off together is for the caller to judge.
    """
    billed = {str(line["client_request_id"]): int(line["cost_nanos"]) for line in invoices}
    corrected: Counter[str] = Counter()
    for row in corrections:
        corrected[row["attempt_id"]] += row["cost_nanos"]
    ours = num_exact = num_estimated = 0
    for row in attempts:
        if row["state"] != "settled":
            assert not any(each in billed for each in invoice_ids(row["attempt_id"])), row
            continue
        cost = row["cost_nanos"] + corrected[row["attempt_id"]]
        ours += cost
        line = sum(billed.get(each, 0) for each in invoice_ids(row["attempt_id"]))
        is_estimate = row["is_estimated"] and row["attempt_id"] not in corrected
        if is_estimate:
            num_estimated += 1
        else:
            num_exact += 1
            assert cost == line, (row, line)
    return Compared(ours, sum(billed.values()), num_exact, num_estimated)
