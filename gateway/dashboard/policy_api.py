"""The policy in the admin JSON API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.types import ControllerRouterHandler

from gateway.dashboard import policy_data
from gateway.dashboard.page import AnyRequest, Desk
from gateway.dashboard.policy_backtest import Backtest, Backtests, BacktestWanted
from gateway.dashboard.policy_data import (
    Checked,
    History,
    PolicyShown,
    Published,
    PublishWanted,
    RollbackWanted,
    TextWanted,
    VersionText,
)
from gateway.dashboard.policy_explain import Explained, explain_with
from gateway.dashboard.roles import OPERATOR, VIEWER
from gateway.policy.jsonschema import policy_schema

TAGS = ["policy"]


class ExplainOf(TextWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy and a request as a client would send it."""

    request: dict[str, Any]
    surface: str = "chat"
    seed: int = 1  # of the Thompson draw


class BacktestOf(BacktestWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy, and over which requests it is tried."""

    text: str


def policy_api(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Handlers below /admin/api. Whoever may not change the policy reads it and its history."""
    return [*_reads(desk), *_trials(desk), *_writes(desk)]


def _reads(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @get("/policy", opt=VIEWER, tags=TAGS)
    async def read_policy() -> PolicyShown:
        """The policy in force, verbatim, and where it lives."""
        return await policy_data.show_policy(desk)

    @get("/policy/schema", opt=VIEWER, tags=TAGS)
    async def read_schema() -> dict[str, Any]:
        """The JSON Schema of a policy, with every field's description."""
        return policy_schema()

    @get("/policy/versions", opt=VIEWER, tags=TAGS)
    async def list_versions(before: FromQuery[int | None] = None) -> History:
        """Who put which version into force, when and why; newest first."""
        return await policy_data.list_versions(desk, before=before)

    @get("/policy/versions/{version:str}", opt=VIEWER, tags=TAGS)
    async def read_version(version: FromPath[str]) -> VersionText:
        """A version's text, and what going back to it would change. 500 texts are kept."""
        return await policy_data.find_version(desk, version)

    return [read_policy, read_schema, list_versions, read_version]


def _trials(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @post("/policy/check", opt=OPERATOR, status_code=200, tags=TAGS)
    async def check(data: JSONBody[TextWanted]) -> Checked:
        """What is wrong with a text, by line and column, and how it differs from what is live."""
        return await policy_data.check_text(desk, data.text)

    @post("/policy/explain", opt=OPERATOR, status_code=200, tags=TAGS)
    async def explain(data: JSONBody[ExplainOf]) -> Explained:
        """Decide a request under a text, with every candidate and score term; nothing is sent."""
        policy = await policy_data.loaded(desk, data.text)
        body = msgspec.json.encode(data.request)
        return explain_with(desk, policy, body, data.surface, seed=data.seed)

    @post("/policy/backtest", opt=OPERATOR, status_code=200, tags=TAGS)
    async def backtest(data: JSONBody[BacktestOf]) -> Backtest:
        """Decide the recorded requests again under a text. One runs at a time, for 60 s at most."""
        return await backtested(desk, data.text, data)

    return [check, explain, backtest]


def _writes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @post("/policy/publish", opt=OPERATOR, status_code=200, tags=TAGS)
    async def publish(request: AnyRequest, data: JSONBody[PublishWanted]) -> Published:
        """Put a text into force. 409 where something else than `base` is there now."""
        return await policy_data.publish(request, desk, data)

    @post("/policy/versions/{version:str}/rollback", opt=OPERATOR, status_code=200, tags=TAGS)
    async def roll_back(
        request: AnyRequest, version: FromPath[str], data: JSONBody[RollbackWanted]
    ) -> Published:
        """Put an earlier text into force again."""
        return await policy_data.roll_back(request, desk, version, data)

    return [publish, roll_back]


async def backtested(desk: Desk, text: str, wanted: BacktestWanted) -> Backtest:
    """The backtest of a text that loads. InvalidRequest for one that does not."""
    await policy_data.loaded(desk, text)
    live = policy_data.home_of(desk).text
    return await desk.only(Backtests).run(text.encode(), live, wanted)
