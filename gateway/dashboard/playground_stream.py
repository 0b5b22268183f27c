"""A race under way: its limits, its end when nobody looks any more, and its one event stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from gateway.dashboard.page import Desk
from gateway.dashboard.payer import PLAYGROUND, paying_caller
from gateway.dashboard.playground_race import (
    RACE_S_MAX,
    RUNNING,
    Ask,
    Lane,
    LaneNews,
    RaceWanted,
    chat_body,
    check_race,
    marks_of,
    prompt_tokens_of,
)
from gateway.errors import Draining, Overloaded
from gateway.store.audit import AuditEvent, append_events

RACES_AT_ONCE = 2  # of one admin; of one process, like the next
RACES_MAX = 16
EVERY_S = 0.05  # between two events of a lane
QUIET_S = 1.0  # after so long without news, one goes out all the same
# A stream that nobody asks for the next event any more has no reader, whatever the server says.
UNREAD_S_MAX = 20.0


class Races:
    """All races of this process."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._tasks: set[asyncio.Task[None]] = set()
        self.running: Counter[str] = Counter()  # by admin

    async def begin(self, wanted: RaceWanted, *, admin: str, actor: str) -> Race:
        """Check, find who pays, and let all lanes go. Raises ApiError; then nothing is sent."""
        gateway = self._desk.gateway
        check_race(wanted, gateway.policy())
        if gateway.is_draining:
            raise Draining("the gateway is shutting down", retry_after_s=2)
        self._enter(admin)
        try:
            caller = await paying_caller(self._desk, wanted.key, PLAYGROUND)
            await self._note(wanted, caller.tenant_id, caller.key_id, actor)
            changed = asyncio.Event()
            num_tokens = prompt_tokens_of(wanted)
            lanes = [
                Lane(
                    gateway,
                    idx,
                    lane,
                    Ask(chat_body(wanted, lane.model), num_tokens, caller, changed),
                )
                for idx, lane in enumerate(wanted.lanes)
            ]
        except BaseException:
            self._leave(admin)
            raise
        race = Race(lanes, changed)
        task = asyncio.create_task(self._run(race, admin))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return race

    def _enter(self, admin: str) -> None:
        if self.running[admin] >= RACES_AT_ONCE:
            raise Overloaded(
                f"you have {RACES_AT_ONCE} races running; stop one, or wait for its end",
                retry_after_s=2.0,
            )
        if self.running.total() >= RACES_MAX:
            raise Overloaded(f"{RACES_MAX} races run on this gateway; wait", retry_after_s=5.0)
        self.running[admin] += 1

    def _leave(self, admin: str) -> None:
        self.running[admin] -= 1
        if self.running[admin] <= 0:
            del self.running[admin]

    async def _run(self, race: Race, admin: str) -> None:
        """Until the last lane is settled, also where nobody looks on."""
        watcher = asyncio.create_task(race.watch())
        try:
            await asyncio.gather(*(lane.run(race.next_place) for lane in race.lanes))
        finally:
            watcher.cancel()
            self._leave(admin)

    async def _note(self, wanted: RaceWanted, tenant_id: str, key_id: str, actor: str) -> None:
        gateway = self._desk.gateway
        event = AuditEvent(
            tenant_id=tenant_id,
            at=gateway.wall_clock(),
            actor=actor,
            action="race.start",
            subject=key_id,
            detail={
                "lanes": [msgspec.structs.asdict(lane) for lane in wanted.lanes],
                "max_tokens": wanted.max_tokens,
            },
        )
        async with gateway.store.begin() as connection:
            await append_events(connection, [event])


class Race:
    """Lanes that started together."""

    def __init__(self, lanes: list[Lane], changed: asyncio.Event) -> None:
        self.lanes = lanes
        self.changed = changed
        self._num_finished = 0
        self._read = asyncio.Event()

    def next_place(self) -> int:
        self._num_finished += 1
        return self._num_finished

    def stop(self) -> None:
        """Close upstream and settle: what is not over ends as if its client had left."""
        for lane in self.lanes:
            if not lane.is_over:
                lane.sink.leave()

    async def watch(self) -> None:
        """Stop when nobody reads, and at the latest after RACE_S_MAX."""
        try:
            async with asyncio.timeout(RACE_S_MAX):
                while True:
                    self._read.clear()
                    async with asyncio.timeout(UNREAD_S_MAX):
                        await self._read.wait()
        except TimeoutError:
            self.stop()

    async def events(self) -> AsyncIterator[bytes]:
        """
        `start` once, then `lane` whenever one has news and `marks` when they change, at last `end`.

        Closing it stops the race.
        """
        try:
            yield _event("start", {"lanes": [self._named(lane) for lane in self.lanes]})
            told: dict[int, LaneNews] = {}
            marked: object = None
            is_quiet = False
            while True:
                self._read.set()
                self.changed.clear()
                is_over = all(lane.is_over for lane in self.lanes)
                news = [lane.news() for lane in self.lanes]
                for each in news:
                    if _is_news(each, told.get(each.lane), is_quiet=is_quiet):
                        yield _event("lane", each)
                        told[each.lane] = each
                marks = marks_of(self.lanes, news)
                if marks != marked:
                    marked = marks
                    yield _event("marks", marks)
                if is_over:
                    yield _event("end", {})
                    return
                is_quiet = not await self._next_change()
        finally:
            self.stop()

    async def _next_change(self) -> bool:
        """False: there was none for QUIET_S."""
        await asyncio.sleep(EVERY_S)
        try:
            async with asyncio.timeout(QUIET_S):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True

    @staticmethod
    def _named(lane: Lane) -> dict[str, object]:
        return {
            "lane": lane.idx,
            "model": lane.wanted.model,
            "endpoint": lane.wanted.endpoint,
            "request_id": lane.request_id,
        }


def _is_news(now: LaneNews, before: LaneNews | None, *, is_quiet: bool) -> bool:
    if before is not None and before.is_final:
        return False
    return (
        before is None
        or bool(now.text or now.reasoning)
        or now.state != before.state
        or (is_quiet and now.state in RUNNING)
    )


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
