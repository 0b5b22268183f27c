"""What a decision may know of a request, and what it must never hold: text."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.core import Caller, Lane, ProviderPreferences, RequestFacts
from gateway.errors import InvalidRequest, PermissionDenied
from gateway.policy.facts import describe
from gateway.policy.openrouter import read_preferences
from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request
from tests.support.deciding import policy_of

POLICY = policy_of("a", "b", others="  'llama3.3:batch': [{provider: a, model: z}]")
CALLER = Caller(tenant_id="t1", team_id="team", key_id="k1", key_name="ci")


def facts_from(
    body: dict | None = None,
    headers: object = (),
    *,
    caller: Caller = CALLER,
    secret: bytes = b"s1",
    surface: Surface = Surface.CHAT,
) -> RequestFacts:
    content = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **(body or {})}
    return describe(
        parse_request(surface, json.dumps(content).encode()),
        caller,
        headers,  # type: ignore[arg-type]
        request_id="r1",
        tenant_secret=secret,
        policy=POLICY,
    )


def long_prompt(text: str) -> dict:
    return {"messages": [{"role": "system", "content": text * 2_000}]}


def test_facts_name_request_caller_and_sizes() -> None:
    facts = facts_from({"stream": True, "max_tokens": 7, "n": 2, "service_tier": "flex"})

    assert (facts.request_id, facts.tenant_id, facts.team_id) == ("r1", "t1", "team")
    assert (facts.key_id, facts.key_name) == ("k1", "ci")
    assert (facts.models, facts.stream, facts.max_tokens) == (("m",), True, 7)
    assert (facts.num_choices, facts.service_tier) == (2, "flex")
    assert facts.prompt_tokens >= 1
    assert facts.lane is Lane.INTERACTIVE


def test_images_count_towards_the_prompt() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://h/i.png"}}
    facts = facts_from({"messages": [{"role": "user", "content": [image, image]}]})

    assert facts.num_images == 2
    assert facts.prompt_tokens >= 2_000
    assert "vision" in facts.needs


@pytest.mark.parametrize(
    ("model", "models", "suffix", "lane"),
    [
        ("m", ("m",), "", Lane.INTERACTIVE),
        ("m:nitro", ("m",), "nitro", Lane.INTERACTIVE),
        ("m:floor", ("m",), "floor", Lane.INTERACTIVE),
        ("m:batch", ("m",), "batch", Lane.BATCH),
        ("a/x:floor", ("a/x",), "floor", Lane.INTERACTIVE),
        ("llama3.3:70b", ("llama3.3:70b",), "", Lane.INTERACTIVE),
        ("llama3.3:batch", ("llama3.3:batch",), "", Lane.INTERACTIVE),
        (":nitro", ("",), "nitro", Lane.INTERACTIVE),
    ],
)
def test_suffix_comes_off_unless_it_is_part_of_a_name(
    model: str, models: tuple[str, ...], suffix: str, lane: Lane
) -> None:
    facts = facts_from({"model": model})

    assert (facts.models, facts.suffix, facts.lane) == (models, suffix, lane)


def test_fallback_models_follow_the_first_each_once() -> None:
    facts = facts_from({"model": "m:nitro", "models": ["m", "a/x", "b/x:floor"]})

    assert facts.models == ("m", "a/x", "b/x")
    assert facts.suffix == "nitro"


# ---- headers ---------------------------------------------------------------------------


def test_headers_choose_lane_tags_and_deadline() -> None:
    facts = facts_from(
        headers=[
            (b"x-looprouter-lane", b"batch"),
            (b"x-looprouter-tags", b"eval, nightly"),
            (b"x-looprouter-deadline", b"90s"),
        ]
    )

    assert facts.lane is Lane.BATCH
    assert facts.tags == frozenset({"eval", "nightly"})
    assert facts.deadline_s == 90.0


def test_lane_header_goes_before_the_suffix() -> None:
    facts = facts_from({"model": "m:batch"}, [(b"x-looprouter-lane", b"interactive")])

    assert facts.lane is Lane.INTERACTIVE


def test_headers_may_be_a_mapping_with_any_case() -> None:
    assert facts_from(headers={"X-LoopRouter-Lane": "batch"}).lane is Lane.BATCH


@pytest.mark.parametrize(
    "header",
    [
        (b"x-looprouter-lane", b"express"),
        (b"x-looprouter-deadline", b"soon"),
        (b"x-looprouter-deadline", b"99d"),
        (b"x-looprouter-tags", b"a b"),
        (b"x-looprouter-tags", b"\xff\xfe"),
        (b"x-looprouter-tags", b",".join(b"t%d" % i for i in range(17))),
        (b"x-looprouter-tags", b"x" * 65),
    ],
)
def test_bad_header_is_an_error_that_names_it(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        facts_from(headers=[header])

    assert caught.value.param == header[0].decode()


# ---- sessions and affinity -------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [b"x-session-id", b"x-session-affinity", b"session_id", b"x-claude-code-session-id"]
)
def test_session_id_is_taken_from_every_header_seen_in_the_wild(header: bytes) -> None:
    facts = facts_from(headers=[(header, b"conversation-7")])
    other = facts_from(headers=[(header, b"conversation-8")])

    assert len(facts.session_key) == 32
    assert facts.session_key != other.session_key
    assert "conversation" not in facts.session_key


@pytest.mark.parametrize(
    ("surface", "body"),
    [
        (Surface.CHAT, {"prompt_cache_key": "s7"}),
        (Surface.CHAT, {"user": "s7"}),
        (Surface.MESSAGES, {"metadata": {"user_id": "s7"}, "max_tokens": 5}),
    ],
)
def test_session_id_is_taken_from_the_body(surface: Surface, body: dict) -> None:
    from_body = facts_from(body, surface=surface).session_key

    assert from_body == facts_from(headers=[(b"x-session-id", b"s7")]).session_key


def test_session_header_goes_before_the_body() -> None:
    both = facts_from({"user": "u"}, [(b"x-session-id", b"s7")])

    assert both.session_key == facts_from(headers=[(b"x-session-id", b"s7")]).session_key


def test_affinity_key_needs_a_whole_block_and_ignores_what_follows_it() -> None:
    short = facts_from()
    one = facts_from(long_prompt("abc"))
    body = long_prompt("abc")
    body["messages"].append({"role": "user", "content": "next turn"})
    next_turn = facts_from(body)
    other = facts_from(long_prompt("abd"))

    assert short.affinity_key == ""
    assert len(one.affinity_key) == 32
    assert next_turn.affinity_key == one.affinity_key
    assert other.affinity_key != one.affinity_key


def test_two_tenants_share_neither_affinity_nor_session_keys() -> None:
    body, headers = long_prompt("abc"), [(b"x-session-id", b"s")]
    one, other = (facts_from(body, headers, secret=s) for s in (b"s1", b"s2"))

    assert one.affinity_key != other.affinity_key
    assert one.session_key != other.session_key


def test_facts_hold_no_prompt_text_and_survive_json() -> None:
    facts = facts_from(
        {**long_prompt("secretword"), "user": "alice@example.com"},
        [(b"authorization", b"Bearer topsecret"), (b"x-session-id", b"alice")],
    )
    stored = msgspec.json.encode(facts)

    assert b"secretword" not in stored
    assert b"alice" not in stored
    assert b"topsecret" not in stored
    assert msgspec.json.decode(stored, type=RequestFacts) == facts


# ---- scopes ----------------------------------------------------------------------------


def scoped(*models: str) -> Caller:
    return msgspec.structs.replace(CALLER, models=models)


def test_key_may_use_its_models_and_their_endpoints() -> None:
    assert facts_from({"model": "m:nitro"}, caller=scoped("m")).models == ("m",)
    assert facts_from({"model": "b/x"}, caller=scoped("m")).models == ("b/x",)


@pytest.mark.parametrize(
    "body", [{"model": "n"}, {"model": "a/z"}, {"model": "m", "models": ["n"]}]
)
def test_key_may_not_use_other_models_by_any_way(body: dict) -> None:
    with pytest.raises(PermissionDenied) as caught:
        facts_from(body, caller=scoped("m"))

    assert caught.value.param == "model"


# ---- OpenRouter's provider object ------------------------------------------------------


def test_provider_object_is_read_field_by_field() -> None:
    facts = facts_from(
        {
            "temperature": 1,
            "provider": {
                "order": ["a"],
                "allow_fallbacks": False,
                "require_parameters": True,
                "data_collection": "deny",
                "zdr": True,
                "enforce_distillable_text": True,
                "only": ["a", "b"],
                "ignore": ["c"],
                "quantizations": ["fp8"],
                "sort": {"by": "price", "partition": "none"},
                "preferred_min_throughput": {"p90": 50, "p50": 80},
                "preferred_max_latency": 1.5,
                "max_price": {"prompt": 1, "completion": "2", "request": 0, "image": 3, "audio": 4},
            },
        }
    )

    assert facts.preferences == ProviderPreferences(
        order=("a",),
        allow_fallbacks=False,
        require_parameters=True,
        data_collection="deny",
        zdr=True,
        enforce_distillable_text=True,
        only=("a", "b"),
        ignore=("c",),
        quantizations=("fp8",),
        sort="price",
        partition="none",
        preferred_min_throughput=(("p50", 80.0), ("p90", 50.0)),
        preferred_max_latency=(("p50", 1.5),),
        max_price=(
            ("prompt", 1.0),
            ("completion", 2.0),
            ("request", 0.0),
            ("image", 3.0),
            ("audio", 4.0),
        ),
    )
    assert "temperature" in facts.parameters


def test_null_fields_are_as_good_as_absent() -> None:
    assert read_preferences(b'{"order": null, "sort": null, "zdr": null}') == ProviderPreferences()
    assert facts_from({"provider": None}).preferences == ProviderPreferences()


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"[]", "provider"),
        (b'"groq"', "provider"),
        (b'{"ordr": ["a"]}', "provider"),
        (b'{"order": "a"}', "provider.order"),
        (b'{"order": [""]}', "provider.order[0]"),
        (b'{"zdr": 1}', "provider.zdr"),
        (b'{"data_collection": "maybe"}', "provider.data_collection"),
        (b'{"sort": "best"}', "provider.sort"),
        (b'{"sort": {"by": "best"}}', "provider.sort.by"),
        (b'{"sort": {"by": "price", "partition": "all"}}', "provider.sort.partition"),
        (b'{"quantizations": ["fp7"]}', "provider.quantizations"),
        (b'{"preferred_min_throughput": -1}', "provider.preferred_min_throughput"),
        (b'{"preferred_max_latency": {"p95": 1}}', "provider.preferred_max_latency"),
        (b'{"max_price": {"prompt": -1}}', "provider.max_price.prompt"),
        (b'{"max_price": {"prompt": "free"}}', "provider.max_price.prompt"),
        (b'{"max_price": {"prompt": "nan"}}', "provider.max_price.prompt"),
        (b'{"max_price": {"tokens": 1}}', "provider.max_price"),
    ],
)
def test_wrong_provider_field_is_an_error_that_names_it(raw: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_preferences(raw)

    assert caught.value.param == param
    assert caught.value.message.startswith("provider")
