"""Models from a Hugging Face hub: only safetensors, JSON and tokenizer files, with resume."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from backend.cli.model_store import ModelStore, Record, StoredModel, write_record
from backend.errors import SetupError, UnsafeFormat

CONNECT_S = 10.0
READ_S = 30.0
TRIES = 3
PAUSE_S = 1.0
PAGE_BYTES_MAX = 8 * 1024 * 1024

_TEXT_FILES = frozenset({
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json", "model.safetensors.index.json",
})  # fmt: skip
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_PICKLES = re.compile(r".*\.(bin|pt|pth|ckpt|pkl|h5|msgpack)")
_GGUF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.gguf")

Progress = Callable[[int], None]  # bytes so far, of all files


class _Lfs(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct, rename="camel"):
    rfilename: str
    size: int | None = None
    blob_id: str = ""
    lfs: _Lfs | None = None


class _Card(msgspec.Struct):
    license: str | list[str] | None = None


class _Page(msgspec.Struct, rename="camel"):
    sha: str
    siblings: list[_Sibling]
    card_data: _Card | None = None


@dataclass(frozen=True, slots=True)
class HubFile:
    """`digest`: SHA-256 of a large file, git's SHA-1 of a small one."""

    name: str
    size_bytes: int
    digest: str
    is_large: bool


