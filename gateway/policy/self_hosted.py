"""A machine of one's own in a policy: what its hour costs, and what is assumed until measured."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core import PriceRow
from gateway.policy.schema import EndpointSpec, Provider, SelfHosted
from gateway.policy.units import nanos_of
from gateway.prices.rows import average_row

WATTS_OF_KILOWATT = 1_000.0


def check_self_hosted(spec: SelfHosted, at: str, report: Callable[[str, str], None]) -> None:
    """Report what does not go together with the billing stated."""
    electricity = {"watts": spec.watts, "usd_per_kwh": spec.usd_per_kwh}
    if spec.billing == "owned":
        for name, stated in electricity.items():
            if stated is None:
                report(
                    f"{at}.{name}",
                    "is missing; of an owned machine only electricity counts: state watts and "
                    "usd_per_kwh",
                )
        if spec.usd_per_hour is not None:
            report(
                f"{at}.usd_per_hour",
                "is for billing: on_demand; an owned machine costs its electricity: remove one of "
                "the two",
            )
        return
    if spec.usd_per_hour is None:
        report(
            f"{at}.usd_per_hour",
            "is missing; state what the machine costs an hour, or billing: owned with watts and "
            "usd_per_kwh",
        )
    for name, stated in electricity.items():
        if stated is not None:
            report(f"{at}.{name}", "is for billing: owned; remove it, or say billing: owned")


def hour_nanos(spec: SelfHosted) -> int:
    """Nano-dollars that the machine costs in an hour of work."""
    if spec.billing == "owned":
        return nanos_of((spec.watts or 0.0) / WATTS_OF_KILOWATT * (spec.usd_per_kwh or 0.0))
    return nanos_of(spec.usd_per_hour or 0.0)


def machine_of(
    spec: EndpointSpec, provider: Provider, names: tuple[str, str]
) -> tuple[SelfHosted | None, str]:
    """
    (what is stated, whose hour it is): a provider's endpoints share its machine.

    `names`: the provider's, and the endpoint's id.
    """
    if spec.self_hosted is not None:
        return spec.self_hosted, names[1]
    return provider.self_hosted, names[0] if provider.self_hosted is not None else ""


def assumed_row(spec: SelfHosted, endpoint_id: str) -> PriceRow:
    """The average price where fewer tokens were measured than are assumed."""
    return average_row(hour_nanos(spec), spec.tokens_per_hour, f"assumed:{endpoint_id}")
