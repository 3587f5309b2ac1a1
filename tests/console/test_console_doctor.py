"""`doctor`: each check finds what it looks for, on real parts, and leaves nothing behind."""

import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operator_states import STATES
from reading_world import KEYS, World, ask, context_of, shown
from test_console_runs import eventful

from retake.alerts.settings import AlertChannel
from retake.bucket import ANY, Entry
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.bucket.wrappers import Wrapper
from retake.clock import FakeClock, SystemClock
from retake.console.answer import Answer
from retake.console.command_context import CommandContext
from retake.console.doctor import command as doctor
from retake.errors import StorageError
from retake.keys import Keys
from retake.operations import host_checks, store_checks
from retake.runs import open_ledger
from retake.runs.recovery import interrupt
from retake.sandbox import Pace, Sandbox
from retake.settings.shared import StorageSettings
from retake.story.content import KEYS as CONTENT_KEYS
from retake.story.settings import Settings, sandboxed


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as sandbox:
        yield sandbox


def examined(context: CommandContext | World, **options: bool) -> Answer:
    return ask(doctor, context, **{"offline": True, "test_request": False, **options})


def agreed(world: World) -> World:
    """Let the store use the world's clock."""
    world.bucket.store._clock = world.clock
    return world


def found(answer: Answer, check: str) -> tuple[str, str]:
    """Return verdict and text of the check's only finding."""
    [finding] = [it for it in answer.document["checks"] if it["check"] == check]
    return finding["verdict"], finding["found"]


def on_disk(path: Path, **storage: Any) -> CommandContext:
    settings = Settings(storage=StorageSettings(f"file:{path}", **storage))
    return CommandContext({}, settings=settings, keys=KEYS, bucket=DirectoryBucket(str(path)), clock=SystemClock())


def test_where_all_is_well_it_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    context = on_disk(tmp_path)
    context.bucket.write("config/config_gen.json", b"{}", ANY)
    answer = examined(context)
    assert answer.exit_code == 0, shown(answer)
    assert shown(answer).startswith("All is well")
    assert [entry.key for entry in context.bucket.list("")] == ["config/config_gen.json"]
    assert context.bucket.holder("doctor") is None


def test_it_tells_that_it_writes_and_deletes_a_scratch_object() -> None:
    verdict, words = found(examined(agreed(World())), "bucket is writable")
    assert verdict == "ok"
    assert "was written, read and deleted (doctor-" in words


# --- settings and keys ------------------------------------------------------------------------------------------------


def test_settings_that_cannot_be_read_are_the_one_fault(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"WORKFLOW": {"max_retires": 3}}')
    answer = examined(CommandContext({"RETAKE_CONFIG": str(file)}))
    assert answer.exit_code == 78
    assert [it["check"] for it in answer.document["checks"]] == ["settings"]
    assert "did you mean max_retries?" in shown(answer)


def test_each_fault_of_the_settings_is_reported_once_and_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"WORKFLOW": {"max_retries": "3", "max_tasks_per_run": 0}}')
    told = shown(examined(CommandContext({"RETAKE_CONFIG": str(file)}))).splitlines()
    assert [line.strip().partition(":")[0] for line in told if "WORKFLOW" in line] == [
        "WORKFLOW.max_retries",
        "WORKFLOW.max_tasks_per_run",
    ]
    assert told[-1] == "settings: correct what is named above"


def test_wrong_settings_of_music_are_no_fault_of_the_bucket(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"STORAGE": {"url": f"file:{tmp_path}/bucket"}, "MUSIC": {"telegram": "x"}}))
    answer = examined(CommandContext({"RETAKE_CONFIG": str(file)}, keys=KEYS))
    faults = [it for it in answer.document["checks"] if it["verdict"] == "fault" and "MUSIC" in it["found"]]
    assert [it["check"] for it in faults] == ["settings of music"]
    assert answer.exit_code == 78


def test_an_unknown_setting_is_a_warning() -> None:
    world = agreed(World())
    world.settings = world.settings._replace(warnings=("x.json: settings that are not known here: FOO",))
    answer = examined(world)
    assert answer.exit_code == 0
    assert answer.document["warnings"] == 1


