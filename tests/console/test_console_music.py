"""`retake music`, and music in the commands for all pipelines."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from reading_world import CHECKOUT, KEYS, World, ask, shown

from retake.bucket import ANY
from retake.console import command_context, doctor, kpi, music, retry, runs, show, spend, status, unlock
from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.errors import SettingsError, StorageError
from retake.exit_codes import ExitCode
from retake.keys import Keys
from retake.music.settings import ServiceSettings
from retake.music.states import MusicStep
from retake.operations.port import Refusal

sys.path.append(str(Path(__file__).parents[1] / "music"))

from rows_world import Rows

QUICK = {"offline": True, "test_request": False}


class Both:
    """A story and music side by side, in one bucket."""

    def __init__(self, folder: Path) -> None:
        self.rows = Rows(f"sqlite:{folder}/music.db", daily_cap_usd=5.0)
        self.world = World()

    def context(self, channel: str | None = None) -> CommandContext:
        return CommandContext(
            {},
            channel=channel,
            clock=self.rows.clock,
            bucket=self.world.bucket,
            settings=self.world.settings,
            keys=KEYS,
            music=self.rows.settings,
        )

    def ask(self, command: click.Command, channel: str | None = None, **options: Any) -> Answer:
        return ask(command, self.context(channel), **options)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    found = Both(tmp_path)
    yield found
    found.rows.database.close()


def wide(answer: Answer) -> int:
    return max(len(line) for line in shown(answer).splitlines())


def test_the_list_has_what_is_not_over(both: Both) -> None:
    both.rows.create("one")
    both.rows.fail("PiAPI refused the prompt", "ERR_BUSINESS_REJECTED")
    both.rows.create("two")
    both.rows.actions.cancel(2)
    answer = both.ask(music.list_pipelines)
    assert [it["id"] for it in answer.document["pipelines"]] == [1]
    assert "cover: PiAPI refused the prompt" in shown(answer)
    assert [it["id"] for it in both.ask(music.list_pipelines, state="cancelled").document["pipelines"]] == [2]
    assert shown(both.ask(music.list_pipelines, state="published")) == "No pipeline is published.\n"
    with pytest.raises(click.UsageError, match="There is no state 'gone'"):
        both.ask(music.list_pipelines, state="gone")


@pytest.mark.parametrize("name", ["1", "music-1"])
def test_a_pipeline_is_shown_with_all_that_is_known_of_it(both: Both, name: str) -> None:
    both.rows.create()
    both.rows.pay(both.rows.begin(), "accepted")
    both.rows.attempts.succeed(both.rows.attempts.begin(both.rows.database.ledger.runs()[0]), {})  # type: ignore[arg-type]
    answer = both.ask(music.show_pipeline, pipeline_id=name)
    document = answer.document
    assert (document["id"], document["state"]) == (1, "cover_pending")
    assert [(it["step"], it["status"]) for it in document["jobs"]] == [("cover", "interrupted"), ("cover", "succeeded")]
    assert [it["outcome"] for it in document["paid_calls"]] == ["accepted"]
    assert [it["event"] for it in document["messages"]] == ["pending"]
    assert "upload_session" not in document
    assert "Paid: 0.045 USD for 1 call" in shown(answer)
    both.rows.actions.feedback(1, "more blue")
    answer = both.ask(music.show_pipeline, pipeline_id=name)
    assert "more blue" in shown(answer)
    assert answer.document["note"] == "more blue"


def test_what_failed_is_retried_and_what_is_not_wanted_cancelled(both: Both) -> None:
    both.rows.create()
    with pytest.raises(Refusal, match="only a failed pipeline"):
        both.ask(music.retry_pipeline, pipeline_id="1")
    both.rows.fail("no", "ERR_BUSINESS_REJECTED")
    assert both.ask(music.retry_pipeline, pipeline_id="music-1").document["state"] == "cover_running"
    both.rows.actions.change(1, lambda cursor, now: {"state": "awaiting_manual"})
    with pytest.raises(Refusal, match="this one waits for your decision: resolve it"):
        both.ask(music.retry_pipeline, pipeline_id="1")
    both.rows.actions.change(1, lambda cursor, now: {"state": "cover_running"})
    both.rows.fail("late", "ERR_TEMPORARY_POLL_TIMEOUT")
    assert both.ask(music.retry_pipeline, pipeline_id="1", again=True).document["state"] == "cover_running"
    assert both.ask(music.cancel_pipeline, pipeline_id="1").document["state"] == "cancelled"
    with pytest.raises(Refusal) as refused:
        both.ask(music.cancel_pipeline, pipeline_id="1")
    assert refused.value.exit_code == ExitCode.BAD_STATE


def test_a_decision_is_a_video_or_another_try(both: Both) -> None:
    for _ in range(2):
        both.rows.at(both.rows.create(), MusicStep.PUBLISH)
        both.rows.await_person("the session is gone")
    done = both.ask(music.resolve_pipeline, pipeline_id="1", video_id="dQw4w9WgXcQ").document
    assert (done["state"], both.rows.actions.get(1).youtube_video_id) == ("published", "dQw4w9WgXcQ")
    assert both.ask(music.resolve_pipeline, pipeline_id="2", again=True).document["state"] == "publish_running"
    with pytest.raises(Refusal, match="is not a video id"):
        both.ask(music.resolve_pipeline, pipeline_id="2", video_id="https://youtu.be/x")
    for options in ({}, {"video_id": "x", "again": True}):
        with pytest.raises(click.UsageError):
            both.ask(music.resolve_pipeline, pipeline_id="2", **options)


@pytest.mark.parametrize("name", ["seven", "music-", "-1", "9" * 50, "٧"])
def test_what_is_not_an_id_is_refused(both: Both, name: str) -> None:
    with pytest.raises(Refusal, match="names no pipeline"):
        both.ask(music.show_pipeline, pipeline_id=name)


def test_an_unknown_id_makes_no_database(tmp_path: Path) -> None:
    both = Both(tmp_path)
    url = f"sqlite:{tmp_path}/none.db"
    both.rows.settings = both.rows.settings._replace(music=ServiceSettings(database=url))
    with pytest.raises(Refusal, match="there is no pipeline 7; see music list") as unknown:
        both.ask(music.retry_pipeline, pipeline_id="7")
    assert unknown.value.exit_code == ExitCode.BAD_STATE
    assert not (tmp_path / "none.db").exists()


def test_a_channel_that_has_no_music_is_refused(both: Both) -> None:
    both.rows.create()
    assert both.ask(music.list_pipelines, "music").document["pipelines"]
    for command, options in ((music.list_pipelines, {}), (music.show_pipeline, {"pipeline_id": "1"}),
                             (music.cancel_pipeline, {"pipeline_id": "1"})):  # fmt: skip
        with pytest.raises(Refusal, match=r"--channel en: .* say --channel music"):
            both.ask(command, "en", **options)
    assert both.rows.actions.get(1).state == "cover_running"


def keys_missing(both: Both, channel: str | None = None) -> list[str]:
    context = both.context(channel)
    context._given = (both.world.bucket, both.world.settings, Keys())
    checks = ask(doctor.command, context, **QUICK).document["checks"]
    return [it["found"].partition(" is ")[0] for it in checks if it["check"].startswith("key ")]


def test_the_doctor_tells_of_a_key_that_both_need_once(both: Both) -> None:
    found = keys_missing(both)
    assert found.count("MIDJOURNEY_API_KEY") == found.count("OPENAI_API_KEY") == 1
    assert "YOUTUBE_CLIENT_ID" in found
    alone = keys_missing(both, "music")
    assert {"MIDJOURNEY_API_KEY", "OPENAI_API_KEY"} <= {*alone}


# --- beside the story -------------------------------------------------------------------------------------------------


def test_status_shows_both_and_what_a_person_has_to_do(both: Both) -> None:
    both.rows.create()
    both.rows.fail("PiAPI refused the prompt", "ERR_BUSINESS_REJECTED")
    answer = both.ask(status.command)
    assert answer.exit_code == ExitCode.FAILED
    assert [it["pipeline"] for it in answer.document["pipelines"]] == ["story", "music"]
    told = shown(answer)
    assert "music: music-1 failed at cover: PiAPI refused the prompt; retake music retry 1" in told
    assert "spent today by music: 0.000 of 5.000 USD" in told
    alone = both.ask(status.command, "music")
    assert [it["pipeline"] for it in alone.document["pipelines"]] == ["music"]
    assert "lease" not in shown(alone)


def test_what_music_has_spent_is_not_taken_for_the_book_of_the_day(both: Both) -> None:
    both.rows.create()
    both.rows.pay(both.rows.begin(), "accepted")
    both.world.bucket.write("caps/2026-11-22.json", b"no document", ANY)
    answer = both.ask(status.command)
    assert answer.document["caps"] is None
    assert "by all channels" not in shown(answer)
    assert both.ask(status.command, "music").document["caps"]["spent_usd"] == 0.045


def test_runs_show_spend_and_kpi_cover_both(both: Both) -> None:
    both.world.ticks(8)
    both.rows.clock.moment = both.world.clock.now()
    both.rows.create()
    both.rows.pay(both.rows.begin(), "accepted")
    options: dict[str, Any] = {"statuses": (), "limit": 20, "pipeline": None, "since": None, "code": None}
    found = both.ask(runs.command, **options).document["runs"]
    assert {run["pipeline"] for run in found} == {"story", "music"}
    assert [run["task_id"] for run in both.ask(runs.command, "music", **options).document["runs"]] == ["music-1"]
    assert both.ask(show.command, run="music-1").document["paid_calls"][0]["step"] == "cover"
    today = both.ask(spend.command).document["today"]
    assert [it.get("pipeline") for it in today["pipelines"]] == [None, "music"]
    assert "music today: 0.045 USD settled" in shown(both.ask(spend.command))
    figures = both.ask(kpi.command).document["pipelines"]
    assert {it["pipeline"] for it in figures} == {"story", "music"}


def test_a_general_order_reaches_music(both: Both) -> None:
    both.rows.create()
    both.rows.fail("no", "ERR_BUSINESS_REJECTED")
    answer = both.ask(retry.command, run="music-1")
    assert (answer.document["done"], answer.document["status"]) == ("retry", "cover_running")
    with pytest.raises(Refusal, match="takes no lease"):
        both.ask(unlock.command, "music", yes=True)


def test_the_doctor_checks_both_or_music_alone(both: Both) -> None:
    def checks(channel: str | None = None) -> set[str]:
        findings = doctor.examine(both.context(channel), offline=True, test_request=False)
        return {it.check for it in findings}

    own = {"key MUSIC_API_KEY", "audio folder", "music libraries"}
    assert own | {"prompts", "key midjourney"} <= checks()
    alone = checks("music")
    assert own | {"music database", "music service"} <= alone
    assert not {"prompts", "key midjourney"} & alone


def test_a_ledger_at_fault_hides_nothing_of_the_other(both: Both, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but a text that is long enough to be looked at" * 9)
    storage = both.world.settings.storage._replace(ledger=f"sqlite:{tmp_path}/text")
    both.world.settings = both.world.settings._replace(storage=storage)
    both.rows.create()
    both.rows.fail("no", "ERR_BUSINESS_REJECTED")
    found = [
        (it.check, it.verdict)
        for it in doctor.examine(both.context(), offline=True, test_request=False)
        if it.check in ("ledger", "ledger's tables", "last errors", "failed runs")
    ]
    assert found == [
        ("ledger", "fault"),
        ("ledger's tables", "ok"),
        ("ledger", "ok"),
        ("last errors", "fault"),
        ("last errors", "ok"),
        ("failed runs", "ok"),
    ]


# --- where it is not in use -------------------------------------------------------------------------------------------


def test_without_music_nothing_is_different() -> None:
    context = CommandContext({}, settings=World().settings, keys=KEYS)
    assert not context.music_in_use
    with pytest.raises(SettingsError, match="no section MUSIC"):
        assert CommandContext({}, channel="music", settings=World().settings, keys=KEYS).operations


def test_the_database_alone_says_that_music_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"sqlite:{command_context.MUSIC_DATABASE}" == ServiceSettings().database
    monkeypatch.chdir(tmp_path)
    (tmp_path / "music").mkdir()
    (tmp_path / "music" / "music.sqlite3").touch()
    assert CommandContext({}, settings=World().settings, keys=KEYS).music_in_use


@pytest.mark.parametrize("section", [False, True])
def test_a_command_of_the_story_loads_music_only_where_it_is_in_use(tmp_path: Path, section: bool) -> None:
    settings = tmp_path / "config.json"
    settings.write_text(json.dumps({"MUSIC": {}} if section else {}))
    script = (
        "import sys\nfrom retake.console.command_context import CommandContext\n"
        "context = CommandContext({'RETAKE_CONFIG': sys.argv[1], 'RETAKE_STORAGE_URL': 'file:bucket'})\n"
        "[it.name for it in context.operations.pipelines]\n"
        "print([name for name in ('sqlalchemy', 'retake.music') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(settings)],
        cwd=tmp_path, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.replace("'", '"')) == (["sqlalchemy", "retake.music"] if section else [])


def test_times_on_telegram_are_in_whole_seconds(both: Both) -> None:
    both.rows.clock.sleep(0.123456)
    both.rows.create()
    both.rows.fail("no", "ERR_BUSINESS_REJECTED")
    [row] = [line for line in shown(both.ask(music.show_pipeline, pipeline_id="1")).splitlines() if "waits" in line]
    assert re.match(r"\d\d:\d\d:\d\d +failed +waits ", row)


@pytest.mark.parametrize("program", ["retake", "python -m retake"])
def test_the_service_is_used_by_the_name_by_which_it_was_called(program: str) -> None:
    found = CliRunner().invoke(music.command, ["serve", "--port", "x"], prog_name=f"{program} music")
    assert found.exit_code == 2
    assert found.stderr.startswith(f"Usage: {program} music serve [OPTIONS]\n")


@pytest.mark.parametrize("command", [runs.command, kpi.command, doctor.command])
def test_a_faulty_database_is_named_as_that_of_music(both: Both, tmp_path: Path, command: click.Command) -> None:
    (tmp_path / "text").write_text("no database, but a text that is long enough to be looked at" * 9)
    section = both.rows.settings.music._replace(database=f"sqlite:{tmp_path}/text")
    both.rows.settings = both.rows.settings._replace(music=section)
    options = {
        runs.command: {"statuses": (), "limit": 9, "pipeline": None},
        kpi.command: {},
        doctor.command: QUICK,
    }
    try:
        told = shown(both.ask(command, "music", **options[command]))
    except StorageError as error:
        told = str(error)
    assert "Name another one in MUSIC.database" in told
    assert "STORAGE.ledger" not in told
