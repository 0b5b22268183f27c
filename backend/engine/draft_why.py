"""Why the last step that decoded had as many drafts as it had, and how many steps had which reason.

The engine sets no number by itself: it is the configured one, and less where a request, the method,
the cache or the end of an answer makes it so. What made it so is told here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from backend.engine.scheduler import Step


class DraftWhy(StrEnum):
    NO_METHOD = "no_method"  # the engine was started without one
    IDLE = "idle"  # nothing was decoded yet
    FULL = "full"  # as many as are configured
    FEWER_WANTED = "fewer_wanted"  # requests allow fewer, or their answers end before
    FEWER_FOUND = "fewer_found"  # the method had fewer
    NOTHING_FOUND = "nothing_found"  # the method had none
    UNWANTED = "unwanted"  # no request of the step wants any
    ENDING = "ending"  # every answer has its last token due
    RETURNING = "returning"  # the batch lane is back from a step it skipped
    NO_ROOM = "no_room"  # no free cache blocks for them
    FAILED = "failed"  # the method raised; the log has its error


class DraftTally:
    """Of one engine, since its start."""

    def __init__(self, num_drafts_max: int) -> None:
        self.num_drafts = 0
        self.why = DraftWhy.IDLE if num_drafts_max else DraftWhy.NO_METHOD
        # A new table for each step: the old one may be in a reader's hands.
        self.num_steps: Mapping[str, int] = {}
        self._num_drafts_max = num_drafts_max

    def note(
        self,
        step: Step,
        num_drafts: int,
        *,
        limit: int,
        is_wanted: bool,
        is_returning: bool = False,
        has_failed: bool,
    ) -> None:
        """A step with a decode group. `num_drafts`: a sequence, as verified; `limit`: the most that
        one of its requests allows now; `is_wanted`: one of them allows any at another time;
        `is_returning`: one of them has nothing to be proposed from, since it skipped a step."""
        if not step.decodes or not self._num_drafts_max:
            return
        self.num_drafts = num_drafts
        if num_drafts == self._num_drafts_max:
            self.why = DraftWhy.FULL
        elif has_failed:
            self.why = DraftWhy.FAILED
        elif limit == 0 and is_returning:
            self.why = DraftWhy.RETURNING
        elif limit == 0:
            self.why = DraftWhy.ENDING if is_wanted else DraftWhy.UNWANTED
        elif step.num_drafts == 0:
            self.why = DraftWhy.NO_ROOM
        elif num_drafts == limit:
            self.why = DraftWhy.FEWER_WANTED
        else:
            self.why = DraftWhy.FEWER_FOUND if num_drafts else DraftWhy.NOTHING_FOUND
        self.num_steps = {**self.num_steps, self.why.value: self.num_steps.get(self.why, 0) + 1}
