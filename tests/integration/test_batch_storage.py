"""Files of batches where something gives way: size, room, the folder, the client, the process."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.batch_books import question_lines
from tests.support.batch_world import BatchWorld, batch_world, chat_line, joined_lines
from tests.support.gateway_world import rows_of, wait_until
from tests.support.process_memory import peak_bytes, reset_peak, resident_bytes

pytestmark = [pytest.mark.e2e]

MEBIBYTE = 1024 * 1024
FILE_LINES_MAX = 50_000
ACCEPTED_S_MAX = 10.0
GROWTH_BYTES_MAX = 100 * MEBIBYTE


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchWorld]:
    with batch_world(tmp_path_factory.mktemp("storage")) as world:
        yield world


@pytest.fixture
def client(world: BatchWorld) -> Iterator[httpx.Client]:
    with client_of(world) as client:
        yield client


@contextmanager
def client_of(world: BatchWorld) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=world.v1, headers={"authorization": f"Bearer {world.key}"}, timeout=60.0
    ) as client:
        yield client


def upload(client: httpx.Client, data: bytes) -> httpx.Response:
    form = {"purpose": "batch"}
    return client.post("/files", files={"file": ("in.jsonl", data)}, data=form)


def num_rows(world: BatchWorld, table: str) -> int:
    (row,) = rows_of(world.gateway.home, f"SELECT COUNT(*) AS n FROM {table}")
    return int(row["n"])


def padded_lines(num_lines: int, num_bytes: int) -> bytes:
    """A file of about so many bytes."""
    text = "x" * (num_bytes // num_lines - 150)
    return joined_lines([chat_line(f"p-{at}", "gpt", text) for at in range(num_lines)])


@pytest.mark.slow
def test_fifty_thousand_lines_are_taken_or_refused_within_ten_seconds_in_flat_memory(
    world: BatchWorld, client: httpx.Client
) -> None:
    data = joined_lines(question_lines(FILE_LINES_MAX, ("slow",)))
    upload(client, joined_lines(question_lines(100, ("slow",))))  # what a first one brings in
    pid = world.gateway.process.pid
    reset_peak(pid)
    before, began_s = resident_bytes(pid), time.monotonic()
    answer = upload(client, data)
    assert answer.status_code == 200, answer.text
    uploaded_s = time.monotonic() - began_s
    wanted = {"input_file_id": answer.json()["id"], "completion_window": "7d"}
    made = client.post("/batches", json=wanted)
    took_s = time.monotonic() - began_s
    growth = peak_bytes(pid) - before
    print(
        f"\n{len(data) / MEBIBYTE:.1f} MiB: uploaded {uploaded_s:.1f} s, answered {took_s:.1f} s "
        f"({made.status_code}), memory +{growth / MEBIBYTE:.0f} MiB"
    )
    if made.status_code == 200:
        assert client.post(f"/batches/{made.json()['id']}/cancel").status_code == 200
        assert made.json()["request_counts"]["total"] == FILE_LINES_MAX
    else:
        assert made.json()["error"]["code"] == "batch_not_feasible", made.text
    assert growth <= GROWTH_BYTES_MAX
    assert took_s <= ACCEPTED_S_MAX


def test_one_line_too_many_is_refused_with_its_number(
    world: BatchWorld, client: httpx.Client
) -> None:
    answer = upload(client, joined_lines(question_lines(FILE_LINES_MAX + 1, ("gpt",))))
    assert answer.status_code == 400
    assert "line 50001: the file has more than 50000 lines" in answer.json()["error"]["message"]
    # The storage takes its unfinished part away when the last hold on it goes, a moment later.
    wait_until(lambda: not objects_of_no_file(world), "nothing of it to be kept")


def test_an_upload_that_breaks_off_leaves_nothing(world: BatchWorld) -> None:
    stored, rows = every_file(world), num_rows(world, "files")
    data = padded_lines(1_000, 12 * MEBIBYTE)
    head = (
        b'--B\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\n'
        b'content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", world.gateway.port)) as sock:
        sock.sendall(
            b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
            + world.key.encode()
            + b"\r\ncontent-type: multipart/form-data; boundary=B\r\ncontent-length: "
            + str(len(head) + len(data) + 9).encode()
            + b"\r\n\r\n"
            + head
            + data[: len(data) // 2]
        )
        wait_until(lambda: every_file(world) != stored, "some of it to be written")
    wait_until(lambda: every_file(world) == stored, "what was written to be gone")
    assert num_rows(world, "files") == rows


def objects_of_no_file(world: BatchWorld) -> set[str]:
    """Whole or unfinished; another batch's output is among them until it has its row."""
    rows = rows_of(world.gateway.home, "SELECT storage_key FROM files")
    keys = {str(row["storage_key"]) for row in rows}
    names = {Path(each).name for each in every_file(world)}
    return {name for name in names if name.split("#")[0].removesuffix(".lines") not in keys}


