"""One prompt to several endpoints at once: what may be asked, how each lane runs, who wins.

A lane is an ordinary streamed chat request to one endpoint (`Inbound.only_endpoint`): decided,
reserved, billed, recorded and learned from like any other, under the key that pays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gateway.api.problems import as_api_error
from gateway.core import Caller, EndpointStats, PriceRow, dollars
from gateway.dashboard.answer_sink import AnswerSink
from gateway.dashboard.board import speed_of
from gateway.errors import ApiError, InvalidRequest
from gateway.measure.recorder import RequestRecord
from gateway.pipeline import Gateway, Inbound, serve
from gateway.policy.facts import BYTES_PER_TOKEN
from gateway.policy.policy import Policy
from gateway.prices.rows import STANDARD, cost_nanos, pick_row
from gateway.relay.money import characters_per_token
from gateway.store.requests import RequestRow
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage

LANES_MAX = 4
PROMPT_CHARS_MAX = 100_000  # system and user together
OUTPUT_TOKENS_MAX = 16_384
TEMPERATURE_MAX = 2.0
RACE_S_MAX = 600.0
RACE_HEADERS = {"x-looprouter-tags": "dashboard,race"}
SPAN_MIN_S = 0.25  # less says nothing of speed, as on the board

RUNNING = ("waiting", "streaming")


class LaneWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A public model, and the endpoint of it that shall answer."""

    model: str
    endpoint: str


class RaceWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt and who gets it. `key`: whose key pays, by its public id; "" = the dashboard's."""

    prompt: str
    lanes: tuple[LaneWanted, ...]
    system: str = ""
    max_tokens: int = 512
    temperature: float | None = None
    key: str = ""


class LaneNews(msgspec.Struct, frozen=True, kw_only=True):
    """
    One lane as it is now; `text` and `reasoning` are what came since the last news.

    While it runs tokens, speed and cost are estimates by characters; at its end they are those
    that were measured and billed (`is_final`).
    """

    lane: int
    state: str  # "waiting" | "streaming" | "done" | "failed" | "stopped"
    text: str = ""
    reasoning: str = ""
    ttft_s: float | None = None
    duration_s: float | None = None
    output_tokens: int = 0
    tokens_per_s: float | None = None
    cost_usd: str = "0.00"
    is_unpriced: bool = False
    is_final: bool = False
    status: int = 0
    finish: str = ""
    error: str = ""
    error_code: str = ""


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Which lanes lead; several where they are equal. `winner` was the first to finish."""

    winner: tuple[int, ...] = ()
    first_token: tuple[int, ...] = ()
    fastest: tuple[int, ...] = ()
    cheapest: tuple[int, ...] = ()


def check_race(wanted: RaceWanted, policy: Policy) -> None:
    """Raise InvalidRequest, with the field, for what no race may be."""
    if not 1 <= len(wanted.lanes) <= LANES_MAX:
        _refuse("lanes", f"a race has 1 to {LANES_MAX} lanes, this one has {len(wanted.lanes)}")
    if len({(lane.model, lane.endpoint) for lane in wanted.lanes}) < len(wanted.lanes):
        _refuse("lanes", "an endpoint runs only once for a model; choose different ones")
    for lane in wanted.lanes:
        if lane.endpoint not in policy.models.get(lane.model, ()):
            _refuse(
                "lanes",
                f"the policy has no endpoint {lane.endpoint[:80]!r} of the model "
                f"{lane.model[:80]!r}; load the page again if it was changed",
            )
    if not wanted.prompt.strip():
        _refuse("prompt", "the prompt is empty; write what the endpoints shall answer")
    num_chars = len(wanted.system) + len(wanted.prompt)
    if num_chars > PROMPT_CHARS_MAX:
        _refuse("prompt", f"{num_chars:,} characters are too many; at most {PROMPT_CHARS_MAX:,}")
    if not 1 <= wanted.max_tokens <= OUTPUT_TOKENS_MAX:
        _refuse("max_tokens", f"max_tokens lies between 1 and {OUTPUT_TOKENS_MAX}")
    temperature = wanted.temperature
    if temperature is not None and not 0.0 <= temperature <= TEMPERATURE_MAX:
        _refuse("temperature", f"the temperature lies between 0 and {TEMPERATURE_MAX:g}")


def _refuse(param: str, message: str) -> None:
    raise InvalidRequest(message, param=param)


def prompt_tokens_of(wanted: RaceWanted) -> int:
    """Estimated as for every request."""
    num_bytes = len(wanted.system.encode()) + len(wanted.prompt.encode())
    return max(1, num_bytes // BYTES_PER_TOKEN)


def chat_body(wanted: RaceWanted, model: str) -> bytes:
    """What each lane sends, but for its model."""
    messages = [{"role": "user", "content": wanted.prompt}]
    if wanted.system.strip():
        messages.insert(0, {"role": "system", "content": wanted.system})
    body: dict[str, object] = {
        "model": model,
        "messages": messages,
        "max_tokens": wanted.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if wanted.temperature is not None:
        body["temperature"] = wanted.temperature
    return msgspec.json.encode(body)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a lane sends, who pays for it, and whom to wake when something came."""

    body: bytes
    prompt_tokens: int  # estimate
    caller: Caller
    changed: asyncio.Event


