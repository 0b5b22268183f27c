"""OpenRouter's `provider` object of a request, field by field, as ProviderPreferences."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.core import ProviderPreferences
from gateway.errors import InvalidRequest

_Slug = Annotated[str, Meta(min_length=1, max_length=256)]
_Slugs = Annotated[tuple[_Slug, ...], Meta(max_length=64)]
_Amount = Annotated[float, Meta(ge=0, le=1e9)]
_Sort = Literal["price", "throughput", "latency"]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds by percentile."""

    p50: _Amount | None = None
    p75: _Amount | None = None
    p90: _Amount | None = None
    p99: _Amount | None = None


class MaxPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars per million tokens; `request` is dollars a request. Numbers may come as text."""

    prompt: _Amount | str | None = None
    completion: _Amount | str | None = None
    request: _Amount | str | None = None
    image: _Amount | str | None = None
    audio: _Amount | str | None = None


class SortBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The long form of `sort`."""

    by: _Sort
    partition: Literal["model", "none"] = "model"


class ProviderObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object as it stands on the wire; null is the same as left out."""

    order: _Slugs | None = None
    allow_fallbacks: bool | None = None
    require_parameters: bool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: bool | None = None
    enforce_distillable_text: bool | None = None
    only: _Slugs | None = None
    ignore: _Slugs | None = None
    quantizations: Annotated[tuple[str, ...], Meta(max_length=16)] | None = None
    sort: SortBy | str | None = None
    preferred_min_throughput: Percentiles | _Amount | None = None
    preferred_max_latency: Percentiles | _Amount | None = None
    max_price: MaxPrice | None = None


_decoder = msgspec.json.Decoder(ProviderObject)
_KNOWN_QUANTISATIONS = frozenset({
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32",
    "unknown",
})  # fmt: skip
_SORT_WORDS = ("price", "throughput", "latency")


def read_preferences(raw: bytes) -> ProviderPreferences:
    """
    The preferences a request states.

    A field we do not know is an error, not a shrug: it may be a limit the caller relies on.
    """
    try:
        stated = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise InvalidRequest(
            f"provider{path.rstrip('`')}: {message}", param=f"provider{path.rstrip('`')}"
        ) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest("provider: must be an object", param="provider") from error
    wrong = [q for q in stated.quantizations or () if q not in _KNOWN_QUANTISATIONS]
    if wrong:
        raise InvalidRequest(
            f"provider.quantizations: {wrong[0][:32]!r} is unknown; use "
            f"{', '.join(sorted(_KNOWN_QUANTISATIONS))}",
            param="provider.quantizations",
        )
    sort, partition = _sort(stated.sort)
    return ProviderPreferences(
        order=stated.order or (),
        allow_fallbacks=stated.allow_fallbacks is not False,
        require_parameters=bool(stated.require_parameters),
        data_collection=stated.data_collection or "allow",
        zdr=bool(stated.zdr),
        enforce_distillable_text=bool(stated.enforce_distillable_text),
        only=stated.only or (),
        ignore=stated.ignore or (),
        quantizations=stated.quantizations or (),
        sort=sort,
        partition=partition,
        preferred_min_throughput=_percentiles(stated.preferred_min_throughput),
        preferred_max_latency=_percentiles(stated.preferred_max_latency),
        max_price=_max_price(stated.max_price),
    )


def _sort(stated: SortBy | str | None) -> tuple[str, str]:
    if stated is None:
        return "", "model"
    if isinstance(stated, SortBy):
        return stated.by, stated.partition
    if stated not in _SORT_WORDS:
        raise InvalidRequest(
            f"provider.sort: {stated[:32]!r} is unknown; use {', '.join(_SORT_WORDS)}",
            param="provider.sort",
        )
    return stated, "model"


def _percentiles(stated: Percentiles | float | None) -> tuple[tuple[str, float], ...]:
    """A plain number is the median."""
    if stated is None:
        return ()
    if not isinstance(stated, Percentiles):
        return (("p50", stated),)
    named = ((name, getattr(stated, name)) for name in Percentiles.__struct_fields__)
    return tuple((name, float(amount)) for name, amount in named if amount is not None)


def _max_price(stated: MaxPrice | None) -> tuple[tuple[str, float], ...]:
    if stated is None:
        return ()
    limits = []
    for name in MaxPrice.__struct_fields__:
        amount = getattr(stated, name)
        if amount is None:
            continue
        try:
            number = float(amount)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= 1e9:
            raise InvalidRequest(
                f"provider.max_price.{name}: must be a number of dollars, 0 or more",
                param=f"provider.max_price.{name}",
            )
        limits.append((name, number))
    return tuple(limits)