def test_a_missing_key_is_a_fault_and_no_key_is_ever_shown() -> None:
    world = agreed(World())
    context = CommandContext(
        {}, settings=world.settings, keys=Keys(runway="very-secret"), bucket=world.bucket, clock=world.clock
    )
    answer = examined(context)
    assert answer.exit_code == 78
    assert found(answer, "key midjourney")[0] == "fault"
    assert found(answer, "key runway")[0] == "ok"
    assert "key midjourney: put MIDJOURNEY_API_KEY in the environment\n" in shown(answer)
    assert "very-secret" not in shown(answer) + json.dumps(answer.document)


def test_a_reference_in_the_prompts_that_stands_for_nothing_is_a_warning(tmp_path: Path) -> None:
    def call(user: str, *keys: str) -> dict[str, object]:
        return {"name": "/".join(keys), "keys": keys, "system": "$used_topics for $$5 or $5", "user": user}

    world, file = World(), tmp_path / "prompts.json"
    world.settings = world.settings._replace(paths=world.settings.paths._replace(prompts=str(file)))
    calls = [
        call("Find one.", "topic", "short_topic"),
        call("About ${topic}.", *(key for key in CONTENT_KEYS if "topic" not in key)),
    ]
    file.write_text(json.dumps({"calls": calls}))
    assert found(examined(world), "prompts") == ("ok", f"{file}: 2 calls to the writer")
    calls[0]["user"] = "Find a $short_topic, not $topci."
    file.write_text(json.dumps({"calls": calls}))
    verdict, words = found(examined(world), "prompts")
    assert (verdict, words.count("no earlier call answers $")) == ("warn", 2)
    assert "call 'topic/short_topic': no earlier call answers $topci" in words


def test_a_key_in_the_prompts_that_means_nothing_is_a_warning(tmp_path: Path) -> None:
    world, file = World(), tmp_path / "prompts.json"
    world.settings = world.settings._replace(paths=world.settings.paths._replace(prompts=str(file)))
    call = {"name": "all", "keys": CONTENT_KEYS, "system": "x", "user": "y", "temprature": 0.2, "max_tokens": 9}
    file.write_text(json.dumps({"calls": [call], "comment": "mine"}))
    verdict, words = found(examined(world), "prompts")
    assert verdict == "warn"
    assert words.startswith(f"{file}: comment is unknown; call 'all': temprature is unknown; did you mean temperature?")


def test_prompts_that_are_not_there_are_a_fault() -> None:
    world = agreed(World())
    world.settings = world.settings._replace(paths=world.settings.paths._replace(prompts="/nowhere/prompts.json"))
    answer = examined(world)
    assert found(answer, "prompts")[0] == "fault"
    assert answer.exit_code == 78


# --- the bucket -------------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_away_is_the_fault_and_nothing_else_of_it_is_tried() -> None:
    away = FailingBucket(MemoryBucket(), Fault(lambda: StorageError("no route to it"), times=999))
    answer = examined(context_of(World(), away))
    assert answer.exit_code == 69
    assert found(answer, "bucket") == ("fault", "no route to it")
    assert away.operations[1:] == [("list", "breakers/")] or len(away.operations) == 1


def test_a_bucket_that_cannot_be_written_is_a_fault() -> None:
    full = FailingBucket(MemoryBucket(), Fault(lambda: StorageError("it is full"), operation="write"))
    answer = examined(context_of(World(), full))
    assert found(answer, "bucket is writable") == ("fault", "it is full")
    assert answer.exit_code == 69


def test_two_doctors_at_a_time_are_no_fault_of_the_bucket() -> None:
    world = agreed(World())
    other = world.bucket.lease("doctor", "host-b:4")
    answer = examined(world)
    assert found(answer, "bucket is writable")[0] == "ok"
    verdict, words = found(answer, "lease")
    assert (verdict, answer.exit_code) == ("warn", 0)
    assert "held by host-b:4" in words
    other.check()


class Forgetful(Wrapper):
    """A store whose listings lag behind."""

    def list(self, prefix: str) -> list[Entry]:
        return [entry for entry in super().list(prefix) if not entry.key.startswith("doctor-")]


def test_a_listing_that_lags_behind_is_a_fault() -> None:
    answer = examined(context_of(World(), Forgetful(MemoryBucket())))
    assert found(answer, "listing") == ("fault", "what is written is not listed yet")


