"""The settings and keys of music: every mistake is named, and no message quotes a secret."""

import json
from pathlib import Path
from typing import Any

import pytest

from retake.errors import SettingsError
from retake.music.settings import MUSIC_KEYS, load_music_settings, read_music_keys

KEYS = {variable: "0123456789abcdef" for variable, _ in MUSIC_KEYS.values()}


def load(folder: Path, **music: Any) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps({"MUSIC": music, "FILE_PATHS": {"folder_444": "444/"}, "CHANNELS": ["a"]}))
    return load_music_settings({"RETAKE_CONFIG": str(path)})


def test_sections_of_other_pipelines_are_left_unread(tmp_path: Path) -> None:
    assert load(tmp_path, workers=3).music.workers == 3
    assert load(tmp_path).warnings == ()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("upload_chunk_bytes", 262_143),
        ("upload_chunk_bytes", 0),
        ("step_retry_backoff_sec", []),
        ("step_retry_backoff_sec", [5, "x"]),
        ("step_retry_backoff_sec", 5),
        ("telegram_allowed_users", ["me"]),
        ("telegram_chat_id", "not a chat"),
        ("port", 65_536),
        ("privacy", "secret"),
        ("category_id", 10),
        ("database", "mysql://x/y"),
        ("telegram", "poll"),  # without a chat
        ("work_ers", 2),
    ],
)
def test_an_invalid_setting_is_named(tmp_path: Path, setting: str, value: object) -> None:
    with pytest.raises(SettingsError, match="MUSIC"):
        load(tmp_path, **{setting: value})


def test_fractions_are_taken_for_pauses(tmp_path: Path) -> None:
    assert load(tmp_path, step_retry_backoff_sec=[0.5, 15]).music.step_retry_backoff_sec == (0.5, 15)


def test_a_channel_cannot_be_named_music(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"CHANNELS": ["music"]}))
    with pytest.raises(SettingsError, match="CHANNELS"):
        load_music_settings({"RETAKE_CONFIG": str(path)})


def test_each_missing_key_is_named_but_those_of_telegram_only_where_they_are_needed() -> None:
    with pytest.raises(SettingsError) as caught:
        read_music_keys({}, "off")
    named = [variable for variable, _ in MUSIC_KEYS.values() if variable in str(caught.value)]
    assert named == [variable for variable in KEYS if not variable.startswith("TELEGRAM")]
    with pytest.raises(SettingsError, match="TELEGRAM_WEBHOOK_SECRET is not set"):
        read_music_keys({**KEYS, "TELEGRAM_WEBHOOK_SECRET": ""}, "webhook")
    assert read_music_keys(KEYS, "webhook").telegram_webhook == KEYS["TELEGRAM_WEBHOOK_SECRET"]


@pytest.mark.parametrize(("variable", "value"), [("TELEGRAM_WEBHOOK_SECRET", "a.b"), ("MUSIC_API_KEY", "ä" * 20)])
def test_a_key_that_cannot_be_one_is_named_and_not_shown(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable) as caught:
        read_music_keys({**KEYS, variable: value}, "webhook")
    assert value not in str(caught.value)


def test_keys_are_not_shown_in_a_traceback() -> None:
    assert "0123456789abcdef" not in repr(read_music_keys(KEYS, "webhook"))
