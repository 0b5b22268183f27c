"""How many retries the whole gateway, and each tenant, may make: 20 % of its requests and 3 more.

Without it a general outage multiplies the load by the number of attempts (a retry storm). Counts
cover the last ten seconds; requests still in flight count too, so that slow failures (timeouts)
have a budget as well. Envoy's retry budget with a window, so that it also bounds fast failures.
"""

from __future__ import annotations

from collections import OrderedDict

SHARE = 0.2
FLOOR = 3
WINDOW_S = 10
TENANTS_MAX = 10_000


class _Window:
    """Requests and retries begun, by second, and requests in flight."""

    __slots__ = ("_requests", "_retries", "_second", "active", "num_requests", "num_retries")

    def __init__(self) -> None:
        self._requests = [0] * WINDOW_S
        self._retries = [0] * WINDOW_S
        self._second = 0
        self.active = 0
        self.num_requests = 0
        self.num_retries = 0

    def advance(self, second: int) -> int:
        """Forget seconds that left the window; returns the slot of `second`."""
        for passed in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            slot = passed % WINDOW_S
            self.num_requests -= self._requests[slot]
            self.num_retries -= self._retries[slot]
            self._requests[slot] = self._retries[slot] = 0
        self._second = max(self._second, second)
        return self._second % WINDOW_S

    def begin(self, second: int) -> None:
        slot = self.advance(second)
        self._requests[slot] += 1
        self.num_requests += 1
        self.active += 1

    def take(self, second: int) -> None:
        slot = self.advance(second)
        self._retries[slot] += 1
        self.num_retries += 1

    def has_room(self, second: int, share: float, floor: int) -> bool:
        self.advance(second)
        return self.num_retries < floor + int(share * max(self.num_requests, self.active))


class RetryBudget:
    """Retry permits. Every request calls `begin` once and `end` once."""

    def __init__(self, *, tenants_max: int = TENANTS_MAX) -> None:
        self._all = _Window()
        self._tenants: OrderedDict[str, _Window] = OrderedDict()
        self._tenants_max = tenants_max
        self.num_denied = 0

    def begin(self, tenant_id: str, now: float) -> None:
        self._all.begin(int(now))
        self._tenant(tenant_id).begin(int(now))

    def end(self, tenant_id: str) -> None:
        self._all.active -= 1
        window = self._tenants.get(tenant_id)
        if window is not None:
            window.active = max(0, window.active - 1)

    def take(self, tenant_id: str, now: float, *, share: float = SHARE, floor: int = FLOOR) -> bool:
        """Spend one permit of the gateway and of the tenant, or neither."""
        second = int(now)
        tenant = self._tenant(tenant_id)
        if not (self._all.has_room(second, share, floor) and tenant.has_room(second, share, floor)):
            self.num_denied += 1
            return False
        self._all.take(second)
        tenant.take(second)
        return True

    def _tenant(self, tenant_id: str) -> _Window:
        window = self._tenants.get(tenant_id)
        if window is None:
            window = self._tenants[tenant_id] = _Window()
            if len(self._tenants) > self._tenants_max:
                # The one unused for longest; at worst its floor of permits is renewed early.
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant_id)
        return window