@pytest.mark.parametrize(("ahead_s", "verdict"), [(0, "ok"), (5, "ok"), (30, "warn"), (900, "fault")])
def test_clocks_that_are_apart_are_reported(ahead_s: int, verdict: str) -> None:
    world = agreed(World())
    world.bucket.store._clock = FakeClock(world.clock.now() + timedelta(seconds=ahead_s))
    assert found(examined(world), "clock")[0] == verdict
    world.bucket.store._clock = FakeClock(world.clock.now() - timedelta(seconds=ahead_s))
    assert found(examined(world), "clock")[0] == verdict


def test_the_lease_holder_is_reported_and_not_disturbed() -> None:
    world = agreed(World())
    lease = world.bucket.lease("story", "host-a:17")
    assert found(examined(world), "at work")[0] == "ok"
    world.later(hours=2)
    verdict, words = found(examined(world), "at work")
    assert (verdict, "host-a:17" in words) == ("warn", True)
    lease.check()


# --- ledgers and state ------------------------------------------------------------------------------------------------


def test_an_unreadable_document_is_a_fault() -> None:
    world = agreed(World())
    world.put("config/config_gen.json", b"[]")
    verdict, words = found(examined(world), "documents")
    assert verdict == "fault"
    assert "config/config_gen.json" in words


def test_a_day_book_that_cannot_be_read_is_a_fault() -> None:
    world = agreed(STATES["pictures next"]())
    assert found(examined(world), "day's book")[0] == "ok"
    world.put("caps/2026-01-01.json", b"{")
    verdict, words = found(examined(world), "day's book")
    assert (verdict, words.startswith("caps/2026-01-01.json: not JSON")) == ("fault", True)
    assert "remove it and run `retake check --repair`" in words


@pytest.mark.parametrize(("key", "check"), [("alerts/state.json", "open alerts"), ("mode/state.json", "mode")])
def test_alerts_or_a_mode_that_cannot_be_read_are_a_fault(key: str, check: str) -> None:
    world = agreed(World())
    assert found(examined(world), check)[0] == "ok"
    world.put(key, b"{")
    verdict, words = found(examined(world), check)
    assert (verdict, f"{key}: not JSON" in words) == ("fault", True)


def test_a_day_counted_on_a_later_one_is_a_warning() -> None:
    world = agreed(World())
    world.put("caps/2031-01-01.json", b'{"day": "2031-01-01", "pipelines": {}}')
    verdict, words = found(examined(world), "day's book")
    assert (verdict, "spent on 2031-01-01" in words) == ("warn", True)


def test_an_error_that_waits_for_a_person_is_a_fault() -> None:
    answer = examined(agreed(STATES["pictures refused for the key"]()))
    assert found(answer, "documents")[0] == "fault"
    assert answer.exit_code == 69


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"topic": "x"}', b"[[[["])
def test_a_text_that_is_not_whole_is_a_fault(content: bytes) -> None:
    world = agreed(STATES["pictures next"]())
    assert found(examined(world), "input")[0] == "ok"
    world.put("666/20260101-0000.json", content)
    assert found(examined(world), "input")[0] == "fault"


def test_channels_are_looked_at_and_those_with_something_wrong_are_named() -> None:
    world = agreed(World())
    world.settings = world.settings._replace(channels=("en", "ru"))
    world.put("ru/config/config_gen.json", b"[]")
    answer = examined(world)
    assert found(answer, "documents of ru")[0] == "fault"
    assert found(answer, "documents") == ("ok", "2 channels looked at, 1 with something wrong")


def test_the_last_errors_are_grouped_by_code_step_and_vendor() -> None:
    answer = examined(agreed(eventful()))
    verdict, words = found(answer, "last errors")
    assert verdict == "ok"
    assert words.startswith("the last 4: A UNAVAILABLE at imagine (piapi) × 2; ")
    [finding] = [it for it in answer.document["checks"] if it["check"] == "last errors"]
    assert {"code": "ERR_BUSINESS_REJECTED", "step": "upscale", "vendor": "piapi", "times": 1} in finding["facts"][
        "groups"
    ]


