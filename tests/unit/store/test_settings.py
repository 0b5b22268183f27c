"""The environment is read once, checked, and every mistake in it is named."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from gateway.errors import SetupError
from gateway.settings import Settings


def _settings(tmp_path: Path, **environ: str) -> Settings:
    return Settings.from_environment({"LOOPROUTER_HOME": str(tmp_path), **environ})


def test_defaults_need_nothing_but_a_home() -> None:
    settings = Settings.from_environment({})

    assert Path.home() / ".looprouter" == settings.home
    assert f"sqlite:///{settings.home}/looprouter.db" == settings.database_url
    assert settings.redis_url is None
    assert settings.replicas == 1
    assert settings.log_level_number == 20
    assert settings.allowed_hosts == ()


def test_every_variable_is_read(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path,
        LOOPROUTER_DATABASE_URL="postgres://u:secret@db/looprouter",
        LOOPROUTER_REDIS_URL="redis://cache:6379/1",
        LOOPROUTER_REPLICAS="4",
        LOOPROUTER_RETENTION="requests=14d, audit=forever",
        LOOPROUTER_LOG_LEVEL="DEBUG",
        LOOPROUTER_LOG_FORMAT="json",
        LOOPROUTER_TRUSTED_PROXIES="10.0.0.0/8, ::1",
        LOOPROUTER_ALLOWED_HOSTS="Gate.example.com,*.internal,[::1]",
        GROQ_API_KEY=" gsk-1 ",
        OPENAI_API_KEY="",
    )

    assert settings.database_url == "postgres://u:secret@db/looprouter"
    assert settings.redis_url == "redis://cache:6379/1"
    assert settings.replicas == 4
    assert settings.retention_days == {"requests": 14, "audit": 0}
    assert settings.log_level == "debug"
    assert settings.log_format == "json"
    assert [str(n) for n in settings.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    assert settings.allowed_hosts == ("gate.example.com", "*.internal", "[::1]")
    assert settings.secret("GROQ_API_KEY") == "gsk-1"
    assert settings.secret("OPENAI_API_KEY") is None
    assert settings.secret("NOT_SET") is None
    assert settings.unknown_names == ()


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path,
        LOOPROUTER_DATABASE_URL="postgresql://u:canary1@db/x",
        LOOPROUTER_REDIS_URL="redis://:canary2@cache",
        LOOPROUTER_PEPPER="canary3" * 6,
        KEY="canary4",
    )

    assert "canary" not in repr(settings)


def test_misspelt_variables_are_reported(tmp_path: Path) -> None:
    names = ("DATABSE_URL", "TEST_REDIS_URL", "BACKEND_API_KEY")  # one of tests, one of the backend
    settings = _settings(tmp_path, **{f"LOOPROUTER_{name}": "x" for name in names})

    assert settings.unknown_names == ("LOOPROUTER_DATABSE_URL",)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DATABASE_URL", "mysql://db/x", "postgresql://"),
        ("DATABASE_URL", "nonsense", "postgresql://"),
        ("REDIS_URL", "http://cache", "redis://"),
        ("REPLICAS", "0", "1 to 1024"),
        ("REPLICAS", "many", "1 to 1024"),
        ("REPLICAS", "9" * 5000, "1 to 1024"),
        ("RETENTION", "prompts=3d", "requests, decisions"),
        ("RETENTION", "requests", "requests=14d"),
        ("RETENTION", "requests=0", "requests=forever"),
        ("RETENTION", "requests=" + "9" * 5000, "1 to 3650"),
        ("RETENTION", "audit=3", "30 to 3650 days, or forever"),
        ("RETENTION", "minutes=forever", "1 to 31 days"),
        ("RETENTION", "requests=3,requests=4", "twice"),
        ("LOG_LEVEL", "loud", "debug, info"),
        ("LOG_FORMAT", "xml", "auto, console"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,proxy", "'proxy'"),
        ("ALLOWED_HOSTS", "http://x", "scheme"),
        ("ALLOWED_HOSTS", "a.example:80", "port"),
    ],
)
def test_wrong_values_name_variable_and_cure(
    tmp_path: Path, name: str, value: str, says: str
) -> None:
    with pytest.raises(SetupError, match="LOOPROUTER_" + name) as caught:
        _settings(tmp_path, **{"LOOPROUTER_" + name: value})

    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_relative_sqlite_path_counts_from_home(tmp_path: Path) -> None:
    settings = _settings(tmp_path, LOOPROUTER_DATABASE_URL="sqlite:///data/x.db")

    assert f"sqlite:///{tmp_path}/data/x.db" == settings.database_url


def test_pepper_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = _settings(home).pepper()
    second = _settings(home).pepper()

    assert first == second
    assert len(first) >= 32
    assert stat.S_IMODE((home / "pepper").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [path.name for path in home.iterdir()] == ["pepper"]


def test_processes_that_start_together_agree_on_the_pepper(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(_settings(tmp_path / "h").pepper()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == 1


def test_pepper_from_the_environment_wins_and_makes_no_file(tmp_path: Path) -> None:
    home = tmp_path / "home"

    assert _settings(home, LOOPROUTER_PEPPER="p" * 32).pepper() == b"p" * 32
    assert not home.exists()


def test_short_pepper_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="at least 32"):
        _settings(tmp_path, LOOPROUTER_PEPPER="short").pepper()


def test_pepper_file_open_to_others_is_refused(tmp_path: Path) -> None:
    _settings(tmp_path).pepper()
    os.chmod(tmp_path / "pepper", 0o644)

    with pytest.raises(SetupError, match="chmod 600"):
        _settings(tmp_path).pepper()


def test_home_that_cannot_be_made_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SetupError, match="LOOPROUTER_HOME"):
        _settings(tmp_path / "file" / "home").make_home()
