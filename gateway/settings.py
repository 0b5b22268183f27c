"""The only place that reads the environment: addresses and secrets, once, at start."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gateway.errors import SetupError
from gateway.retention import parse_retention

PREFIX = "LOOPROUTER_"
BACKENDS = PREFIX + "BACKEND_"  # read by `looprouter-backend`, not here
PEPPER_FILE = "pepper"
DATABASE_FILE = "looprouter.db"
PEPPER_CHARS_MIN = 32
REPLICAS_MAX = 1024
DATABASE_SCHEMES = frozenset(
    {"sqlite", "sqlite+aiosqlite", "postgres", "postgresql", "postgresql+asyncpg"}
)
REDIS_SCHEMES = frozenset({"redis", "rediss", "unix"})
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("auto", "console", "json")
NAMES = frozenset(
    PREFIX + name
    for name in (
        "ALLOWED_HOSTS",
        "DATABASE_URL",
        "FILES_URL",
        "HOME",
        "LOG_FORMAT",
        "LOG_LEVEL",
        "PEPPER",
        "REDIS_URL",
        "REPLICAS",
        "RETENTION",
        "SHADOW_POLICY",
        "STATUS_PUBLIC",
        "TRUSTED_PROXIES",
    )
)
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]+\]")

Address = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says. Behaviour is in the policy file, not here."""

    home: Path
    """State directory (LOOPROUTER_HOME, default ~/.looprouter)."""
    database_url: str = field(repr=False)
    """LOOPROUTER_DATABASE_URL; default: an SQLite file in `home`. May hold a password."""
    files_url: str = field(default="", repr=False)
    """LOOPROUTER_FILES_URL: where batch files lie (s3://, gs://, az://, file://); default: home."""
    redis_url: str | None = field(default=None, repr=False)
    """LOOPROUTER_REDIS_URL; None = limits are kept in this process."""
    replicas: int = 1
    """LOOPROUTER_REPLICAS: serving processes; each allows limit/replicas while Redis is down."""
    retention_days: Mapping[str, int] = field(default_factory=dict)
    """LOOPROUTER_RETENTION: how long rows are kept, where it is not the default."""
    log_level: str = "info"
    """LOOPROUTER_LOG_LEVEL."""
    log_format: str = "auto"
    """LOOPROUTER_LOG_FORMAT; auto = console on a terminal, else JSON."""
    trusted_proxies: tuple[Address, ...] = ()
    """LOOPROUTER_TRUSTED_PROXIES: networks whose X-Forwarded-For is believed."""
    otlp_endpoint: str = ""
    """OTEL_EXPORTER_OTLP_ENDPOINT: an OTLP/HTTP collector for traces; empty = none."""
    status_is_public: bool = False
    """LOOPROUTER_STATUS_PUBLIC=1: the status page and /metrics answer other machines too."""
    allowed_hosts: tuple[str, ...] = ()
    """LOOPROUTER_ALLOWED_HOSTS: host names answered to; empty = any well-formed one."""
    shadow_policy: Path | None = None
    """LOOPROUTER_SHADOW_POLICY: a file that is asked beside the policy and obeyed in nothing."""
    unknown_names: tuple[str, ...] = ()
    """LOOPROUTER_… variables that nothing reads: likely spelling mistakes, worth a warning."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read and check every variable; SetupError names the one that is wrong."""
        found = os.environ if environ is None else environ
        home = _home(found)
        return cls(
            home=home,
            database_url=_database_url(found, home),
            files_url=found.get(PREFIX + "FILES_URL", "").strip(),
            redis_url=_redis_url(found),
            replicas=_replicas(found),
            retention_days=_retention(found),
            log_level=_choice(found, "LOG_LEVEL", LOG_LEVELS, "info"),
            log_format=_choice(found, "LOG_FORMAT", LOG_FORMATS, "auto"),
            trusted_proxies=_networks(found),
            otlp_endpoint=found.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip(),
            status_is_public=_choice(found, "STATUS_PUBLIC", ("0", "1"), "0") == "1",
            allowed_hosts=_hosts(found),
            shadow_policy=_path(found, "SHADOW_POLICY"),
            unknown_names=tuple(
                sorted(
                    name
                    for name in found
                    if name.startswith(PREFIX)
                    and name not in NAMES
                    and not name.startswith((PREFIX + "TEST_", PREFIX + "BACKEND_"))
                )
            ),
            environ=dict(found),
        )

    def secret(self, name: str) -> str | None:
        """The value of a provider's key variable; None when unset or blank."""
        value = self.environ.get(name, "").strip()
        return value or None

    @property
    def log_level_number(self) -> int:
        return logging.getLevelNamesMapping()[self.log_level.upper()]

    def make_home(self) -> Path:
        """Create the state directory, readable by its owner only."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise SetupError(
                f"cannot create the state directory {self.home}: {e.strerror}; "
                f"set {PREFIX}HOME to a directory that can be written"
            ) from e
        return self.home

    def pepper(self) -> bytes:
        """
        The server secret that virtual keys are hashed with.

        From LOOPROUTER_PEPPER, else from a file in `home` that is created on first use. Changing
        it makes every issued key unknown.
        """
        given = self.environ.get(PREFIX + "PEPPER", "")
        if given:
            return _checked_pepper(given, where=PREFIX + "PEPPER")
        path = self.make_home() / PEPPER_FILE
        try:
            if not path.exists():
                _create_pepper(path)
            mode = path.stat().st_mode
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise SetupError(
                f"cannot read the pepper file {path}: {e}; mend its permissions, "
                f"or set {PREFIX}PEPPER"
            ) from e
        if os.name == "posix" and mode & 0o077:
            raise SetupError(f"{path} can be read by other users; run: chmod 600 {path}")
        return _checked_pepper(text, where=str(path))


def _create_pepper(path: Path) -> None:
    # Written whole under another name and then linked: of two processes that start at once, one
    # wins and both read the same pepper, never half of one.
    draft = path.with_name(f".{PEPPER_FILE}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _checked_pepper(text: str, *, where: str) -> bytes:
    if len(text) < PEPPER_CHARS_MIN:
        raise SetupError(
            f"the pepper in {where} has {len(text)} characters; it needs at least "
            f"{PEPPER_CHARS_MIN} random ones, for example from: openssl rand -base64 32"
        )
    return text.encode()


def _home(environ: Mapping[str, str]) -> Path:
    given = environ.get(PREFIX + "HOME", "")
    try:
        return Path(given).expanduser().absolute() if given else Path.home() / ".looprouter"
    except RuntimeError as e:
        raise SetupError(f"there is no home directory; set {PREFIX}HOME to one") from e


def _database_url(environ: Mapping[str, str], home: Path) -> str:
    url = environ.get(PREFIX + "DATABASE_URL", "") or f"sqlite:///{home / DATABASE_FILE}"
    scheme = url.partition("://")[0]
    if scheme not in DATABASE_SCHEMES:
        raise SetupError(
            f"{PREFIX}DATABASE_URL begins with {scheme[:40]!r}; use postgresql://user@host/name "
            "or sqlite:////absolute/path.db"
        )
    relative = re.fullmatch(r"(sqlite(?:\+aiosqlite)?:///)([^/:].*)", url)
    if relative:  # counts from home, whatever directory a command is started in
        return f"{relative[1]}{home / relative[2]}"
    return url


def _redis_url(environ: Mapping[str, str]) -> str | None:
    url = environ.get(PREFIX + "REDIS_URL", "")
    if not url:
        return None
    if urlsplit(url).scheme not in REDIS_SCHEMES:
        raise SetupError(
            f"{PREFIX}REDIS_URL does not begin with redis://, rediss:// or unix://; "
            "an example: redis://127.0.0.1:6379/0"
        )
    return url


def _replicas(environ: Mapping[str, str]) -> int:
    text = environ.get(PREFIX + "REPLICAS", "1")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= REPLICAS_MAX:
        raise SetupError(
            f"{PREFIX}REPLICAS is {text[:40]!r}; give the number of serving processes, "
            f"1 to {REPLICAS_MAX}"
        )
    return int(text)


def _retention(environ: Mapping[str, str]) -> dict[str, int]:
    try:
        return parse_retention(environ.get(PREFIX + "RETENTION", ""))
    except ValueError as e:
        raise SetupError(f"{PREFIX}RETENTION: {e}") from e


def _choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    text = environ.get(PREFIX + name, "") or default
    if text.lower() not in choices:
        raise SetupError(f"{PREFIX}{name} is {text[:40]!r}; use one of {', '.join(choices)}")
    return text.lower()


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(PREFIX + name, "").strip()
    return Path(text).absolute() if text else None


def _items(environ: Mapping[str, str], name: str) -> list[str]:
    return [item.strip() for item in environ.get(PREFIX + name, "").split(",") if item.strip()]


def _networks(environ: Mapping[str, str]) -> tuple[Address, ...]:
    networks = []
    for item in _items(environ, "TRUSTED_PROXIES"):
        try:
            networks.append(ipaddress.ip_network(item))
        except ValueError as e:
            raise SetupError(
                f"{PREFIX}TRUSTED_PROXIES holds {item[:60]!r}, which is no network ({e}); "
                "write addresses or networks with commas between: 10.0.0.0/8,::1"
            ) from e
    return tuple(networks)


def _hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    hosts = []
    for item in _items(environ, "ALLOWED_HOSTS"):
        if not _HOST.fullmatch(item.lower()):
            raise SetupError(
                f"{PREFIX}ALLOWED_HOSTS holds {item[:60]!r}; write host names without port and "
                "scheme, with commas between: gateway.example.com,*.internal.example.com"
            )
        hosts.append(item.lower())
    return tuple(hosts)
