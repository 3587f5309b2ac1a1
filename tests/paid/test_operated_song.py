"""The song of docs/add-a-pipeline.md as operators see it: the real console, with the output that the page shows, the
dashboard, and each state of the song."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from loopback import LoopbackServer
from test_add_a_pipeline import CODE, PAGE, Shop, Studio

from retake.alerts.board import Alert
from retake.alerts.conditions import PipelineFacts
from retake.alerts.settings import AlertSettings
from retake.alerts.store import BoardStore
from retake.bucket import ANY
from retake.degraded.settings import ModeSettings
from retake.errors import StateError
from retake.operations.loader import with_own_ledgers
from retake.operations.orders import carry_out, plan_order, target
from retake.operations.pipelines import Operations, Terms
from retake.operations.port import PipelineState, Refusal, Verb
from retake.operations.report import history
from retake.operations.spend import as_document, spend_report
from retake.paid.caps import Caps
from retake.paid.day_book import Limits
from retake.paid.guard import HOLD
from retake.settings.shared import BreakerSettings
from retake.ticking.watch import TickWatch

TOKEN = "a-token-of-the-tests"
REFUSED = """
import sys
from song import *

def call(step, facts):
    if step == "track":
        raise Refused(Code.UNAUTHORIZED, "the studio answered HTTP 401")
    return f"a {step}"

sys.exit(main(Studio(call, lambda step, task: task, lambda step, facts: None)))
"""

[SECTION] = re.findall(r"^## 10\..*?(?=^## )", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
[SETTING] = re.findall(r"^```json\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)
SESSIONS = re.findall(r"^```console\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def song() -> ModuleType:
    module = ModuleType("operated_song")
    sys.modules["operated_song"] = module
    exec(compile(CODE, str(PAGE), "exec"), vars(module))  # noqa: S102  the page is ours
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the program and its setting, in which the studio refuses the key."""
    (tmp_path / "song.py").write_text(CODE, "utf-8")
    (tmp_path / "refused.py").write_text(REFUSED, "utf-8")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text(SETTING, "utf-8")
    assert [ran(tmp_path, "python refused.py").returncode for _ in range(2)] == [75, 69]
    return tmp_path


def ran(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = command.split()
    command_line = {"python": [sys.executable], "retake": [sys.executable, "-P", "-m", "retake"]}[
        program
    ]  # -P: as installed
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PAGE.parent.parent), "RETAKE_WEB_TOKEN": TOKEN}
    return subprocess.run(
        [*command_line, *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def timeless(text: str) -> str:
    """The text with the times and days of the page, however long a machine takes."""
    text = re.sub(r"\d\d\d\d-\d\d-\d\d", "2026-01-31", text).replace("since 2026-01-31", "since 2026-01-02")
    text = re.sub(r"\d\d:\d\d:\d\d", "12:00:00", text)
    return re.sub(r"(\+|after |\()\d+ (?:s|min)\b", r"\g<1>0 s", text)


def words(text: str) -> list[list[str]]:
    """The words of each line: columns are as wide as what is in them."""
    return [line.split() for line in timeless(text).splitlines()]


# --- the console and the dashboard ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_console_shows_what_the_page_shows(folder: Path) -> None:
    told = []
    for session in SESSIONS:
        lines = []
        for command in re.findall(r"^\$ (.*)$", session, flags=re.MULTILINE):
            done = ran(folder, command)
            lines += [f"$ {command}\n", done.stdout if command.startswith("retake") else message(done.stderr)]
        told.append("".join(lines))
    assert list(map(words, told)) == list(map(words, SESSIONS))


def message(log: str) -> str:
    """A line of the log as a terminal shows it."""
    return "".join(f"12:00:00  song      {json.loads(line)['message']}\n" for line in log.splitlines())


@pytest.mark.slow
def test_the_dashboard_has_it(folder: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PAGE.parent.parent), "RETAKE_WEB_TOKEN": TOKEN}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "retake", "web", "--port", "0"],
        cwd=folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as serving:  # fmt: skip
        assert serving.stdout
        url = serving.stdout.readline().strip()
        with httpx.Client(base_url=url, follow_redirects=True, trust_env=False, timeout=60) as browser:
            page = browser.post("/login", data={"token": TOKEN}, headers={"Accept": "text/html"})
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
    assert page.status_code == 200
    assert "<strong>song</strong>" in page.text
    assert "track has failed for good" in page.text


# --- each state -------------------------------------------------------------------------------------------------------


class Operated(Studio):
    """The song, and the operators."""

    @property
    def operations(self) -> Operations:
        bucket = self.bucket
        it = self.song.OperatedSong(bucket, self.clock)
        terms = with_own_ledgers(Terms(None, BreakerSettings(), 900, 4, 1800, own_pipelines=["song"]), [it])
        caps = Caps(bucket, self.clock, Limits(1.0))
        return Operations([it], bucket, self.clock, caps=caps, terms=terms, named=True)

    @property
    def shown(self) -> PipelineState:
        operations = self.operations
        return operations.pipelines[0].state(operations.caps.today(""), lambda vendor: "")

    def order(self, verb: Verb) -> Any:
        operations = self.operations
        meant = target(operations, "song-1")
        return carry_out(operations, meant, plan_order(meant, verb))


