"""Each export format reads as documented; everything else is refused with line and expectation."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.exports import reader as reading
from gateway.ledger.exports.reader import FORMATS, ExportReader, open_export
from gateway.ledger.exports.rows import (
    UNITS_PER_NANO,
    ExportError,
    ExportRow,
    family_of,
    measures_of,
)
from gateway.ledger.reconcile_theirs import IdCharges, add_up, nanos_of

GOLDEN = Path(__file__).parents[2] / "golden" / "exports"
PLAIN = "day,model,cost_usd,output_tokens\n"


def read(text: str | bytes) -> list[ExportRow]:
    data = text.encode() if isinstance(text, str) else text
    return list(ExportReader(io.BytesIO(data), "export.csv"))


def golden(name: str) -> tuple[str, list[ExportRow]]:
    export = open_export(GOLDEN / f"{name}.csv")
    return export.format.name, list(export)


def told(row: ExportRow) -> tuple[str, str, int, dict[str, int]]:
    return row.day, row.model, nanos_of(row.cost), dict(row.tokens)


def test_openai_usage_tells_tokens_and_days_without_any() -> None:
    name, rows = golden("openai_usage")

    assert name == "openai_usage"
    more = {"audio_input": 0, "audio_output": 0, "image_input": 0}
    assert told(rows[0]) == (
        "2023-11-15",
        "gpt-4o-2024-08-06",
        0,
        {"input": 53_440, "cached_read": 5_760, "output": 10_646, **more},
    )
    assert rows[2] == ExportRow(day="2023-11-16", is_empty=True)


def test_openai_costs_are_of_the_model_in_their_line_item() -> None:
    name, rows = golden("openai_costs")

    assert name == "openai_costs"
    assert {row.model for row in rows if not row.is_empty} == {"gpt-4o-2024-08-06"}
    assert sum(nanos_of(row.cost) for row in rows) == 247_260_000
    assert golden("openai_costs_ungrouped")[1][0].model == ""


def test_anthropic_usage_has_each_bucket_apart() -> None:
    name, rows = golden("anthropic_usage")

    assert name == "anthropic_usage"
    assert dict(rows[0].tokens) == {
        "input": 100_000,
        "cached_read": 40_000,
        "cache_write_5m": 2_000,
        "cache_write_1h": 300,
        "output": 5_000,
    }


def test_anthropic_costs_name_models_for_people() -> None:
    name, rows = golden("anthropic_costs")

    assert name == "anthropic_costs"
    assert [(row.model, nanos_of(row.cost)) for row in rows] == [
        ("Claude Haiku 4.5", 50_000_000),
        ("Claude Haiku 4.5", 10_000_000),
        ("(web_search)", 20_000_000),
    ]


def test_openrouter_generations_have_tokens_dollars_and_a_variant() -> None:
    name, rows = golden("openrouter_activity")

    assert name == "openrouter_activity"
    assert told(rows[0]) == (
        "2023-11-15",
        "openai/gpt-4o-mini-2024-07-18",
        12_300_000,
        {"input": 10_000, "cached_read": 389, "output": 100, "reasoning": 37},
    )
    assert (rows[1].model, rows[1].cost) == ("openai/gpt-oss-120b:free", 1_400 * UNITS_PER_NANO)


def test_the_plain_format_has_ids() -> None:
    name, rows = golden("plain")

    assert name == "plain"
    assert told(rows[0])[2:] == (
        1_234,
        {"input": 100, "cached_read": 20, "output": 50, "reasoning": 10},
    )
    assert [(row.attempt_id, row.request_id) for row in rows] == [
        ("att_1", ""),
        ("", "req-2"),
        ("", ""),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("claude-haiku-4-5-20251001", "Claude Haiku 4.5"),
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("claude-3-5-haiku-latest", "claude-3-5-haiku@20241022"),
        ("openai/gpt-4o-mini:free", "openai/gpt-4o-mini-2024-07-18:free"),
    ],
)
def test_names_of_one_model_are_one_family(one: str, other: str) -> None:
    assert family_of(one) == family_of(other)


def test_other_models_are_other_families() -> None:
    names = ("gpt-4o", "gpt-4o-mini", "gpt-4-0613", "gpt-4", "x:free", "x", "claude-haiku-4-5")

    assert len({family_of(name) for name in names}) == len(names)


def test_a_bucket_that_is_not_told_apart_is_in_its_total() -> None:
    assert measures_of(("input", "cached_read", "output")) == {
        "input": ("input", "cache_write_5m", "cache_write_1h", "audio_input", "image_input"),
        "cached_read": ("cached_read",),
        "output": ("output", "reasoning", "audio_output"),
    }
    assert measures_of(()) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header; expected the columns of one of these. OpenAI's usage export"),
        ("colour,size\n1,2\n", "header of no export known; expected the columns"),
        ("day,model\n", "looks like the plain CSV, but has no column cost_usd"),
        ("dy,model\n", "looks like the plain CSV, but has no column day, cost_usd"),
        ("day,model,cost_usd,ouput_tokens\n", "has a column 'ouput_tokens', which the plain CSV"),
        ("day,model,cost_usd,day\n", "line 1: the column 'day' stands twice"),
        (
            "usage_date_utc,model,token_type,cost_usd,model_version,usage_input_tokens_no_cache,"
            "usage_input_tokens_cache_read,usage_input_tokens_cache_write_5m,"
            "usage_input_tokens_cache_write_1h,usage_output_tokens\n",
            "has the columns of Anthropic's usage export and of Anthropic's cost export",
        ),
        (PLAIN + "2026-01-01,m,1,2\n2026-01-02,m,1\n", "line 3: 3 cells where the header has 4"),
        (PLAIN + "yesterday,m,1,2\n", "line 2: day is 'yesterday'; a date such as"),
        (PLAIN + "0001-01-01T00:00:00+05:00,m,1,2\n", "line 2: day is '0001-01-01T00:00:00+05:00'"),
        (PLAIN + "2026-01-01,m,much,2\n", "line 2: cost_usd is 'much', which is no amount"),
        (PLAIN + "2026-01-01,m,NaN,2\n", "line 2: cost_usd is 'NaN'; at most"),
        (PLAIN + "2026-01-01,m,1e99,2\n", "line 2: cost_usd is '1e99'; at most"),
        (PLAIN + "2026-01-01,m,1,-2\n", "line 2: output_tokens is '-2'; 0 to"),
        (PLAIN + "2026-01-01,m,1,2.5\n", "line 2: output_tokens is '2.5', which is no whole"),
        (PLAIN + "2026-01-01,m,1,1e999999\n", "line 2: output_tokens is '1e999999', which"),
        (PLAIN + "2026-01-01," + "m" * 201 + ",1,2\n", "line 2: model has 201 characters"),
        (PLAIN + PLAIN, "line 2: day is 'day'; a date such as"),
        (PLAIN + '2026-01-01,"m"x,1,2\n', "line 2: no CSV: "),
        (PLAIN + "2026-01-01,\N{LATIN SMALL LETTER E WITH ACUTE},1,2\n", "line 2: not UTF-8"),
        (PLAIN + "x" * 70_000, "line 2: longer than 65536 bytes"),
        (
            "start_time,amount_value,amount_currency,line_item\n1700006400,1,eur,x\n",
            "line 2: amount_currency is 'eur'; only usd can be reconciled",
        ),
        (
            "start_time,amount_value,amount_currency,line_item\n2026-01-01,1,usd,x\n",
            "line 2: start_time is '2026-01-01'; unix seconds",
        ),
        (
            "generation_id,created_at,cost_total,tokens_prompt,tokens_completion,"
            "tokens_reasoning,tokens_cached,model_permaslug\ng,2026-01-01,1,2,3,4,0,m\n",
            "line 2: tokens_reasoning is 4, more than tokens_completion, which is 3",
        ),
    ],
)
def test_what_is_no_export_is_refused(text: str, message: str) -> None:
    with pytest.raises(ExportError) as refused:
        read(text.encode("latin-1"))

    assert message in str(refused.value)


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FILE_BYTES_MAX", 100)

    with pytest.raises(ExportError, match="line 5: more than 100 bytes; export fewer days"):
        read(PLAIN + "2026-01-01,m,1,20000\n" * 10)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot read .*nosuch\.csv: No such file"):
        open_export(tmp_path / "nosuch.csv")


def test_a_byte_order_mark_and_quoted_line_breaks_are_read() -> None:
    (row,) = read(b"\xef\xbb\xbf" + (PLAIN + '2026-01-01,"m\nx",1,2\n\n').encode())

    assert (row.day, row.model) == ("2026-01-01", "m\nx")


def test_instants_with_a_zone_are_of_their_utc_day() -> None:
    (row,) = read(PLAIN + "2026-01-01T23:30:00-05:00,m,1,2\n")

    assert row.day == "2026-01-02"


class Endless:
    """A file of many bytes that is never in memory as a whole."""

    def __init__(self, num_lines: int) -> None:
        self._lines = self._all(num_lines)
        self.num_bytes = 0

    def _all(self, num_lines: int) -> Iterator[bytes]:
        yield PLAIN.encode()
        for idx in range(num_lines):
            yield b"2026-01-%02d,model-%d,0.000000001,1\n" % (idx % 28 + 1, idx % 5)

    def readline(self, size: int = -1) -> bytes:
        line = next(self._lines, b"")
        self.num_bytes += len(line)
        return line


@pytest.mark.slow
def test_a_long_export_streams() -> None:
    import tracemalloc

    file = Endless(60_000)
    ids = IdCharges()
    tracemalloc.start()
    try:
        theirs = add_up(ExportReader(file, "long.csv"), ids, {})  # type: ignore[arg-type]  # readline is all it needs
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        ids.close()

    assert sum(charge.nanos for charge in theirs.groups.values()) == theirs.num_rows == 60_000
    assert len(theirs.groups) == 28 * 5
    assert peak_bytes < 1_000_000 < file.num_bytes


def test_rows_with_and_without_a_model_do_not_mix() -> None:
    ids = IdCharges()
    data = io.BytesIO((PLAIN + "2026-01-01,,1,2\n2026-01-01,m,1,2\n").encode())
    with pytest.raises(ExportError, match="line 3: some rows name a model and some do not"):
        add_up(ExportReader(data, "x.csv"), ids, {})
    ids.close()


def test_an_export_without_rows_is_refused() -> None:
    ids = IdCharges()
    with pytest.raises(ExportError, match="no rows; there is nothing to reconcile"):
        add_up(ExportReader(io.BytesIO(PLAIN.encode()), "x.csv"), ids, {})
    ids.close()


def test_more_days_of_models_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.reconcile_theirs.MODEL_DAYS_MAX", 3)
    text = PLAIN + "".join(f"2026-01-01,m{idx},1,2\n" for idx in range(9))
    ids = IdCharges()
    with pytest.raises(ExportError, match="line 5: more than 3 days of models"):
        add_up(ExportReader(io.BytesIO(text.encode()), "x.csv"), ids, {})
    ids.close()


def test_one_id_that_adds_up_to_too_much_is_refused() -> None:
    text = "day,model,cost_usd,attempt_id\n" + "2026-01-01,m,1000000,a\n" * 9_300
    ids = IdCharges()
    add_up(ExportReader(io.BytesIO(text.encode()), "x.csv"), ids, {})
    with pytest.raises(ExportError, match="one id add up to more than a ledger can hold"):
        list(ids.chunks(10))
    ids.close()


@given(st.binary(max_size=300), st.sampled_from([each.required for each in FORMATS]))
def test_no_bytes_whatever_break_the_reader(data: bytes, header: tuple[str, ...]) -> None:
    rows: list[ExportRow] = []
    with suppress(ExportError):
        rows = read(",".join(header).encode() + b"\n" + data)

    assert all(len(row.day) == 10 for row in rows)
