"""music_service.py as a process: its one line, its exit codes, its end, and its log."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.music import served
from retake.music.settings import MUSIC_KEYS
from retake.serving.server import PortTaken, address_of, listen

ROOT = Path(__file__).parents[2]
SERVICE = (sys.executable, "-W", "error", str(ROOT / "music_service.py"))
KEYS = {variable: f"secret-{name}" for name, (variable, _) in MUSIC_KEYS.items()} | {"TELEGRAM_BOT_TOKEN": "1:secret-t"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.json").write_text(json.dumps({"MUSIC": {"port": 0, "workers": 1}}))
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with started(folder, "--sandbox", "--port", "0", environ={}) as process:
        yield process
        process.kill()


def environment(**variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **variables}


def started(folder: Path, *arguments: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SERVICE, *arguments],
        cwd=folder,
        env=environment(**environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(folder: Path, *arguments: str, environ: dict[str, str]) -> tuple[int, str]:
    """Return the exit code and log of a service that does not start to serve."""
    with started(folder, *arguments, environ=environ) as process:
        out, log = process.communicate(timeout=60)
    assert out == ""
    return process.returncode, log


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    found = re.fullmatch(r"Listening on (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
    assert found
    return found[1]


def health(url: str) -> Any:
    return httpx.get(f"{url}/health", timeout=20).json()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_a_signal_ends_it(
    running: subprocess.Popen[str], folder: Path, number: signal.Signals
) -> None:
    url = address(running)
    assert health(url) == {"ok": True}
    assert (folder / "music/audio/demo.wav").stat().st_size > 1000
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):  # a client that sends nothing
        assert health(url) == {"ok": True}, "the server has taken the connection before this one"
        began = time.monotonic()
        running.send_signal(number)
        out, log = running.communicate(timeout=120)
    assert (running.returncode, out) == (0, "")
    assert time.monotonic() - began < 60
    assert "Traceback" not in log


def test_a_port_that_is_taken_is_reported_in_one_line(running: subprocess.Popen[str], folder: Path) -> None:
    port = address(running).rpartition(":")[2]
    code, log = ended(folder, "--port", port, environ=KEYS)
    assert code == 75
    assert len(log.splitlines()) == 1
    assert port in log


def test_every_missing_key_is_named(folder: Path) -> None:
    code, log = ended(folder, environ={"OPENAI_API_KEY": "secret-key"})
    assert code == 78
    named = {variable for variable, _ in MUSIC_KEYS.values() if variable in log}
    assert named == {variable for variable in KEYS if not variable.startswith(("OPENAI", "TELEGRAM"))}


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"CHANNELS": ["music"]}, "CHANNELS"),
        ({"MUSIC": {"telegram": "poll"}}, "MUSIC.telegram_chat_id"),
        ({"MUSIC": {"port": 99999}}, "MUSIC.port"),
        ({"MUSIC": {"host": "no.such.host.invalid", "port": 0}}, "MUSIC.host"),
        ({"MUSIC": {"host": "192.0.2.1", "port": 0}}, "MUSIC.host"),
    ],
    ids=lambda it: str(it)[:40],
)
def test_settings_that_cannot_be_are_refused(folder: Path, document: dict[str, Any], word: str) -> None:
    (folder / "config/config.json").write_text(json.dumps(document))
    code, log = ended(folder, environ=KEYS)
    assert (code, word in log) == (78, True), log


def test_a_host_of_the_command_line_is_reported_as_one(folder: Path) -> None:
    code, log = ended(folder, "--host", "no.such.host.invalid", environ=KEYS)
    assert (code, "--host: no.such.host.invalid is not a name or address of this machine" in log) == (78, True), log


@pytest.mark.parametrize(
    "document",
    [
        {"STORAGE": {"url": "s3://bucket/x?endpoint=https://s3.example"}},
        {"MUSIC": {"port": 0, "database": "postgresql://retake@db.example/retake"}},
    ],
    ids=str,
)
def test_the_sandbox_keeps_away_from_what_is_live(folder: Path, document: dict[str, Any]) -> None:
    (folder / "config/config.json").write_text(json.dumps(document))
    code, log = ended(folder, "--sandbox", environ={})
    assert (code, "sandbox" in log) == (78, True), log


def test_a_database_of_another_version_is_left_alone(folder: Path) -> None:
    (folder / "music").mkdir()
    (folder / "music/music.sqlite3").write_bytes(b"no database" * 100)
    code, _ = ended(folder, environ=KEYS)
    assert code == 75
    assert (folder / "music/music.sqlite3").read_bytes() == b"no database" * 100
    board = json.loads((folder / "bucket/alerts/state.json").read_text())
    assert [it["key"] for it in board["alerts"]] == ["ledger_unavailable/music"]


def test_no_key_is_in_the_log(folder: Path) -> None:
    with started(folder, environ=KEYS) as process:
        url = address(process)
        for path in (f"/api/music/pipeline?key={KEYS['MUSIC_API_KEY']}", "/telegram/webhook"):
            httpx.get(url + path, headers={"Authorization": f"Bearer {KEYS['MUSIC_API_KEY']}"}, timeout=20)
        process.terminate()
        out, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not [it for it in KEYS.values() if it in out + log]


# --- the socket -----------------------------------------------------------------------------------------------------


def test_a_socket_is_had_once() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port}"):
            listen("127.0.0.1", port)
    with listen("127.0.0.1", port) as again:
        assert address_of(again, "127.0.0.1") == f"http://127.0.0.1:{port}"
        assert address_of(again, "::1") == f"http://[::1]:{port}"


# --- the benchmark --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "path", "status"), [("bare", "/", 200), ("sqlite:{}", "/api/music/pipeline/1", 401)])
def test_the_benchmark_serves_what_it_measures(tmp_path: Path, what: str, path: str, status: int) -> None:
    with served(what.format(tmp_path / "music.db")) as port:
        assert httpx.get(f"http://127.0.0.1:{port}{path}", timeout=20).status_code == status
