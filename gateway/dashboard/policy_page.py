"""The page Policy: edit, check, try, publish and roll back the one policy.

Everything on it works as a plain form that answers with the whole page. With htmx the parts for
the check, the explanation and the backtest are asked for alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, URLEncodedBody
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from gateway.dashboard import forms, policy_data
from gateway.dashboard.look import ROOT, look_of, page
from gateway.dashboard.page import AnyRequest, Desk, Page, session_of
from gateway.dashboard.policy_api import backtested, policy_api
from gateway.dashboard.policy_backtest import HOURS_MAX, ROWS_MAX, Against, BacktestWanted
from gateway.dashboard.policy_chart import trial_rows
from gateway.dashboard.policy_data import NOTE_CHARS_MAX, PublishWanted, RollbackWanted
from gateway.dashboard.policy_explain import SURFACES, explain_with
from gateway.dashboard.roles import OPERATOR, VIEWER, has_role
from gateway.errors import ApiError

Fields = Mapping[str, str]
Form = URLEncodedBody[dict[str, str]]
HERE = f"{ROOT}/policy"
SAMPLE = """{
  "model": "%s",
  "stream": true,
  "max_tokens": 400,
  "messages": [{"role": "user", "content": "Hello"}]
}"""
HOURS = (1, 6, 24, 72, HOURS_MAX)
ROWS = (500, 2_000, 5_000, ROWS_MAX)
SEEDS_MAX = 2**31


def policy_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Pages below /admin."""

    @get("/policy", opt=VIEWER)
    async def show(
        request: AnyRequest, open: FromQuery[str] = "", before: FromQuery[int | None] = None
    ) -> Response[Any]:
        return await _page(request, desk, before=before, opens_held=open == "held")

    @get("/policy/versions/{version:str}", opt=VIEWER)
    async def show_version(request: AnyRequest, version: FromPath[str]) -> Response[Any]:
        return await _version(request, desk, version)

    return [show, show_version]


def trial_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """What the page's buttons ask; nothing is changed."""

    @post("/policy/check", opt=OPERATOR, status_code=200)
    async def check(request: AnyRequest, data: Form) -> Response[Any]:
        text = _text(desk, data)
        if "hx-request" not in request.headers:
            return await _page(request, desk, fields=data)
        checked = await policy_data.check_text(desk, text)
        return page("policy_check.html", look_of(request, desk), checked=checked)

    @post("/policy/explain", opt=OPERATOR, status_code=200)
    async def explain(request: AnyRequest, data: Form) -> Response[Any]:
        values: dict[str, Any] = {"explained": None, "explain_problem": ""}
        try:
            policy = await policy_data.loaded(desk, _text(desk, data))
            seed = forms.whole_number(data, "seed") or 1
            values["explained"] = explain_with(
                desk, policy, data.get("request", "").encode(), data.get("surface", ""),
                seed=min(seed, SEEDS_MAX),
            )  # fmt: skip
        except ApiError as error:
            values["explain_problem"] = error.message
        if "hx-request" in request.headers:
            return page("policy_explain.html", look_of(request, desk), **values)
        return await _page(request, desk, fields=data, **values)

    @post("/policy/backtest", opt=OPERATOR, status_code=200)
    async def backtest(request: AnyRequest, data: Form) -> Response[Any]:
        values: dict[str, Any] = {"trial": None, "trial_problem": ""}
        try:
            against: Against = "live" if data.get("against") == "live" else "happened"
            wanted = BacktestWanted(
                against=against,
                hours=float(forms.whole_number(data, "hours") or 24),
                rows_max=forms.whole_number(data, "rows_max") or 5_000,
            )
            found = await backtested(desk, _text(desk, data), wanted)
            values |= {"trial": found, "against": against, "trial_rows": trial_rows(found)}
        except ApiError as error:
            values["trial_problem"] = error.message
        if "hx-request" in request.headers:
            return page("policy_backtest.html", look_of(request, desk), **values)
        return await _page(request, desk, fields=data, **values)

    return [check, explain, backtest]