@dataclass(frozen=True, slots=True)
class HubModel:
    """One commit of a repository, and what of it will be fetched."""

    repo: str
    commit: str
    licence: str
    files: tuple[HubFile, ...]
    gguf: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Hub:
    """One hub by its address. Give it back with `close`."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            headers=headers,
            follow_redirects=True,
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
        )

    def close(self) -> None:
        self._client.close()

    def look_up(self, repo: str, revision: str = "main", gguf: str = "") -> HubModel:
        """What would be fetched. Raises SetupError, UnsafeFormat when only pickles are there."""
        answer = self._get(f"{self._url}/api/models/{repo}/revision/{revision}?blobs=true", repo)
        try:
            page = msgspec.json.decode(answer, type=_Page)
        except msgspec.DecodeError as error:
            raise SetupError(f"{self._url} did not answer as a hub does: {error}") from None
        if not re.fullmatch(r"[0-9a-f]{40}", page.sha):
            raise SetupError(f"{self._url} names no commit for {repo}")
        files = tuple(map(_hub_file, _wanted(repo, page.siblings, gguf)))
        licence = page.card_data.license if page.card_data is not None else None
        shown = ", ".join(licence) if isinstance(licence, list) else licence
        return HubModel(repo, page.sha, shown or "not stated", files, gguf)

    def _get(self, url: str, repo: str) -> bytes:
        try:
            answer = self._client.get(url)
        except httpx.HTTPError as error:
            raise SetupError(_unreachable(self._url, error)) from None
        self._check_status(answer.status_code, repo)
        if len(answer.content) > PAGE_BYTES_MAX:
            raise SetupError(f"{self._url} answered with more than a list of files")
        return answer.content

    def _check_status(self, status: int, repo: str) -> None:
        if status in (401, 403):
            raise SetupError(
                f"the hub does not hand out {repo}: it is private, does not exist, or its terms "
                "must be accepted on its page first; then set HF_TOKEN"
            )
        if status == 404:
            raise SetupError(f"the hub has no {repo} (or not this revision)")
        if status not in (200, 206):
            raise SetupError(f"{self._url} answered {status} for {repo}; try again later")

    def download(self, model: HubModel, store: ModelStore, progress: Progress) -> StoredModel:
        """Fetch what is missing, check every file, put the folder in place in one rename.

        A download that was cut short goes on where it ended. Raises SetupError.
        """
        store.check_room(model.size_bytes)
        partial = store.partial(model.repo, model.commit[:12])
        done = 0
        for file in model.files:
            self._fetch(model, file, partial / file.name, _above(done, progress))
            done += file.size_bytes
        record = Record(
            name=model.repo,
            served_name=_served_name(model),
            source=f"{self._url}/{model.repo} at {model.commit[:12]}",
            licence=model.licence,
            size_bytes=model.size_bytes,
            file=model.gguf,
        )
        write_record(partial, record)
        store.put(model.repo, partial)
        stored = store.find(model.repo)
        assert stored is not None
        return stored

    def _fetch(self, model: HubModel, file: HubFile, target: Path, progress: Progress) -> None:
        part = target.with_name(target.name + ".part")
        if target.exists():
            progress(file.size_bytes)
            return
        url = f"{self._url}/{model.repo}/resolve/{model.commit}/{file.name}"
        for left in reversed(range(TRIES)):
            try:
                for got in self._stream(url, model.repo, file, part):
                    progress(got)
                break
            except httpx.HTTPError as error:
                if left == 0:
                    raise SetupError(
                        f"{_unreachable(self._url, error)}; what is here is kept, the same "
                        "command goes on from it"
                    ) from None
                time.sleep(PAUSE_S)
        if _digest(part, file) != file.digest:
            part.unlink()
            raise SetupError(
                f"{file.name} of {model.repo} arrived with other bytes than the hub announces; "
                "it was thrown away: fetch again"
            )
        os.replace(part, target)

    def _stream(self, url: str, repo: str, file: HubFile, part: Path) -> Iterator[int]:
        size = part.stat().st_size if part.exists() else 0
        if size >= file.size_bytes > 0:
            return
        headers = {"accept-encoding": "identity"}
        if size:
            headers["range"] = f"bytes={size}-"
        with self._client.stream("GET", url, headers=headers) as answer:
            self._check_status(answer.status_code, repo)
            if answer.status_code == 200:
                size = 0  # it sends the whole file
            with part.open("ab" if size else "wb") as output:
                for chunk in answer.iter_raw():
                    output.write(chunk)
                    size += len(chunk)
                    if size > file.size_bytes:
                        raise SetupError(f"{file.name} of {repo} is longer than announced")
                    yield size
                output.flush()
                os.fsync(output.fileno())


def _above(base: int, progress: Progress) -> Progress:
    return lambda got: progress(base + got)


def _wanted(repo: str, siblings: list[_Sibling], gguf: str) -> list[_Sibling]:
    """Files at the top level only: names come from outside and become paths here."""
    by_name = {each.rfilename: each for each in siblings}
    ggufs = sorted(name for name in by_name if _GGUF.fullmatch(name))
    if gguf:
        if gguf not in ggufs:
            raise SetupError(f"{repo} has no file {gguf}; it has: {', '.join(ggufs) or 'no GGUF'}")
        return [by_name[gguf]]
    weights = [each for name, each in by_name.items() if _WEIGHTS.fullmatch(name)]
    if not weights and ggufs:
        raise SetupError(f"{repo} holds GGUF files; choose one with --file: {', '.join(ggufs)}")
    if not weights and any(_PICKLES.fullmatch(name) for name in by_name):
        raise UnsafeFormat(
            f"{repo} has its weights in a pickle format only, which can run code when it is "
            "read; look for a repository of the same model with safetensors or GGUF"
        )
    if not weights or "config.json" not in by_name:
        raise SetupError(f"{repo} holds no model: no safetensors weights with a config.json")
    return [each for name, each in by_name.items() if name in _TEXT_FILES] + weights


def _hub_file(sibling: _Sibling) -> HubFile:
    if sibling.lfs is not None:
        return HubFile(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256, True)
    return HubFile(sibling.rfilename, sibling.size or 0, sibling.blob_id, False)


def _digest(path: Path, file: HubFile) -> str:
    if not file.is_large:  # git's name of a blob
        data = path.read_bytes()
        head = b"blob %d\0" % len(data)
        return hashlib.sha1(head + data, usedforsecurity=False).hexdigest()
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _served_name(model: HubModel) -> str:
    if model.gguf:
        return model.gguf.removesuffix(".gguf").lower()
    return model.repo.rpartition("/")[2].lower()


def _unreachable(url: str, error: httpx.HTTPError) -> str:
    return (
        f"the hub at {url} cannot be reached ({type(error).__name__}: {error}); check the network, "
        "set HF_ENDPOINT to a mirror, or serve a model folder or .gguf file directly"
    )
