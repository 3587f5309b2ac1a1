"""A missing extra is named, with how to install it: a URL in the settings ends with exit code 78, a channel keeps its
message waiting."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retake.alerts.channels.sending import send
from retake.alerts.message import AlertEvent, Ending, Message
from retake.alerts.settings import AlertChannel
from retake.bucket import open_bucket
from retake.clock import FakeClock
from retake.errors import SettingsError
from retake.extras import EXTRAS, require
from retake.keys import KEYS
from retake.runs import open_ledger
from retake.vendors.comfyui import ComfyUI
from retake.vendors.telegram import TelegramBot
from retake.vendors.youtube import YouTube
from retake.vendors.youtube_account import YouTubeKeys

ROOT = Path(__file__).parent.parent
URLS = {
    "b2": {"STORAGE": {"url": "b2://stories/live"}},
    "s3": {"STORAGE": {"url": "s3://stories/live"}},
    "postgres": {"STORAGE": {"url": "file:bucket", "ledger": "postgresql://me@127.0.0.1/runs"}},
}


@pytest.fixture(params=URLS)
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an extra whose module cannot be imported."""
    extra: str = request.param
    monkeypatch.setitem(sys.modules, EXTRAS[extra], None)
    return extra


def test_what_is_installed_is_not_an_error() -> None:
    for extra in EXTRAS:
        require(extra, "a test")


def test_a_url_without_its_libraries_names_what_to_install(missing: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:  # noqa: PT012  (a bucket or a ledger)
        if missing == "postgres":
            open_ledger(URLS[missing]["STORAGE"]["ledger"], open_bucket(f"file:{tmp_path}"), FakeClock())
        else:
            open_bucket(URLS[missing]["STORAGE"]["url"])
    assert str(caught.value).endswith(
        f"needs {EXTRAS[missing]}, which is not installed: pip install 'retake[{missing}]'"
    )


def test_a_channel_without_its_library_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EXTRAS.keys() - URLS.keys() == {"apprise", "music", "images", "web"}
    monkeypatch.setitem(sys.modules, EXTRAS["apprise"], None)
    channel = AlertChannel("phone", "apprise", "APPRISE_URL", (), "any", (), True, (), {})
    message = Message(AlertEvent.TRIGGER, "2026-11-22T08:00:00Z", "a", "d", "error", "title", "text", {})
    outcome = send(channel, "json://127.0.0.1", message, 10.0)
    assert outcome.how is Ending.FAILED
    assert outcome.why.endswith("needs apprise, which is not installed: pip install 'retake[apprise]'")


def test_a_client_for_music_without_its_libraries_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTRAS["music"], None)
    with pytest.raises(SettingsError, match=r"pip install 'retake\[music\]'"):
        YouTube(YouTubeKeys("id", "secret", "token"), timeout_s=1)
    with pytest.raises(SettingsError, match=r"pip install 'retake\[music\]'"):
        TelegramBot("1:token", None, 1.0)


def test_a_client_for_images_without_its_library_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTRAS["images"], None)
    with pytest.raises(SettingsError, match=r"pip install 'retake\[images\]'"):
        ComfyUI("http://127.0.0.1:8188")


BUCKET = ("tick", "tick --dry-run", "status", "status --json", "fetch")
LEDGER = ("tick", "runs", "runs --json", "check", "check --json")
COMMANDS = {"b2": BUCKET, "s3": BUCKET, "postgres": LEDGER}


@pytest.mark.parametrize(("extra", "command"), [(extra, it) for extra in URLS for it in COMMANDS[extra]])
def test_a_command_ends_with_78_and_no_traceback(tmp_path: Path, extra: str, command: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.json").write_text(json.dumps(URLS[extra]))
    (tmp_path / "bucket").mkdir()
    (tmp_path / f"{EXTRAS[extra]}.py").write_text("raise ModuleNotFoundError")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETAKE_")}
    keys = {variables[0]: "a-key" for variables, _ in KEYS.values()}
    env = {**kept, **keys, "PYTHONPATH": str(ROOT), "B2_APPLICATION_KEY_ID": "id", "B2_APPLICATION_KEY": "key"}
    ran = subprocess.run(
        [sys.executable, "-m", "retake", *command.split()],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 78, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    [line] = [line for line in ran.stderr.splitlines() if f"{EXTRAS[extra]}, which is not installed" in line]
    assert f"pip install 'retake[{extra}]'" in line


@pytest.mark.parametrize("command", ["status", "dead list", "dead drop some-job"])
def test_a_command_about_image_jobs_ends_with_78_and_no_traceback(tmp_path: Path, command: str) -> None:
    for module in (EXTRAS["images"], "redis", "aio_pika"):
        (tmp_path / f"{module}.py").write_text("raise ModuleNotFoundError")
    ran = subprocess.run(
        [sys.executable, "-m", "retake", "images", *command.split()],
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), "RETAKE_CONFIG": str(ROOT / "config/config.json")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 78, ran.stderr
    [line] = ran.stderr.splitlines()
    assert line.endswith("needs websockets, which is not installed: pip install 'retake[images]'")