def test_while_a_task_is_worked_on_the_vendor_is_waited_for(song: ModuleType) -> None:
    studio = Operated(song, Shop(running=3))
    studio.tick()
    it = studio.shown
    assert (it.item_id, it.step, it.needs, it.idle) == ("song-1", ("lyrics", 1, 4), (), False)
    assert it.waiting
    assert (it.waiting.party, it.waiting.what) == ("chat", "the lyrics")
    with pytest.raises(Refusal, match="song-1 waits for nobody: lyrics is ordered"):
        studio.order(Verb.RETRY)
    with pytest.raises(Refusal, match="song takes no order to cancel"):
        studio.order(Verb.CANCEL)


def test_a_failed_step_is_shown_at_its_next_attempt(song: ModuleType) -> None:
    studio = Operated(song, Shop("refused"))
    studio.tick()
    it = studio.shown
    assert (it.step, it.failing, it.idle, it.needs) == (("lyrics", 2, 4), False, False, ())
    assert (it.error.code, it.next_tick) == ("ERR_TEMPORARY_UNAVAILABLE", "lyrics is next")
    assert studio.tick().ended == "done"
    assert [entry.description for entry in history(studio.operations, "song-1").entries] == [
        "created",
        "work began",
        "lyrics failed, to be tried again",
        "tried again",
        "lyrics: ready",
        "track: ready",
        "done",
    ]


def test_an_operator_makes_a_held_call_again(song: ModuleType) -> None:
    studio = Operated(song, Shop("dropped", findable=False), on_unknown=HOLD)
    studio.tick()
    assert "nobody can tell whether the call was carried out" in studio.shown.needs[0]
    assert studio.order(Verb.RETRY).what == "song-1 goes on"
    assert studio.tick().ended == "done"
    total = as_document(spend_report(studio.operations, 1))["total"]
    assert (total["usd"], total["possible_duplicates"]) == (0.27, 1)
    assert (studio.shown.item_id, studio.shown.needs) == (None, ())


def test_after_the_last_retry_an_operator_has_it_tried_once_more(song: ModuleType) -> None:
    studio = Operated(song, Shop(*["refused"] * 4))
    assert studio.to_its_end().ended == "failed"
    assert studio.shown.step == ("lyrics", 4, 4)
    studio.order(Verb.RETRY)
    assert studio.to_its_end().ended == "done"
    assert [run.status for run in history(studio.operations, "song-1").found.runs] == ["failed", "succeeded"]


def test_an_invalid_document_is_told(song: ModuleType) -> None:
    studio = Operated(song, Shop())
    studio.bucket.write("song/song.json", b"{", ANY)
    it = studio.shown
    assert (it.readable, "song.json" in it.needs[0]) == (False, True)
    with pytest.raises(StateError, match=r"song\.json"):
        studio.operations.pipelines[0].paid_since("")


# --- alerts -----------------------------------------------------------------------------------------------------------


class Channel(LoopbackServer):
    """A webhook that takes every message."""

    def __init__(self) -> None:
        super().__init__(60.0)
        self.events: list[tuple[str, str]] = []

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        head, _, body = self._received(connection).partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        while len(body) < length:
            body += connection.recv(65536)
        message = json.loads(body)
        self.events.append((message["event"], message["title"]))
        connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    @staticmethod
    def _received(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        return data


@pytest.fixture
def channel() -> Iterator[Channel]:
    with closing(Channel()) as found:
        yield found


def test_people_are_alerted_once_while_it_needs_a_person_and_told_when_that_is_over(
    song: ModuleType, channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"ALERTS": {"channels": {"team": {"kind": "webhook"}}, "tick_wait_seconds": 60}}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    monkeypatch.setenv("RETAKE_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("ALERT_WEBHOOK_URL", channel.url)
    studio = Operated(song, Shop(*["refused"] * 4))

    def told() -> list[Alert]:
        song.raise_alerts(studio.bucket, studio.clock, *song.alert_settings())
        return [it for it in BoardStore(studio.bucket, studio.clock).read().alerts.values() if it.active]

    studio.tick()
    assert told() == []
    studio.to_its_end()
    [alert] = told()
    assert (alert.pipelines, alert.step, alert.command) == (["song"], "lyrics", "retake retry song-1")
    assert "lyrics has failed for good" in alert.message
    assert told() == [alert]
    studio.order(Verb.RETRY)
    studio.to_its_end()
    assert told() == []
    assert channel.events == [("trigger", "song-1 needs a person"), ("resolve", "song-1 needs a person")]


def test_a_tick_of_the_story_leaves_its_alert_alone(song: ModuleType) -> None:
    studio = Operated(song, Shop(*["refused"] * 4))
    studio.to_its_end()
    song.raise_alerts(studio.bucket, studio.clock, AlertSettings(), ModeSettings())
    before = BoardStore(studio.bucket, studio.clock).read().alerts
    watch = TickWatch(AlertSettings(), ModeSettings(), studio.bucket, studio.clock, {})
    watch.begin()
    watch.saw("story", 0, PipelineFacts(), worked=True)
    watch.end()
    assert BoardStore(studio.bucket, studio.clock).read().alerts == before