class Lane:
    """One endpoint's run."""

    def __init__(self, gateway: Gateway, idx: int, wanted: LaneWanted, ask: Ask) -> None:
        self.idx = idx
        self.wanted = wanted
        self.request_id = gateway.new_request_id()
        self.sink = AnswerSink(gateway.clock, ask.changed)
        self.place = 0  # in the order of those that finished; 0 = not
        self._gateway = gateway
        self._ask = ask
        self._began_s = gateway.clock()
        self._error: ApiError | None = None
        self._record: RequestRecord | None = None
        self._row: RequestRow | None = None
        self.is_over = False
        snapshot = gateway.fleet.snapshot()
        self._stats: EndpointStats | None = snapshot.stats.get(wanted.endpoint)
        self._prices: Sequence[PriceRow] = snapshot.prices.get(wanted.endpoint, ())

    async def run(self, next_place: Callable[[], int]) -> None:
        """To its end, however that is."""
        gateway = self._gateway
        self._began_s = gateway.clock()
        inbound = Inbound(
            request_id=self.request_id,
            surface=Surface.CHAT,
            caller=self._ask.caller,
            headers=RACE_HEADERS,
            body=self._ask.body,
            client=self.sink,
            received_at_s=self._began_s,
            only_endpoint=self.wanted.endpoint,
        )
        try:
            self._record = await serve(gateway, inbound)
            self._row = self._record.row()
        except Exception as error:
            self._error = as_api_error(error)
        finally:
            self.is_over = True
            if self.state == "done":
                self.place = next_place()
            self._ask.changed.set()

    @property
    def state(self) -> str:
        sink = self.sink
        if not self.is_over:
            return "waiting" if sink.first_at_s is None else "streaming"
        if self._error is not None or sink.error is not None:
            return "failed"
        if sink.gone.is_set():
            return "stopped"
        return "done" if 200 <= sink.status < 300 else "failed"

    def news(self) -> LaneNews:
        """As it is now; takes the text that came."""
        text, reasoning = self.sink.take()
        seen = self._final() if self._row is not None else self._so_far()
        said = self.sink.error
        return msgspec.structs.replace(
            seen,
            text=text,
            reasoning=reasoning,
            status=self._error.status if self._error is not None else self.sink.status,
            finish=self.sink.finish_reason,
            error=self._error.message if self._error else said.message if said else "",
            error_code=(self._error.code or "") if self._error else said.code if said else "",
        )

    def _so_far(self) -> LaneNews:
        """By characters: what the endpoint's tokens are believed to hold."""
        sink, now_s = self.sink, self._gateway.clock()
        tokens = round(sink.num_chars / characters_per_token(self._stats))
        first_s = sink.first_at_s
        span_s = now_s - first_s if first_s is not None else 0.0
        prompt_tokens = self._ask.prompt_tokens
        row = pick_row(self._prices, tier=STANDARD, context_tokens=prompt_tokens)
        nanos = cost_nanos(row, Usage(input=prompt_tokens, output=tokens)) if sink.status else 0
        return LaneNews(
            lane=self.idx,
            state=self.state,
            ttft_s=None if first_s is None else first_s - self._began_s,
            duration_s=now_s - self._began_s,
            output_tokens=tokens,
            tokens_per_s=tokens / span_s if span_s >= SPAN_MIN_S else None,
            cost_usd=dollars(nanos),
            is_unpriced=not row.is_priced,
        )

    def _final(self) -> LaneNews:
        row, first_s = self._row, self.sink.first_at_s
        assert row is not None
        assert row.duration_ms is not None

        usage = row.usage
        return LaneNews(
            lane=self.idx,
            state=self.state,
            ttft_s=None if first_s is None else first_s - self._began_s,
            duration_s=row.duration_ms / 1000.0,
            output_tokens=usage.output_total if usage is not None else 0,
            tokens_per_s=speed_of(row),
            cost_usd=dollars(row.cost_nanos),
            is_unpriced=row.cost_nanos == 0 and not any(each.is_priced for each in self._prices),
            is_final=True,
        )


def marks_of(lanes: Sequence[Lane], news: Sequence[LaneNews]) -> Marks:
    """Who leads so far; speed and cost are compared when all have ended. One alone wins nothing."""
    if len(lanes) < 2:
        return Marks()
    finished = [lane.idx for lane in lanes if lane.place == 1]
    alive = [each for each in news if each.state in ("streaming", "done")]
    marks = Marks(
        winner=tuple(finished),
        first_token=_least(alive, lambda each: each.ttft_s, at_least=1),
    )
    if any(each.state in RUNNING for each in news):
        return marks
    done = [each for each in news if each.state == "done"]
    return msgspec.structs.replace(
        marks,
        fastest=_least(
            done, lambda each: -each.tokens_per_s if each.tokens_per_s is not None else None
        ),
        cheapest=_least(done, lambda each: None if each.is_unpriced else float(each.cost_usd)),
    )


def _least(
    news: Sequence[LaneNews], figure: Callable[[LaneNews], float | None], *, at_least: int = 2
) -> tuple[int, ...]:
    """Lanes with the smallest figure, where enough have one to compare; all equal is no lead."""
    known = [(value, each.lane) for each in news if (value := figure(each)) is not None]
    if len(known) < at_least:
        return ()
    least = min(value for value, _ in known)
    found = tuple(lane for value, lane in known if value == least)
    return () if 1 < len(found) == len(known) else found