def test_many_failed_runs_are_a_warning() -> None:
    world = agreed(World())
    for _ in range(3):
        world.vendors.plan("imagine", "rejected")
        world.tick()
    assert found(examined(world), "failed runs") == ("warn", "of the last 3 runs that ended, 3 failed")


def test_an_open_breaker_is_a_warning() -> None:
    world = agreed(World())
    world.put("breakers/piapi.json", {"open_until": "2030-01-01T00:00:00Z", "opened_at": "2026-01-01T00:00:00Z"})
    assert found(examined(world), "breaker piapi") == ("warn", "open since 2026-01-01T00:00:00Z")
    world.put("breakers/piapi.json", {"open_until": "2030-01-01T00:00:00Z", "code": "ERR_X"})
    assert found(examined(world), "breaker piapi") == ("warn", "open: ERR_X")


def test_a_breaker_that_cannot_be_read_says_why() -> None:
    world = agreed(World())
    world.put("breakers/piapi.json", "{")
    verdict, words = found(examined(world), "breaker piapi")
    assert verdict == "warn"
    assert words.startswith("unreadable: breakers/piapi.json: ")


def test_breakers_that_cannot_be_listed_hide_nothing_else() -> None:
    away = FailingBucket(MemoryBucket(), Fault(lambda: StorageError("no route to it"), key="breakers/", times=9))
    answer = examined(context_of(World(), away))
    assert found(answer, "breakers") == ("fault", "no route to it")
    assert found(answer, "bucket is writable")[0] == "ok"


def test_a_database_tells_the_version_of_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:{tmp_path / 'runs.sqlite'}"
    context = on_disk(tmp_path / "bucket", ledger=url)
    assert found(examined(context), "ledger's tables")[1] == f"{url} does not exist yet: the first tick creates it"
    assert capsys.readouterr().err == ""  # SQLAlchemy logs a traceback if a connection is closed after its pool
    ledger: Any = open_ledger(url, context.bucket, context.clock)
    ledger.create_for_task("g", "g#1", actor="cron", pipeline="story")
    ledger.close()
    answer = examined(on_disk(tmp_path / "bucket", ledger=url))
    assert found(answer, "ledger's tables")[1].endswith("the newest")
    assert found(answer, "ledger") == ("ok", "answers: 1 queued")


def test_a_database_that_cannot_be_written_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    context = on_disk(tmp_path / "bucket", ledger=f"sqlite:{path}")
    ledger: Any = open_ledger(f"sqlite:{path}", context.bucket, context.clock)
    ledger.close()
    assert found(examined(context), "ledger's file")[0] == "ok"
    monkeypatch.setattr(store_checks, "_LEDGER_BYTES", 10**18)
    verdict, what = found(examined(context), "ledger's file")
    assert (verdict, what.endswith(f" free at {path}")) == ("fault", True)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may write everywhere
    answer = examined(context)
    assert found(answer, "ledger's file") == ("fault", f"this user may not write to {path}")
    assert answer.exit_code == 69


def test_a_database_that_is_away_is_a_fault(tmp_path: Path) -> None:
    context = on_disk(tmp_path, ledger="postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")
    answer = examined(context)
    assert found(answer, "ledger")[0] == "fault"
    assert answer.exit_code == 69


# --- this machine -----------------------------------------------------------------------------------------------------


def test_little_room_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_checks, "WARN_FREE_BYTES", 10**18)
    assert found(examined(on_disk(tmp_path)), "disk of the bucket")[0] == "warn"
    monkeypatch.setattr(host_checks, "FAULT_FREE_BYTES", 10**18)
    answer = examined(on_disk(tmp_path))
    assert found(answer, "disk of the bucket")[0] == "fault"
    assert answer.exit_code == 69


def test_a_machine_without_a_temporary_folder_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    answer = examined(on_disk(tmp_path))
    assert found(answer, "temporary folder") == ("fault", "No usable temporary directory found in ['/nowhere']")
    assert answer.exit_code == 69


