"""The parts a simulated provider is made of: speed, prompt cache, prices, schemas, words."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulator.instances import SchemaNotSupported, instance
from gateway.simulator.meter import PrefixCache, Tally, cost_nanos
from gateway.simulator.pacing import (
    event_gap_s,
    first_token_delay_s,
    load_factor,
    speed_factor,
    stream_factor,
)
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from gateway.simulator.words import LABEL, text_tokens
from tests.support.simulated import SimulatedWorld, chat, messages


def _profile(**fields: Any) -> ProviderProfile:
    return ProviderProfile(name="p", **fields)


def test_mean_gap_is_the_rate_whatever_the_noise() -> None:
    profile = _profile(tokens_per_s=50.0, event_sigma=0.4)
    rng = random.Random(1)

    gaps = [event_gap_s(profile, 2, rng, 1.0) for _ in range(20_000)]

    assert statistics.fmean(gaps) == pytest.approx(2 / 50.0, rel=0.02)


def test_drift_has_its_sigma_and_is_the_same_for_a_seed() -> None:
    profile = _profile(drift_sigma=0.3, drift_period_s=100.0, seed=5)

    logs = [math.log(speed_factor(profile, float(at_s))) for at_s in range(0, 20_000, 7)]

    assert statistics.pstdev(logs) == pytest.approx(0.3, rel=0.1)
    assert statistics.fmean(logs) == pytest.approx(0.0, abs=0.02)
    assert logs == [math.log(speed_factor(profile, float(at_s))) for at_s in range(0, 20_000, 7)]
    assert speed_factor(_profile(drift_sigma=0.3, seed=6), 50.0) != speed_factor(profile, 50.0)


def test_drift_moves_slowly() -> None:
    profile = _profile(drift_sigma=0.3, drift_period_s=600.0)

    steps = [speed_factor(profile, t + 1.0) / speed_factor(profile, float(t)) for t in range(2000)]

    assert max(abs(math.log(each)) for each in steps) < 0.03


def test_speed_steps_hold_from_their_second_on() -> None:
    profile = _profile(speed_steps=((10.0, 0.5), (20.0, 3.0)))

    assert [speed_factor(profile, at_s) for at_s in (9.9, 10.0, 20.0)] == [1.0, 0.5, 1.5]


def test_load_slows_only_above_the_soft_limit() -> None:
    profile = _profile(concurrency_soft=4)

    assert [load_factor(profile, n) for n in (1, 4, 8)] == [1.0, 1.0, 0.5]
    assert load_factor(_profile(), 1000) == 1.0


def test_first_token_waits_for_the_uncached_prompt() -> None:
    profile = _profile(ttft_base_s=0.2, prefill_tokens_per_s=1000.0, ttft_sigma=0.0)

    delay_s = first_token_delay_s(profile, 500, random.Random(1), 2.0)

    assert delay_s == pytest.approx((0.2 + 0.5) / 2)


def test_streams_differ_in_speed_by_rate_sigma() -> None:
    rng = random.Random(1)
    factors = [math.log(stream_factor(_profile(rate_sigma=0.2), rng)) for _ in range(5000)]

    assert statistics.pstdev(factors) == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(
    "fields",
    [{"tokens_per_s": 0}, {"tokens_per_event": 0}, {"requests_per_minute": 0}, {"ttft_base_s": -1}],
)
def test_impossible_profile_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        _profile(**fields)


def test_cost_rounds_up_once_over_all_buckets() -> None:
    price = SimulatedPrice(
        input=1, cached_read=1, cache_write_5m=1, cache_write_1h=1, output=1, reasoning=996
    )

    nanos = cost_nanos(price, Tally(1, 1, 1, 1, 1, 1))

    assert nanos == 2  # 1001 pico-dollars


def test_reasoning_costs_as_output_unless_priced_apart() -> None:
    tally = Tally(reasoning=10)

    assert cost_nanos(SimulatedPrice(output=3_000), tally) == 30
    assert cost_nanos(SimulatedPrice(output=3_000, reasoning=1_000), tally) == 10


def test_prefix_is_cached_in_whole_blocks_up_to_the_first_difference() -> None:
    cache = PrefixCache()
    profile = _profile(cache_block_tokens=64, cache_tokens_min=128)
    shared = bytes(range(256)) * 4  # four blocks of 64 tokens

    first = cache.look_up(profile, shared + b"a" * 300, 0.0)
    longer = cache.look_up(profile, shared + b"b" * 300, 1.0)
    moved = cache.look_up(profile, b"!" + shared, 2.0)

    assert (first, longer, moved) == (0, 256, 0)


def test_short_hit_below_the_minimum_counts_as_none() -> None:
    cache = PrefixCache()
    profile = _profile(cache_block_tokens=64, cache_tokens_min=128)

    cache.look_up(profile, b"x" * 256, 0.0)

    assert cache.look_up(profile, b"x" * 256, 1.0) == 0


def test_cache_forgets_after_its_lifetime_and_beyond_its_size() -> None:
    profile = _profile(cache_block_tokens=1, cache_tokens_min=1, cache_ttl_s=10.0)
    prompt = b"abcd" * 4

    aged = PrefixCache()
    aged.look_up(profile, prompt, 0.0)
    small = PrefixCache(blocks_max=2)
    small.look_up(profile, prompt, 0.0)

    assert aged.look_up(profile, prompt, 11.0) == 0
    assert aged.look_up(profile, prompt, 12.0) == 4
    assert small.look_up(profile, prompt, 1.0) == 0  # its first blocks were pushed out


@pytest.mark.anyio
async def test_repeated_prompt_is_faster_and_cheaper() -> None:
    world = SimulatedWorld(ttft_base_s=0.1, prefill_tokens_per_s=1000.0)
    body = chat("long " * 1000 + "[[sim tokens=1]]", stream=True)

    await world.ask("chat", body)
    first_s = world.elapsed_s
    await world.ask("chat", body)

    first, second = await world.invoice()
    assert first["cached_read"] == 0
    assert second["cached_read"] > 1000
    assert second["input"] + second["cached_read"] == first["input"]
    assert second["cost_nanos"] < first["cost_nanos"]
    assert world.elapsed_s - first_s < first_s / 2


@pytest.mark.anyio
async def test_messages_cache_only_where_marked_and_by_lifetime() -> None:
    world = SimulatedWorld()

    def body(**mark: Any) -> dict[str, Any]:
        asked = messages(max_tokens=1)
        part = {"type": "text", "text": "long " * 400}
        if mark:
            part["cache_control"] = {"type": "ephemeral", **mark}
        asked["messages"][0]["content"] = [part]
        return asked

    for each in (body(), body(ttl="5m"), body(ttl="1h"), body(ttl="5m")):
        await world.ask("messages", each)

    unmarked, written, again, _ = await world.invoice()
    assert unmarked["input"] > 500
    assert unmarked["cached_read"] == 0
    assert written["cache_write_5m"] == unmarked["input"]
    assert again["cached_read"] > 400
    assert again["cache_write_1h"] == unmarked["input"] - again["cached_read"]


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "string", "minLength": 3, "maxLength": 30},
            {"type": "integer", "minimum": 3, "maximum": 9},
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            {"type": "integer", "multipleOf": 5},
            {"type": "boolean"},
            {"type": ["null", "string"]},
            {"enum": ["a", 1, None]},
            {"const": {"x": 1}},
            {"type": "string", "format": "date"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda s: {"type": "array", "items": s, "minItems": 2, "maxItems": 3}, inner),
        st.builds(lambda s: {"anyOf": [s, {"type": "null"}]}, inner),
        st.builds(
            lambda a, b: {
                "type": "object",
                "properties": {"a": a, "b": b},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
            inner,
            inner,
        ),
    ),
    max_leaves=6,
)


def _is_valid(value: Any, schema: dict[str, Any]) -> bool:
    """An independent reading of the keywords used above."""
    if "const" in schema:
        return bool(value == schema["const"])
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(_is_valid(value, each) for each in schema["anyOf"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    types = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
        "array": list,
        "object": dict,
    }
    if not any(isinstance(value, types[kind]) for kind in kinds):  # type: ignore[arg-type]
        return False
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1000)
    if isinstance(value, list):
        return schema["minItems"] <= len(value) <= schema["maxItems"] and all(
            _is_valid(each, schema["items"]) for each in value
        )
    if isinstance(value, dict):
        return set(value) == set(schema["required"]) and all(
            _is_valid(each, schema["properties"][name]) for name, each in value.items()
        )
    if isinstance(value, bool) or value is None:
        return True
    return bool(
        value >= schema.get("minimum", -math.inf)
        and value <= schema.get("maximum", math.inf)
        and value > schema.get("exclusiveMinimum", -math.inf)
        and value < schema.get("exclusiveMaximum", math.inf)
        and value % schema.get("multipleOf", 1) in (0, value % 1)
    )


@given(SCHEMAS, st.integers(0, 10))
def test_instance_is_valid_under_its_schema(schema: dict[str, Any], seed: int) -> None:
    assert _is_valid(instance(schema, random.Random(seed)), schema)


def test_instance_follows_references_and_joins_allof() -> None:
    schema = {
        "$defs": {"p": {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"]}},
        "allOf": [{"$ref": "#/$defs/p"}, {"properties": {"y": {"const": 2}}}],
    }

    assert instance(schema, random.Random(1)) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "pattern": "a"}, "pattern"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "https://example.com/x"}, "inside the schema"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no number"),
        ({"type": "thing"}, "unknown type"),
        ({"properties": {"a": {"$ref": "#"}}}, "deeper"),
    ],
)
def test_schema_that_cannot_be_met_is_an_error(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaNotSupported, match=said):
        instance(schema, random.Random(1))


def test_text_is_labelled_and_has_the_asked_number_of_tokens() -> None:
    tokens = text_tokens(random.Random(1), 9)

    assert len(tokens) == 9
    assert tokens[0] == LABEL
    assert text_tokens(random.Random(1), 0) == []