def write_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """What puts a version into force."""

    @post("/policy/publish", opt=OPERATOR, status_code=200)
    async def publish(request: AnyRequest, data: Form) -> Response[Any]:
        wanted = PublishWanted(
            text=_text(desk, data),
            base=data.get("on", "") or data.get("base", ""),
            note=data.get("note", ""),
        )
        try:
            await policy_data.publish(request, desk, wanted)
        except ApiError as error:
            return await _page(request, desk, fields=data, error=error)
        return Redirect(HERE, status_code=303)

    @post("/policy/versions/{version:str}/rollback", opt=OPERATOR, status_code=200)
    async def roll_back(request: AnyRequest, version: FromPath[str], data: Form) -> Response[Any]:
        wanted = RollbackWanted(base=data.get("base", ""), note=data.get("note", ""))
        try:
            await policy_data.roll_back(request, desk, version, wanted)
        except ApiError as error:
            return await _version(request, desk, version, error=error, note=wanted.note)
        return Redirect(HERE, status_code=303)

    return [publish, roll_back]


PAGE = Page(
    path="/policy",
    title="policy.title",
    role="viewer",
    routes=lambda desk: [*policy_routes(desk), *trial_routes(desk), *write_routes(desk)],
    api_routes=policy_api,
)


def _text(desk: Desk, fields: Fields) -> str:
    """As it was typed: browsers send CRLF whatever the text had."""
    text = fields.get("text", "").replace("\r\n", "\n")
    live = policy_data.home_of(desk).text
    is_crlf = b"\r\n" in live and live.count(b"\n") == live.count(b"\r\n")
    return text.replace("\n", "\r\n") if is_crlf else text


async def _page(
    request: AnyRequest,
    desk: Desk,
    *,
    before: int | None = None,
    opens_held: bool = False,
    fields: Fields | None = None,
    error: ApiError | None = None,
    **trials: Any,
) -> Response[Any]:
    """The page; `fields` are what a form sent, which is shown again and not lost."""
    shown = await policy_data.show_policy(desk)
    may_write = has_role(session_of(request).admin.role, "operator")
    text, base = shown.text, shown.version
    if fields is not None:
        text, base = _text(desk, fields), fields.get("base", "")
    elif opens_held and may_write:
        held = await policy_data.read_held(policy_data.home_of(desk))
        text, base = held.text.decode(errors="replace"), held.version
    models = list(desk.gateway.policy().models)
    asked = fields or {}
    values: dict[str, Any] = {
        "explained": None, "explain_problem": "", "trial": None, "trial_problem": "",
        "against": "happened", "trial_rows": [], **trials,
    }  # fmt: skip
    return page(
        "policy.html",
        look_of(request, desk),
        status=error.status if error is not None else 200,
        shown=shown,
        text=text,
        base=base,
        note=asked.get("note", ""),
        note_max=NOTE_CHARS_MAX,
        checked=await policy_data.check_text(desk, text),
        problem=error.message if error is not None else "",
        is_conflict=error is not None and error.code == "policy_changed",
        history=await policy_data.list_versions(desk, before=before),
        may_write=may_write,
        num_processes=desk.gateway.settings.replicas,
        surfaces=SURFACES,
        surface=asked.get("surface", "chat"),
        sample=asked.get("request") or SAMPLE % (models[0] if models else "chat"),
        hours=HOURS,
        hours_asked=asked.get("hours", "24"),
        rows=ROWS,
        rows_asked=asked.get("rows_max", "5000"),
        moment=forms.moment,
        **values,
    )


async def _version(
    request: AnyRequest,
    desk: Desk,
    version: str,
    *,
    error: ApiError | None = None,
    note: str = "",
) -> Response[Any]:
    look = look_of(request, desk)
    found = await policy_data.find_version(desk, version)
    shown = await policy_data.show_policy(desk)
    return page(
        "policy_version.html",
        look,
        status=error.status if error is not None else 200,
        found=found,
        shown=shown,
        checked=found.checked,
        note=note or look.t("policy.rollback_note", version=version),
        note_max=NOTE_CHARS_MAX,
        problem=error.message if error is not None else "",
        may_write=has_role(session_of(request).admin.role, "operator"),
        moment=forms.moment,
    )
