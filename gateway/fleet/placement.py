"""Where a prompt should go for its prefix, and what each endpoint has cached of it."""

from __future__ import annotations

from gateway.core import EndpointLive, RequestFacts
from gateway.fleet.affinity import Affinity, home, load_max
from gateway.fleet.live import LiveEndpoint

Members = tuple[tuple[str, LiveEndpoint], ...]  # by endpoint id


def placed(
    facts: RequestFacts, affinity: Affinity, members: Members, now_s: float
) -> dict[str, EndpointLive]:
    """
    The views of those that have something of the prompt cached, or should get it.

    Should get it: who served the session or prefix last, unless it holds more than its bounded
    share of all that is in flight; then, and for a prefix not seen lately, its home.
    """
    last, tokens = affinity.expected_of(facts.session_key, facts.affinity_key, now_s)
    able, num_in_flight = [], 0
    for each in members:
        live = each[1]
        if live.calm_view is not None or live.is_closed(now_s):
            able.append(each)
            num_in_flight += live.in_flight
    used = next((live for endpoint_id, live in members if endpoint_id == last), None)
    is_kept = used is not None and used.in_flight < load_max(num_in_flight, max(1, len(able)))
    place = last
    if not is_kept:
        place = home(
            facts.affinity_key or facts.session_key,
            [(endpoint_id, live.seed) for endpoint_id, live in able],
            [live.in_flight for _, live in able],
        )
    views = {}
    for endpoint_id, live in members:
        num_tokens = tokens.get(endpoint_id, 0)
        is_here = endpoint_id == place
        if num_tokens or is_here:
            views[endpoint_id] = live.view(
                now_s,
                int(min(num_tokens, facts.prompt_tokens) * live.cache_ratio),
                is_last=is_here and is_kept,
                is_home=is_here and not is_kept,
            )
    return views