def test_few_open_files_are_reported(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        answer = examined(on_disk(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found(answer, "limits")[0] == "warn"


def test_an_ffmpeg_that_does_not_work_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(broken))
    answer = examined(agreed(World()))
    assert found(answer, "ffmpeg")[0] == "fault"


# --- the vendors ------------------------------------------------------------------------------------------------------


def online(sandbox: Sandbox, **environ: str) -> CommandContext:
    world = agreed(World())
    settings = sandboxed(world.settings, sandbox.url)
    return CommandContext(environ, settings=settings, keys=KEYS, bucket=world.bucket, clock=world.clock)


def test_each_vendor_is_asked_for_nothing(sandbox: Sandbox) -> None:
    answer = examined(online(sandbox), offline=False, test_request=True)
    assert answer.exit_code == 0, shown(answer)
    assert found(answer, "videos (runway)")[1] == (
        "it accepts the key; 100,000 credits left; 1,000 of 1,000 videos of gen4_turbo today left"
    )
    assert sandbox.bill().total == 0
    assert sorted(call.kind for call in sandbox.calls()) == ["account", "fetch", "models", "organization", "poll"]


def test_a_refused_key_needs_a_person(sandbox: Sandbox) -> None:
    sandbox.order("models=401")
    answer = examined(online(sandbox), offline=False)
    assert answer.exit_code == 78
    verdict, words = found(answer, "texts (chat API)")
    assert verdict == "fault"
    assert "Check the key in OPENAI_API_KEY" in words


def test_a_vendor_that_is_down_is_a_fault_that_may_pass(sandbox: Sandbox) -> None:
    sandbox.order("account=503")
    answer = examined(online(sandbox), offline=False)
    assert answer.exit_code == 69
    assert "try again in a minute" in shown(answer)


def test_offline_asks_no_vendor(sandbox: Sandbox) -> None:
    answer = examined(online(sandbox), offline=True, test_request=True)
    assert "without --test-request" in shown(answer)
    assert sandbox.calls() == []


def test_a_vendor_without_a_key_is_not_asked(sandbox: Sandbox) -> None:
    context = online(sandbox)
    context = CommandContext(
        {}, settings=context.settings, keys=Keys(openai="k" * 9), bucket=context.bucket, clock=context.clock
    )
    examined(context, offline=False)
    assert [call.kind for call in sandbox.calls()] == ["models"]


def test_in_the_sandbox_no_key_is_missed(sandbox: Sandbox) -> None:
    context = online(sandbox, RETAKE_SANDBOX_URL=sandbox.url)
    assert found(examined(context), "keys")[0] == "ok"
    assert os.environ.get("RETAKE_SANDBOX_URL") is None


def test_a_channel_whose_library_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = AlertChannel("phone", "apprise", "APPRISE_URL", (), "any", (), True, (), {})
    assert [it.verdict for it in host_checks.alert_checks([channel], [], {})] == ["ok"]
    monkeypatch.setitem(sys.modules, "apprise", None)
    missed, _ = host_checks.alert_checks([channel], [], {})
    assert (missed.check, missed.verdict, missed.do) == ("alerts phone", "warn", "pip install 'retake[apprise]'")


def test_a_ledger_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no folder")
    url = f"sqlite:{tmp_path}/text/runs.db"
    answer = examined(on_disk(tmp_path / "bucket", ledger=url))
    verdict, what = found(answer, "ledger's tables")
    assert (verdict, what) == ("fault", f"{url} does not exist, and cannot be created in {tmp_path}/text")
    assert answer.exit_code == 69


def test_it_names_the_runs_that_dead_processes_of_robots_have_left(tmp_path: Path) -> None:
    context = on_disk(tmp_path)
    early = FakeClock(SystemClock().now() - timedelta(minutes=2))
    for at, robot, task in ((early, "NR.NSI.1", "dead"), (context.clock, "NR.NSI.2", "alive")):
        ledger = open_ledger(None, context.bucket, at)
        ledger.create_for_task(task, task, actor="robot", pipeline=f"robot/{robot}", worker="host:1")
    ledger = open_ledger(None, context.bucket, early)
    ledger.create_for_task("between two ticks", "a", actor="cron", pipeline="story", worker="host:1")
    [dead] = ledger.runs(pipeline="robot/NR.NSI.1")
    words = f"1 run whose process is dead or silent: {dead.run_id} (dead)"
    assert found(examined(context), "robots") == ("warn", words)
    interrupt(ledger, dead, context.clock.now())
    answer = examined(context)
    assert found(answer, "robots") == ("warn", words)
    assert answer.exit_code == 0