def every_file(world: BatchWorld) -> list[str]:
    """With what is being written."""
    return sorted(str(each) for each in (world.gateway.home / "files").rglob("*"))


def test_a_storage_folder_that_is_gone_or_shut_is_said_and_charges_nothing(tmp_path: Path) -> None:
    with batch_world(tmp_path) as world, client_of(world) as client:
        data = joined_lines([chat_line("a", "gpt", "Hi.")])
        answer = upload(client, data)
        assert answer.status_code == 200, answer.text
        file_id = answer.json()["id"]
        folder, aside = world.gateway.home / "files", world.gateway.home / "aside"
        folder.rename(aside)
        folder.write_text("no folder any more")
        refused = upload(client, data)
        assert refused.status_code == 503, refused.text
        assert refused.json()["error"]["code"] == "storage_unavailable"
        assert client.get(f"/files/{file_id}/content").status_code in (404, 503)
        made = client.post("/batches", json={"input_file_id": file_id})
        assert made.status_code in (404, 503), made.text
        assert "lines" not in made.json()
        assert (num_rows(world, "files"), num_rows(world, "batches")) == (1, 0)
        assert num_rows(world, "attempts") == 0
        folder.unlink()
        aside.rename(folder)
        assert client.post("/batches", json={"input_file_id": file_id}).status_code == 200


def limited(world: BatchWorld, num_bytes: int) -> None:
    """No file of the gateway may grow beyond this: what a full disk looks like to one file."""
    resource.prlimit(
        world.gateway.process.pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY)
    )


def on_a_small_disk(check: Callable[[BatchWorld, httpx.Client], None], tmp_path: Path) -> None:
    """On a tmpfs of 8 MiB where we may mount one, else under a limit of the size of files."""
    folder = tmp_path / "small"
    folder.mkdir()
    is_mounted = (
        os.geteuid() == 0
        and os.system(f"mount -t tmpfs -o size=8m tmpfs {folder} 2>/dev/null") == 0
    )
    try:
        environ = {"LOOPROUTER_FILES_URL": f"file://{folder}"}
        with batch_world(tmp_path / "home", environ=environ) as world, client_of(world) as client:
            if not is_mounted:
                limited(world, 8 * MEBIBYTE)
            check(world, client)
    finally:
        if is_mounted:
            assert os.system(f"umount -l {folder}") == 0


def test_a_full_disk_is_told_and_keeps_nothing(tmp_path: Path) -> None:
    def check(world: BatchWorld, client: httpx.Client) -> None:
        answer = upload(client, padded_lines(1_000, 24 * MEBIBYTE))
        assert answer.status_code == 507, answer.text
        assert answer.json()["error"]["code"] == "storage_full"
        assert [each for each in (tmp_path / "small").rglob("*") if each.is_file()] == []
        assert num_rows(world, "files") == 0
        small = upload(client, padded_lines(100, 1 * MEBIBYTE))
        assert small.status_code == 200, small.text

    on_a_small_disk(check, tmp_path)


@pytest.mark.slow
def test_a_batch_whose_making_was_killed_has_failed_after_the_restart(tmp_path: Path) -> None:
    with batch_world(tmp_path) as world, client_of(world) as client:
        answer = upload(client, joined_lines(question_lines(FILE_LINES_MAX, ("gpt",))))
        assert answer.status_code == 200, answer.text
        kill_while_making(world, answer.json()["id"])
        world.restart()
        with client_of(world) as again:

            def found() -> list[dict[str, Any]]:
                listed: list[dict[str, Any]] = again.get("/batches").json()["data"]
                return listed

            wait_until(lambda: [each["status"] for each in found()] == ["failed"], "its failure")
            (batch,) = found()
            (problem,) = batch["errors"]["data"]
            assert problem["code"] == "server_stopped"
            assert "nothing was charged" in problem["message"]
            assert batch["request_counts"]["completed"] == 0
            assert (num_rows(world, "batch_lines"), num_rows(world, "attempts")) == (0, 0)
            # The file is still there, and no batch reads it.
            made = again.post("/batches", json={"input_file_id": batch["input_file_id"]})
            assert made.status_code == 200, made.text
            assert again.post(f"/batches/{made.json()['id']}/cancel").status_code == 200


def kill_while_making(world: BatchWorld, file_id: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", world.gateway.port, timeout=60)
    body = json.dumps({"input_file_id": file_id}).encode()
    headers = {"authorization": f"Bearer {world.key}", "content-type": "application/json"}
    connection.request("POST", "/v1/batches", body=body, headers=headers)
    wait_until(lambda: 0 < num_rows(world, "batch_lines") < FILE_LINES_MAX, "some of its lines")
    world.gateway.process.send_signal(signal.SIGKILL)
    world.gateway.process.wait(10)
    connection.close()
    (row,) = rows_of(world.gateway.home, "SELECT state FROM batches")
    assert row["state"] == "validating"
