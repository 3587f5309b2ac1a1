"""STORAGE.ledger, RETRYING and BREAKER: the values they accept, and that no password leaks in or out."""

from pathlib import Path
from typing import Any

import pytest
from settings_files import load

from retake.errors import SettingsError
from retake.settings.shared import BreakerSettings, RetryingSettings


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:runs.db",
        "sqlite:/var/lib/password-free/runs.db",
        "postgresql://retake@db.example:5433/runs",
        "postgresql://db.example/runs",
        "postgresql://retake@[::1]:5432/runs",
    ],
)
def test_a_ledger_is_a_file_or_a_server(tmp_path: Path, url: str) -> None:
    assert load(tmp_path, {"STORAGE": {"ledger": url}}).storage.ledger == url


@pytest.mark.parametrize(
    "value", ["", "runs.db", "sqlite:", "file:runs", "postgresql:runs", "postgresql://", "postgresql://u@h", 5, True]
)
def test_what_names_no_ledger_is_an_error(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SettingsError, match=r"STORAGE\.ledger: found .*, allowed: sqlite:PATH or postgresql://"):
        load(tmp_path, {"STORAGE": {"ledger": value}})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://retake:hunter2@db.example/runs",
        "postgresql://db.example/runs?user=retake&password=hunter2",
        "postgresql://db.example/runs?PASSWORD=hunter2&sslmode=require",
    ],
)
def test_a_password_in_it_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError, match="without a password") as caught:
        load(tmp_path, {"STORAGE": {"ledger": url}})
    assert "hunter2" not in str(caught.value)


def test_another_bucket_for_one_run_leaves_the_ledger_where_it_is(tmp_path: Path) -> None:
    document = {"STORAGE": {"url": "file:a", "ledger": "sqlite:runs.db"}}
    storage = load(tmp_path, document, RETAKE_STORAGE_URL="file:b").storage
    assert (storage.url, storage.ledger) == ("file:b", "sqlite:runs.db")


def test_without_a_word_runs_are_in_the_bucket_retries_wait_for_the_tick_and_no_breaker_opens(tmp_path: Path) -> None:
    settings = load(tmp_path, {})
    assert settings.storage.ledger is None
    assert settings.retrying == RetryingSettings("none", 60, 2, 3600, 10)
    assert settings.breaker == BreakerSettings(None, 300, 60)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("RETRYING.strategy", "random"),
        ("RETRYING.first_seconds", 0),
        ("RETRYING.factor", 0.5),
        ("RETRYING.factor", "2"),
        ("RETRYING.max_seconds", -1),
        ("RETRYING.jitter_percent", 101),
        ("BREAKER.failures", 0),
        ("BREAKER.failures", 2.5),
        ("BREAKER.window_seconds", 0),
        ("BREAKER.open_seconds", False),
    ],
)
def test_what_is_out_of_range_is_named(tmp_path: Path, path: str, value: Any) -> None:
    section, _, name = path.partition(".")
    with pytest.raises(SettingsError, match=rf"{path}: found .*, allowed: "):
        load(tmp_path, {section: {name: value}})
