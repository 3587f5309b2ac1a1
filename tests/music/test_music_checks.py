"""The doctor's checks for the music service: keys, folder, ffmpeg, vendors."""

from pathlib import Path

import pytest

from retake.exit_codes import ExitCode
from retake.music.operator_checks import clients_of, key_checks, keys_set, machine_checks
from retake.music.settings import MUSIC_KEYS, SANDBOX_KEYS, MusicKeys, MusicSettings, ServiceSettings, sandboxed
from retake.operations.finding import Verdict
from retake.operations.vendor_checks import vendor_checks
from retake.sandbox import Pace, Sandbox


@pytest.mark.parametrize(
    ("telegram", "missing"),
    [
        ("off", {"TELEGRAM_BOT_TOKEN", "TELEGRAM_WEBHOOK_SECRET"}),
        ("poll", {"TELEGRAM_WEBHOOK_SECRET"}),
        ("webhook", set[str]()),
    ],
)
def test_a_key_that_is_missing_is_a_fault_where_it_is_needed(telegram: str, missing: set[str]) -> None:
    names = {variable for variable, _ in MUSIC_KEYS.values()}
    found = {it.check.removeprefix("key "): it for it in key_checks({}, telegram)}
    assert set(found) == names - missing
    assert {(it.verdict, it.exit_code) for it in found.values()} == {(Verdict.FAULT, ExitCode.CONFIG)}
    secret = dict.fromkeys(names, "a very secret key")
    found = {it.check: it for it in key_checks(secret, telegram)}
    assert {it.verdict for it in found.values()} == {Verdict.OK}
    assert not any("secret key" in it.found for it in found.values())


def test_the_folder_of_the_tracks_is_looked_at(tmp_path: Path) -> None:
    def verdict(folder: str) -> Verdict:
        settings = MusicSettings(music=ServiceSettings(audio_folder=folder))
        return next(it.verdict for it in machine_checks(settings) if it.check == "audio folder")

    assert verdict(str(tmp_path)) is Verdict.OK
    assert verdict(str(tmp_path / "none")) is Verdict.WARN


def test_each_vendor_is_asked_by_the_client_of_its_step() -> None:
    own = ServiceSettings(telegram="poll", telegram_chat_id=1)
    with Sandbox(pace=Pace(0, 0, 0), quick=True, seed=7) as sandbox:
        settings = sandboxed(MusicSettings(music=own), sandbox.url)
        clients = clients_of(settings, SANDBOX_KEYS, lambda seconds: None)
        found = [*vendor_checks(clients, test_request=True)]
    assert [it.verdict for it in found] == [Verdict.OK] * 8
    assert [it.name for it in clients][2:] == ["publishing (YouTube)", "Telegram"]


def test_a_vendor_without_a_key_is_not_asked() -> None:
    settings = MusicSettings()
    assert clients_of(settings, MusicKeys(), lambda seconds: None) == []
    assert [*vendor_checks([], test_request=True)] == []
    assert keys_set({"MUSIC_API_KEY": " ", "OPENAI_API_KEY": "sk"}) == MusicKeys(openai="sk")
    some = keys_set({"YOUTUBE_CLIENT_ID": "id", "TELEGRAM_BOT_TOKEN": "1:x"})
    assert clients_of(settings, some, lambda seconds: None) == []
