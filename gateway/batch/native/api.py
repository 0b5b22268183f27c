"""What every provider's batch API does for us, and the nouns it speaks in.

Whatever stands behind `NativeBatchApi` must pass tests/contracts/test_native_batch.py.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from typing import Protocol

import msgspec

from gateway.catalogue.native_batch import NativeBatchFacts
from gateway.errors import FailureClass, LoopRouterError
from gateway.wire.pieces import Surface, WireError
from gateway.wire.requests import ParsedRequest
from gateway.wire.usage import Usage

RESULT_LINE_BYTES_MAX = 64 * 1024 * 1024


class NativeState(enum.StrEnum):
    """Where a provider's batch stands, in our words."""

    RUNNING = "running"  # accepted, being checked, waiting, or at work
    CANCELLING = "cancelling"
    ENDED = "ended"  # nothing more is done; what was done can be fetched
    FAILED = "failed"  # ended, and nothing was done: there are no results


class NativeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line on its way to a provider."""

    custom_id: str  # "{native_id}:{line_no}"; unique in its batch
    parsed: ParsedRequest
    max_tokens: int | None = None  # to set in the body; None leaves it as sent


class RefusedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that the endpoint's dialect cannot carry. It was not sent."""

    custom_id: str
    message: str
    param: str


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider has taken."""

    batch_id: str
    file_id: str  # "" where lines go along with the batch itself
    surface: Surface  # the one the provider answers in; translate_answer leads back
    num_lines: int
    num_bytes: int
    refused: tuple[RefusedLine, ...] = ()
    dropped: tuple[str, ...] = ()  # fields that could not be carried, each once


class NativeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a provider's batch. Instants are Unix seconds by the provider's clock."""

    batch_id: str
    state: NativeState
    outcome: str = ""  # the provider's own word for the state
    surface: Surface | None = None  # of its lines, where it says so
    num_lines: int | None = None  # None = it does not say yet
    num_done: int | None = None  # answered, with or without success
    num_failed: int | None = None
    created_at_s: float | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    expires_at_s: float | None = None
    output_file_id: str = ""
    error_file_id: str = ""
    errors: tuple[WireError, ...] = ()  # why the batch as a whole failed

    @property
    def turnaround_s(self) -> float | None:
        """From its creation to its end; None before, or where it does not say."""
        if self.created_at_s is None or self.ended_at_s is None:
            return None
        return max(0.0, self.ended_at_s - self.created_at_s)


class LineOutcome(enum.StrEnum):
    SUCCEEDED = "succeeded"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class NativeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one line."""

    custom_id: str
    outcome: LineOutcome
    status_code: int  # as the same request would have had by itself; 0 = it was never tried
    surface: Surface  # whose form the body has
    body: bytes = b""  # the answer, or the error object, as it came
    usage: Usage | None = None
    error: WireError | None = None
    request_id: str = ""


class ResultCounts(msgspec.Struct, kw_only=True):
    """What one reading of the results met. Lines that never came are the caller's to count."""

    num_results: int = 0
    num_broken: int = 0  # no JSON, or without a custom_id
    num_repeated: int = 0  # of a line that had been told already: left out


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "have you got this batch?"."""

    status: NativeStatus | None
    # False: it was submitted a moment ago and may not be listed yet, or one that may be ours still
    # runs. Ask again later.
    is_certain: bool


class NativeError(LoopRouterError):
    """A call to a provider's batch API failed.

    `is_lost`: it may have done what was asked though it did not say so; `find` before asking
    again. `num_lines_fit`, where `is_too_large`: so many of the lines do fit, if that is known.
    """

    def __init__(
        self,
        failure: FailureClass,
        message: str,
        *,
        is_lost: bool = False,
        status: int = 0,
        retry_after_s: float | None = None,
        num_lines_fit: int | None = None,
        refused: tuple[RefusedLine, ...] = (),
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.is_lost = is_lost
        self.status = status
        self.retry_after_s = retry_after_s
        self.num_lines_fit = num_lines_fit
        self.refused = refused

    @property
    def is_transient(self) -> bool:
        """The same call may succeed later."""
        return self.failure in _TRANSIENT

    @property
    def is_too_large(self) -> bool:
        """Fewer lines would have been accepted."""
        return self.failure is FailureClass.CONTEXT_TOO_LONG


_TRANSIENT = frozenset(
    {
        FailureClass.CONNECT,
        FailureClass.TIMEOUT_FIRST_TOKEN,
        FailureClass.TIMEOUT_IDLE,
        FailureClass.OVERLOADED,
        FailureClass.SERVER_ERROR,
        FailureClass.RATE_LIMITED,
        FailureClass.STREAM_BROKEN,
    }
)


class NativeBatchApi(Protocol):
    """One endpoint's batch API. Methods raise NativeError; nothing is tried twice in here."""

    facts: NativeBatchFacts

    async def submit(
        self,
        native_id: str,
        lines: AsyncIterable[NativeLine],
        *,
        window_s: int | None = None,
    ) -> Submitted:
        """Give the lines to the provider, under a name by which `find` knows them again.

        A name is for one submission only. All lines are of one surface. They are written to a
        temporary file on their way, so memory stays small whatever their number. `window_s`:
        expire after that, where the provider lets one choose. Raises NativeError; OSError when
        the temporary file has no room.
        """
        ...

    async def poll(self, batch_id: str) -> NativeStatus: ...

    def results(
        self, batch_id: str, counts: ResultCounts | None = None
    ) -> AsyncIterator[NativeResult]:
        """What has become of each line, in any order, each at most once, as it arrives.

        Of a batch that expired or was cancelled: what was done, and where the provider says so
        what was not. Raises NativeError (MISCONFIGURED) for one that has not ended.
        """
        ...

    async def cancel(self, batch_id: str) -> NativeStatus:
        """Ask the provider to stop. One that has ended already is simply told as such."""
        ...

    async def find(
        self,
        native_id: str,
        *,
        submitted_at_s: float,
        num_lines: int,
        known_ids: Collection[str] = (),
    ) -> Found:
        """The batch submitted under that name at about that Unix second, if there is one.

        `num_lines`: it has at most so many (some may have been left out on the way); 0 = unknown.
        `known_ids`: the provider's ids of our other batches. Where the provider keeps no name of
        ours, number and age tell, then the results.
        """
        ...

    async def delete_files(self, file_ids: Sequence[str]) -> None:
        """Take away a batch's files of lines and of results, once all that is in them is kept.

        Harmless for what is gone, and where the provider has no files.
        """
        ...
