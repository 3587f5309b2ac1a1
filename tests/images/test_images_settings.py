"""The settings of the image-job service: all mistakes are reported at once, and never with a password."""

import json
from pathlib import Path
from typing import Any

import pytest

from retake.errors import SettingsError, redact
from retake.images.settings import ENVIRONMENT, ImageJobSettings, check_user, load_images_settings

GOOD = {
    "REDIS_URL": "redis://:hunter2@h:6379/0",
    "RABBITMQ_URL": "amqps://ann:hunter3@h/vhost",
    "DATABASE_URL": "postgresql://ann:hunter%344@h/x",
    "IMAGES_STORAGE_URL": "file:images",
    "IMAGES_KEYS": "alice=secretkey1, *=secretkey2",
}
SECRETS = ("hunter", "secretkey")


def load(folder: Path, section: Any = None, needed: tuple[str, ...] = (), **environ: str) -> Any:
    file = folder / "config.json"
    file.write_text(json.dumps({} if section is None else {"IMAGES": section}))
    return load_images_settings({"RETAKE_CONFIG": str(file), **environ}, needed)


def fault(folder: Path, section: Any = None, needed: tuple[str, ...] = (), **environ: str) -> str:
    with pytest.raises(SettingsError) as raised:
        load(folder, section, needed, **environ)
    told = str(raised.value)
    assert raised.value.exit_code == 78
    assert not [it for it in SECRETS if it in told], told
    return told


def test_all_of_it_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, {"active_seconds": 0.5, "comfyui_urls": ["http://c:8188"]}, tuple(GOOD)[:5], **GOOD)
    assert found.images == ImageJobSettings(active_seconds=0.5, comfyui_urls=("http://c:8188",))
    assert found.storage.url == "file:images"
    assert dict(found.keys) == {"alice": "secretkey1", "*": "secretkey2"}
    assert {"hunter2", "hunter3", "hunter%344", "hunter44"} <= set(found.places.passwords())
    for it in SECRETS:
        assert it not in repr(found)


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert found.images == ImageJobSettings()
    assert not found.keys
    assert found.places == ("", "", "")


def test_every_variable_that_is_missing_is_reported_at_once(tmp_path: Path) -> None:
    told = fault(tmp_path, needed=tuple(ENVIRONMENT), REDIS_URL="  ")
    assert [line.partition(" ")[0] for line in told.splitlines()] == list(ENVIRONMENT)


def test_a_url_that_cannot_be_used_is_reported_with_its_form(tmp_path: Path) -> None:
    assert "DATABASE_URL: not a URL of the form postgresql://HOST" in fault(tmp_path, DATABASE_URL="mysql://h/x")


@pytest.mark.parametrize("name", ["REDIS_URL", "RABBITMQ_URL", "DATABASE_URL"])
@pytest.mark.parametrize(
    "url",
    ["hunter2", "http://:hunter2@h", "redis:hunter2", "redis://:hunter2@", "amqp://a:hunter2@h:port", "amqp://a:hunter2@[h",
     "redis://:hunter2@h:0", "postgresql://a:hunter2@h:99999/x", "redis://h/\n:hunter2"],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_reported_without_it(tmp_path: Path, name: str, url: str) -> None:
    assert name in fault(tmp_path, **{**GOOD, name: url})


@pytest.mark.parametrize(
    "keys",
    ["secretkey1", "=secretkey1", "alice=", "a b=secretkey1", "jobs=secretkey1", "alice=secret key1",
     "alice=secretkeyé", "alice=secretkey1,alice=secretkey2",
     "alice=secretkey1,bob=secretkey1", "alice=secretkey1\x00", "é=secretkey1",
     "a" * 65 + "=secretkey1"],
)  # fmt: skip
def test_a_key_that_cannot_be_used_is_reported_without_it(tmp_path: Path, keys: str) -> None:
    assert "IMAGES_KEYS: entry" in fault(tmp_path, IMAGES_KEYS=keys)


def test_the_bucket_is_not_the_story_s(tmp_path: Path) -> None:
    for url in ("file:bucket", "file:bucket/"):
        assert "IMAGES_STORAGE_URL" in fault(tmp_path, IMAGES_STORAGE_URL=url)
    assert "IMAGES_STORAGE_URL" in fault(tmp_path, IMAGES_STORAGE_URL="s3://ann:hunter2@bucket/x")


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ImageJobSettings._fields for value in (True, {}, "x", -1, float("1e99"))
     if not (value == "x" and name == "comfyui_urls")],
)  # fmt: skip
def test_every_setting_has_its_bounds(tmp_path: Path, name: str, value: object) -> None:
    assert f"IMAGES.{name}" in fault(tmp_path, {name: value})


def test_an_unknown_setting_and_every_fault_are_reported_at_once(tmp_path: Path) -> None:
    told = fault(tmp_path, {"active_secs": 1, "idle_seconds": -1, "max_files": 0.5}, IMAGES_KEYS="x", REDIS_URL="y")
    for it in ("active_secs", "IMAGES.idle_seconds", "IMAGES.max_files", "IMAGES_KEYS", "REDIS_URL"):
        assert it in told


def test_the_comfyui_servers_of_the_environment_stand_instead(tmp_path: Path) -> None:
    section = {"comfyui_urls": ["http://a:1"]}
    found = load(tmp_path, section, RETAKE_COMFYUI_URLS=" http://b:2 ,,https://c:3/x ")
    assert found.images.comfyui_urls == ("http://b:2", "https://c:3/x")
    assert "RETAKE_COMFYUI_URLS" in fault(tmp_path, section, RETAKE_COMFYUI_URLS="http://a:1,nothing")
    assert "hunter" not in fault(tmp_path, section, RETAKE_COMFYUI_URLS="http://ann:hunter2@a:1")


@pytest.mark.parametrize("user", ["", "jobs", "a" * 65, "a b", "é", "a/b", "*", "a\n"])
def test_what_is_not_a_user(user: str) -> None:
    with pytest.raises(ValueError, match="userId"):
        check_user(user)


@pytest.mark.parametrize("user", ["a", "A-b_9" * 12, "Jobs", "-"])
def test_what_is_a_user(user: str) -> None:
    assert check_user(user) == user


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_the_log_leaves_the_hint_for_a_variable_as_it_is(name: str) -> None:
    assert redact(ENVIRONMENT[name]) == ENVIRONMENT[name]
