"""Where a prompt should go for its prefix, and what each endpoint has cached of it."""

from __future__ import annotations

from gateway.core import EndpointLive, RequestFacts
from gateway.fleet.affinity import Affinity, home, load_max
from gateway.fleet.live import LiveEndpoint

Members = dict[str, LiveEndpoint]  # by endpoint id


def placed(
    facts: RequestFacts, affinity: Affinity, members: Members, now_s: float
) -> dict[str, EndpointLive]:
    """
    The views of those that have something of the prompt cached, or should get it.

    Should get it: who served the session or prefix last, unless it holds more than its bounded
    share of all that is in flight; then, and for a prefix not seen lately, its home.
    """
    last, tokens = affinity.expected_of(facts.session_key, facts.affinity_key, now_s)
    seeds, loads = [], []
    for endpoint_id, live in members.items():
        if live.calm_view is not None or live.is_closed(now_s):
            seeds.append((endpoint_id, live.seed))
            loads.append(live.in_flight)
    used = members.get(last)
    is_kept = used is not None and used.in_flight < load_max(sum(loads), max(1, len(loads)))
    place = last if is_kept else home(facts.affinity_key or facts.session_key, seeds, loads)
    tokens.setdefault(place, 0)
    views = {}
    for endpoint_id, num_tokens in tokens.items():
        found = members.get(endpoint_id)
        if found is not None:
            is_here = endpoint_id == place
            views[endpoint_id] = found.view(
                now_s,
                int(min(num_tokens, facts.prompt_tokens) * found.cache_ratio),
                is_last=is_here and is_kept,
                is_home=is_here and not is_kept,
            )
    return views
