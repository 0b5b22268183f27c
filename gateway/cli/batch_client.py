"""The gateway's files and batches APIs as the commands use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.errors import ApiError, SetupError

TIMEOUT_S = 120.0
UPLOAD_TIMEOUT_S = 1_800.0


class Refused(ApiError):
    """The gateway said no; the message says why."""


class BatchClient:
    """Raises Refused for everything that is not a 200, SetupError where no gateway answers."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._http = httpx.Client(
            headers={"authorization": f"Bearer {key}"}, timeout=TIMEOUT_S, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def upload(self, path: Path) -> str:
        """Streams the file; its id."""
        with path.open("rb") as file:
            answer = self._ask(
                "POST",
                "/files",
                files={"file": (path.name, file, "application/jsonl")},
                data={"purpose": "batch"},
                timeout=UPLOAD_TIMEOUT_S,
            )
        return str(answer["id"])

    def delete_file(self, file_id: str) -> None:
        self._ask("DELETE", f"/files/{file_id}")

    def create(
        self, file_id: str, *, deadline: str, max_cost: str | None, plan_only: bool = False
    ) -> dict[str, Any]:
        """A batch for the endpoint that the file's lines name."""
        body: dict[str, Any] = {"input_file_id": file_id, "completion_window": deadline}
        if max_cost is not None:
            body["max_cost"] = max_cost
        if plan_only:
            body["plan_only"] = True
        return self._ask("POST", "/batches", json=body)

    def listing(self, limit: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._ask("GET", f"/batches?limit={limit}")["data"]
        return rows

    def show(self, batch_id: str) -> dict[str, Any]:
        return self._ask("GET", f"/batches/{batch_id}")

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._ask("POST", f"/batches/{batch_id}/cancel")

    def fetch(self, file_id: str, folder: Path) -> Path:
        """Streams a file into the folder under the name that the gateway has for it."""
        name = Path(str(self._ask("GET", f"/files/{file_id}")["filename"])).name
        path = folder / name
        part_path = folder / f"{name}.part"  # what breaks off is not taken for a whole file
        try:
            with self._http.stream("GET", f"{self._url}/files/{file_id}/content") as answer:
                if answer.status_code != 200:
                    raise Refused(f"the gateway answers {answer.status_code} for {file_id}")
                with part_path.open("wb") as file:
                    for part in answer.iter_bytes():
                        file.write(part)
        except httpx.HTTPError as error:
            raise SetupError(
                f"{file_id} was not read to its end: {error}; fetch it again"
            ) from error
        part_path.replace(path)
        return path

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, f"{self._url}{path}", **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SetupError(
                f"no answer from {self._url}: {error}; start it (looprouter up), or mend --url"
            ) from error
        try:
            body: dict[str, Any] = msgspec.json.decode(answer.content, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise Refused(f"{self._url} answers {answer.status_code} without JSON") from None
        if answer.status_code == 200:
            return body
        error_ = body.get("error")
        message = error_.get("message") if isinstance(error_, dict) else None
        raise Refused(str(message or f"the gateway answers {answer.status_code}"))
