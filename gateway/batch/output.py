"""A batch whose lines have all ended → its output and error files, and its end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from hashlib import blake2b

import msgspec
import structlog

from gateway.batch.file_handlers import KEEP_S
from gateway.batch.storage import FileStorage
from gateway.errors import ServiceError
from gateway.store.batch_work import (
    EndedLine,
    LineCost,
    booked_costs,
    drop_results,
    ended_lines,
    keep_costs,
    uncosted_lines,
)
from gateway.store.batches import BatchRow, line_counts, move_batch, update_batch
from gateway.store.engine import Store
from gateway.store.files import FileRow, insert_file

log = structlog.get_logger()

_NEWLINES = bytes.maketrans(b"\r\n", b"  ")
_WHY = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was sent."),
    "expired": ("batch_expired", "This request could not be executed before the batch expired."),
}
_ENDS = {"cancelling": "cancelled"}
_JSON_OBJECT = re.compile(rb"\s*\{")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Overtaken(ServiceError):
    """What was to be written is written already; nothing of it was touched."""

    code = "overtaken"


class OutputWriter:
    """Finishes batches; killed half-way, it does the same again and leaves no second file."""

    def __init__(self, store: Store, storage: FileStorage) -> None:
        self._store = store
        self._storage = storage

    async def finish(self, row: BatchRow, *, was: str, now: float) -> BatchRow:
        """
        Write the files of a batch in `finalizing` and end it.

        `was`: the state before that, which tells what end it is: `cancelling` ends as cancelled, a
        batch with expired lines as expired, any other as completed.
        """
        await self._note_late_costs(row.id)
        async with self._store.read() as connection:
            counts = (await line_counts(connection, [row.id]))[row.id]
        end = _ENDS.get(was, "expired" if counts.count("expired") else "completed")
        files: list[FileRow] = []
        # Anthropic's results are one file of all lines, OpenAI's are two.
        kinds = ((True, False),) if row.dialect == "anthropic" else ((True,), (False,))
        for good in kinds:
            files.extend(await self._write(row, good, now))
        names = _names(row, files)
        async with self._store.begin() as connection:
            for file in files:
                await insert_file(connection, file)
            await drop_results(connection, row.id)
            values = {f"{end}_at": now, "list_cost_nanos": counts.list_nanos, **names}
            await move_batch(connection, row.id, to=end, out_of=("finalizing",), values=values)
        log.info("batch ended", batch=row.id, state=end, lines=counts.by_state)
        return msgspec.structs.replace(row, state=end)

    async def _note_late_costs(self, batch_id: str) -> None:
        """Of lines that were kept and then settled by the ledger's recovery."""
        async with self._store.read() as connection:
            missing = await uncosted_lines(connection, batch_id)
            booked = await booked_costs(connection, [request_id for _, request_id in missing])
        costs = [
            LineCost(
                batch_id=batch_id,
                line_no=line_no,
                attempt_id=attempt_id,
                cost_nanos=cost,
                billed_nanos=billed,
                list_nanos=cost,
                is_estimated=is_estimated,
            )
            for line_no, request_id in missing
            if request_id in booked
            for attempt_id, cost, billed, is_estimated in (booked[request_id],)
        ]
        if costs:
            async with self._store.begin() as connection:
                await keep_costs(connection, costs)

    async def _write(self, row: BatchRow, kinds: tuple[bool, ...], now: float) -> list[FileRow]:
        """The file of these lines; none where there are no such lines."""
        # The same name when it is done again after a kill, so that no second object is left.
        digest = blake2b(f"{row.id} {kinds}".encode(), digest_size=12).hexdigest()
        file_id = f"file-{digest}"
        num_lines = 0
        async with self._storage.writing(file_id) as writing:
            for is_good in kinds:
                async for line in self._lines(row.id, is_good):
                    make = anthropic_line if row.dialect == "anthropic" else openai_line
                    await writing.write(make(row.id, line))
                    num_lines += 1
        if not num_lines:
            await self._storage.delete(file_id)
            return []
        name = "results" if len(kinds) > 1 else "output" if kinds[0] else "error"
        return [
            FileRow(
                id=file_id,
                tenant_id=row.tenant_id,
                key_id=row.key_id,
                filename=f"{row.id}_{name}.jsonl",
                purpose="batch_output",
                num_bytes=writing.num_bytes,
                num_lines=num_lines,
                storage_key=file_id,
                created_at=now,
                expires_at=now + KEEP_S,
            )
        ]

    async def _lines(self, batch_id: str, is_good: bool) -> AsyncIterator[EndedLine]:
        after = 0
        while True:
            async with self._store.read() as connection:
                page = await ended_lines(connection, batch_id, after_line=after, is_good=is_good)
            for line in page:
                if line.body is None and line.status_code:
                    # Answers go once they are in the files: another process has ended this batch.
                    raise Overtaken(f"{batch_id} was ended by another process")
                yield line
            if not page:
                return
            after = page[-1].line_no


async def fail(store: Store, row: BatchRow, problem: Mapping[str, object], *, now: float) -> None:
    """A batch that nothing can be done for: its input is gone."""
    async with store.begin() as connection:
        await update_batch(
            connection,
            row.id,
            state="failed",
            failed_at=now,
            errors=msgspec.json.encode([problem]).decode(),
        )


def _names(row: BatchRow, files: list[FileRow]) -> dict[str, str]:
    found = {"output_file_id": "", "error_file_id": ""}
    for file in files:
        kind = "error_file_id" if file.filename.endswith("_error.jsonl") else "output_file_id"
        found[kind] = file.id
    return found


def openai_line(batch_id: str, line: EndedLine) -> bytes:
    """One line of an output or error file in OpenAI's form; the answer's body as it came."""
    head = {
        "id": f"batch_req_{batch_id.rpartition('_')[2]}_{line.line_no}",
        "custom_id": line.custom_id,
    }
    response, error = b"null", b"null"
    if line.state in _WHY:
        code, message = _WHY[line.state]
        error = msgspec.json.encode({"code": code, "message": message})
    else:
        status = b'{"status_code":%d,"request_id":%s,"body":' % (
            line.status_code,
            msgspec.json.encode(line.request_id),
        )
        response = status + _one_line(line.body or b"null") + b"}"
    return (
        msgspec.json.encode(head)[:-1] + b',"response":' + response + b',"error":' + error + b"}\n"
    )


def anthropic_line(_batch_id: str, line: EndedLine) -> bytes:
    """One line of a results file in Anthropic's form."""
    body = _one_line(line.body or b"null")
    if line.state == "succeeded":
        result = b'{"type":"succeeded","message":' + body + b"}"
    elif line.state == "errored":
        result = b'{"type":"errored","error":' + body + b"}"
    else:
        kind = "canceled" if line.state == "cancelled" else "expired"
        result = msgspec.json.encode({"type": kind})
    return b'{"custom_id":' + msgspec.json.encode(line.custom_id) + b',"result":' + result + b"}\n"


def _one_line(body: bytes) -> bytes:
    """A JSON object as it came, its line ends as blanks; anything else as a string."""
    if _JSON_OBJECT.match(body):
        try:
            _MEMBERS.decode(body)
            return body.translate(_NEWLINES)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return msgspec.json.encode(body.decode(errors="replace"))
