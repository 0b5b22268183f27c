"""A parsed request, its caller and its headers → RequestFacts: all that a decision may know."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Protocol

from gateway.core import Caller, Lane, ProviderPreferences, RequestFacts
from gateway.errors import InvalidRequest, PermissionDenied
from gateway.policy.openrouter import read_preferences
from gateway.policy.policy import Policy
from gateway.policy.units import parse_duration
from gateway.wire.pieces import Surface

BYTES_PER_TOKEN = 4  # for estimates before an endpoint's own ratio is known
TOKENS_PER_IMAGE = 1_000
AFFINITY_BLOCK_BYTES = 1_024 * BYTES_PER_TOKEN  # one 1,024-token block of the canonical prompt
HMAC_BYTES = 16
TAGS_MAX = 16
SESSION_CHARS_MAX = 256
SUFFIXES = frozenset({"nitro", "floor", "batch"})
_TAG = re.compile(r"^[A-Za-z0-9_.:-]{1,64}$")

# Session ids seen in the wild, the most specific first.
_SESSION_HEADERS: tuple[bytes, ...] = (
    b"x-session-id",
    b"x-session-affinity",
    b"x-claude-code-session-id",
    b"session_id",
)
_WANTED = frozenset({
    *_SESSION_HEADERS, b"x-looprouter-lane", b"x-looprouter-tags", b"x-looprouter-deadline",
})  # fmt: skip

Headers = Mapping[str, str] | Iterable[tuple[bytes, bytes]]


class Described(Protocol):
    """What a parsed request tells; `gateway.wire.requests.ParsedRequest` is one."""

    @property
    def surface(self) -> Surface: ...
    @property
    def model(self) -> str: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    @property
    def stream(self) -> bool: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def text_bytes(self) -> int: ...
    @property
    def num_images(self) -> int: ...
    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def parameters(self) -> frozenset[str]: ...
    @property
    def provider(self) -> bytes | None: ...
    @property
    def service_tier(self) -> str: ...
    @property
    def num_choices(self) -> int: ...
    @property
    def session_id(self) -> str: ...
    @property
    def prompt_prefix(self) -> bytes: ...


def prompt_tokens(parsed: Described) -> int:
    """Expected of the prompt before any endpoint's own ratio is known."""
    return max(1, parsed.text_bytes // BYTES_PER_TOKEN) + parsed.num_images * TOKENS_PER_IMAGE


def describe(
    parsed: Described,
    caller: Caller,
    headers: Headers,
    *,
    request_id: str,
    tenant_secret: bytes,
    policy: Policy,
) -> RequestFacts:
    """
    The facts of one request.

    Session ids and prompt prefixes go in only as HMACs under the tenant's secret. Raises
    InvalidRequest for a bad `provider` object or header, PermissionDenied for a model that the
    key may not use.
    """
    ours = _our_headers(headers)
    models, suffix = _models(parsed, policy)
    if caller.models:
        _check_allowed(models, caller, policy)
    preferences = _NONE if parsed.provider is None else read_preferences(parsed.provider)
    session = next((ours[name] for name in _SESSION_HEADERS if name in ours), parsed.session_id)
    return RequestFacts(
        request_id=request_id,
        surface=parsed.surface,
        models=models,
        stream=parsed.stream,
        lane=_lane(ours.get(b"x-looprouter-lane", ""), suffix),
        tenant_id=caller.tenant_id,
        key_id=caller.key_id,
        key_name=caller.key_name,
        team_id=caller.team_id,
        text_bytes=parsed.text_bytes,
        num_images=parsed.num_images,
        prompt_tokens=prompt_tokens(parsed),
        max_tokens=parsed.max_tokens,
        needs=parsed.needs,
        # Only this wish reads them; the scan is not free.
        parameters=parsed.parameters if preferences.require_parameters else frozenset(),
        service_tier=parsed.service_tier,
        preferences=preferences,
        suffix=suffix,
        affinity_key=affinity_key(parsed.prompt_prefix, tenant_secret),
        session_key=_session_key(session, tenant_secret),
        no_explore=caller.no_explore,
        has_budget=bool(caller.budget_ids),
        num_choices=parsed.num_choices,
        deadline_s=_deadline_s(ours.get(b"x-looprouter-deadline", "")),
        tags=_tags(ours.get(b"x-looprouter-tags", "")),
    )


_NONE = ProviderPreferences()


def affinity_key(prompt_prefix: bytes, tenant_secret: bytes) -> str:
    """
    The prompt's first whole 1,024-token block, keyed and hashed; "" for a shorter prompt.

    Only the first block: later turns of a conversation keep the key, and providers cache nothing
    shorter. Two tenants never share a key (reliability B.4.2, F22).
    """
    if len(prompt_prefix) < AFFINITY_BLOCK_BYTES:
        return ""
    block = prompt_prefix[:AFFINITY_BLOCK_BYTES]
    return hmac.digest(tenant_secret, block, sha256)[:HMAC_BYTES].hex()


def _session_key(session: str, tenant_secret: bytes) -> str:
    if not session:
        return ""
    named = b"session:" + session[:SESSION_CHARS_MAX].encode("utf-8", "replace")
    return hmac.digest(tenant_secret, named, sha256)[:HMAC_BYTES].hex()


def _our_headers(headers: Headers) -> dict[bytes, str]:
    if isinstance(headers, Mapping):
        pairs: Iterable[tuple[bytes, bytes]] = (
            (k.lower().encode("latin-1", "replace"), v.encode("utf-8", "replace"))
            for k, v in headers.items()
        )
    else:
        pairs = headers
    return {
        name: value.decode("utf-8", "replace").strip() for name, value in pairs if name in _WANTED
    }


def allowed_model(name: str, caller: Caller, policy: Policy) -> str:
    """A model's name without its routing suffix. PermissionDenied where the key may not use it."""
    model = _split(name, policy)[0]
    if caller.models:
        _check_allowed((model,), caller, policy)
    return model


def _models(parsed: Described, policy: Policy) -> tuple[tuple[str, ...], str]:
    """The models wanted in order, each once, and the routing suffix of the first."""
    first, suffix = _split(parsed.model, policy)
    if not parsed.models:
        return (first,), suffix
    rest = (_split(name, policy)[0] for name in parsed.models)
    return tuple(dict.fromkeys((first, *rest))), suffix


def _split(name: str, policy: Policy) -> tuple[str, str]:
    """A known suffix comes off, unless the whole name is a model (`llama3.3:70b` is)."""
    base, colon, suffix = name.rpartition(":")
    if colon and suffix in SUFFIXES and name not in policy.pools:
        return base, suffix
    return name, ""


def _check_allowed(models: tuple[str, ...], caller: Caller, policy: Policy) -> None:
    """An endpoint id is allowed through any allowed model that it serves."""
    for model in models:
        if model in caller.models:
            continue
        if model in policy.endpoints and any(
            model in policy.models.get(allowed, ()) for allowed in caller.models
        ):
            continue
        raise PermissionDenied(
            f"this key may not use the model {model!r}; it may use "
            f"{', '.join(sorted(caller.models))}",
            param="model",
        )


def _lane(text: str, suffix: str) -> Lane:
    if not text:
        return Lane.BATCH if suffix == "batch" else Lane.INTERACTIVE
    if text not in ("batch", "interactive"):
        raise InvalidRequest(
            "the header x-looprouter-lane must be batch or interactive", param="x-looprouter-lane"
        )
    return Lane(text)


def _deadline_s(text: str) -> float | None:
    if not text:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(
            "the header x-looprouter-deadline must be a duration of 31 days at most, like 30s or "
            "24h",
            param="x-looprouter-deadline",
        ) from error


def _tags(text: str) -> frozenset[str]:
    if not text:
        return frozenset()
    tags = frozenset(tag.strip() for tag in text.split(",") if tag.strip())
    if len(tags) > TAGS_MAX or not all(_TAG.match(tag) for tag in tags):
        raise InvalidRequest(
            f"the header x-looprouter-tags holds at most {TAGS_MAX} tags of 64 letters, digits and "
            "_ . : -, separated by commas",
            param="x-looprouter-tags",
        )
    return tags
