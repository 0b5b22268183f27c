"""Takes the docs' pictures of the dashboard's pages, before a demo gateway that is in use.

    python tests/browser/pictures.py docs/images [NAME …]

NAME is a page's, as in the picture's file name (`now`, `key`, …): only those are taken then. A
month of spend is written beforehand (tests/support/lived_in.py says how and what it leaves out), so
budgets of a month have the most to show in its second half; the rest is what some applications ask
in two minutes. Backend has a script of its own, for a model must run there; Batch is pictured by
its suite: LOOPROUTER_SCREENSHOTS=FOLDER with test_batch.py.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.browser.node_script import run_node
from tests.run_tests import browser_packages
from tests.support.busy_callers import busy_callers
from tests.support.lived_in import FAST, FLAKY, furnish
from tests.support.up_process import Up, running_up

LIVED_S = 120.0
PAUSED_S = 12.0
NOTE = "A second of waiting costs us more than we had put down"


class Admin:
    """The admin API, as a script uses it."""

    def __init__(self, up: Up) -> None:
        self._http = httpx.Client(
            base_url=f"{up.base_url}/admin/api", headers={"origin": up.base_url}, timeout=30
        )
        self._keep(self.send("GET", "session"))
        name, password = up.login
        self._keep(self.send("POST", "session", name=name, password=password))

    def _keep(self, session: Any) -> None:
        self._http.headers["x-csrf-token"] = session["csrf"]

    def send(self, method: str, path: str, **fields: object) -> Any:
        """The answer's JSON; raises for an error."""
        answer = self._http.request(method, f"/{path}", json=fields or None)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None


def rule(admin: Admin) -> None:
    """What operators do of a day: a baseline, colleagues, ages, a new policy, a pause."""
    admin.send("PUT", "spend/baseline", endpoint=FAST)
    admin.send("POST", "admins", name="grace", role="operator")
    admin.send("POST", "admins", name="linus", role="viewer")
    admin.send("PUT", "settings/retention", requests=30, minutes=2)
    shown = admin.send("GET", "policy")
    text = shown["text"].replace("usd_per_second: 0.0005", "usd_per_second: 0.001")
    assert text != shown["text"]
    admin.send("POST", "policy/publish", text=text, base=shown["held"], note=NOTE)
    admin.send("POST", "endpoints/pause", endpoint=FLAKY, note="its provider mends a rack")
    time.sleep(PAUSED_S)
    admin.send("POST", "endpoints/resume", endpoint=FLAKY)


@contextmanager
def lived_in(home: Path) -> Iterator[dict[str, object]]:
    """A gateway in use; what a script in `node/` has to know of it."""
    owned = asyncio.run(furnish(home))
    with (
        running_up(home, "--demo", "--lite", "--port", "0") as up,
        busy_callers(up.base_url, owned) as traffic,
    ):
        until_s = time.monotonic() + LIVED_S
        rule(Admin(up))
        time.sleep(max(0.0, until_s - time.monotonic()))
        print(f"asked in {LIVED_S:.0f} s, by status: {dict(traffic.counts)}", flush=True)
        admin, password = up.login
        yield {
            "base_url": up.base_url,
            "admin": admin,
            "password": password,
            "key": owned.keys["website chat"].row.id,
        }


def main(folder: Path, names: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="looprouter-") as home,
        browser_packages() as chromium,
        lived_in(Path(home)) as world,
    ):
        images = str(folder.resolve())
        run_node("pictures.mjs", {**world, "images": images, "chromium": chromium, "names": names})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
