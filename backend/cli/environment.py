"""The only place of the backend that reads the environment: the home, secrets, the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from backend.errors import SetupError

HOME = "LOOPROUTER_HOME"
API_KEY = "LOOPROUTER_BACKEND_API_KEY"
API_KEY_CHARS_MIN = 8
HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says, read once a command."""

    home: Path
    hub_url: str = HUB
    hub_token: str = field(default="", repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Raises SetupError naming the variable that is wrong."""
        found = dict(os.environ if variables is None else variables)
        return cls(
            home=_home(found),
            hub_url=_hub(found),
            hub_token=found.get("HF_TOKEN", "").strip(),
            variables=found,
        )

    @property
    def models_folder(self) -> Path:
        return self.home / "models"

    def api_keys(self, name: str = "") -> tuple[str, ...]:
        """The keys in this variable, with commas between; none when it is not set.

        Raises SetupError when a variable that was asked for by name holds nothing, or a key is
        short enough to be guessed.
        """
        text = self.variables.get(name or API_KEY, "")
        keys = tuple(key.strip() for key in text.split(",") if key.strip())
        if name and not keys:
            raise SetupError(f"--api-key-env names {name}, but that variable is not set")
        if any(len(key) < API_KEY_CHARS_MIN for key in keys):
            raise SetupError(
                f"an API key in {name or API_KEY} has fewer than {API_KEY_CHARS_MIN} characters; "
                "make one with: openssl rand -hex 24"
            )
        return keys


def _home(found: Mapping[str, str]) -> Path:
    given = found.get(HOME, "")
    try:
        return Path(given).expanduser().absolute() if given else Path.home() / ".looprouter"
    except RuntimeError as error:
        raise SetupError(f"there is no home directory; set {HOME} to one") from error


def _hub(found: Mapping[str, str]) -> str:
    url = found.get("HF_ENDPOINT", "").strip().rstrip("/") or HUB
    if urlsplit(url).scheme not in ("http", "https"):
        raise SetupError(f"HF_ENDPOINT is {url[:80]!r}; it begins with https:// (or http://)")
    return url
