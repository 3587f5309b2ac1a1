"""Shared fixtures and hooks for all tests.

Tests are marked as searches or processes by file (kinds.py), so no test can miss its mark. `make check` skips both, and
everything slow.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from kinds import LONG, PROCESS_FOLDERS, PROCESSES, SEARCHES

from retake.clock import FakeClock

if TYPE_CHECKING:
    from cron_buckets import Clouds
    from rabbit_server import RabbitServer

    from retake.sandbox import Sandbox

os.environ["XDG_CACHE_HOME"] = os.devnull
"""Keep test ticks from writing to the developer's cache, and from resting because of what is in it."""

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell makes background jobs ignore Ctrl-C, and every process that the tests start would inherit that."""

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

QUICK = "RETAKE_QUICK" in os.environ
"""Run few examples of each property: `make check` runs on each save."""


def pytest_configure() -> None:
    if Path(__file__).parents[1].joinpath("music/music.sqlite3").exists():
        raise pytest.UsageError(
            "music/music.sqlite3 is in this checkout, so every command under test would find music in use: "
            "move it away for now, or test in another clone"
        )


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip loading what `make check` leaves out."""
    left_out = SEARCHES | PROCESSES | PROCESS_FOLDERS | LONG
    return True if QUICK and collection_path.stem in left_out else None


def pytest_collection() -> None:
    gc.disable()  # until `pytest_collection_finish`: almost nothing created in between is garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = Path(item.path)
        if path.stem in SEARCHES:
            item.add_marker("search")
        if path.stem in PROCESSES or path.parent.name in PROCESS_FOLDERS:
            item.add_marker("process")


def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()
    gc.freeze()  # thousands of tests and their imports stay until the end, so no collection needs to scan them
    if QUICK:  # only now: folders load profiles of their own
        settings.register_profile("quick", settings.default, max_examples=5)
        settings.load_profile("quick")


@pytest.fixture(scope="session")
def shared_rabbit() -> Iterator["RabbitServer"]:
    """Start the RabbitMQ that all tests of this process share: starting one takes five seconds of CPU."""
    from rabbit_server import running  # few tests need it

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def shared_sandbox() -> Iterator["Sandbox"]:
    """Start the vendors that all tests of this process share."""
    from retake.sandbox import Sandbox  # few tests need it

    with Sandbox(quick=True, seed=7) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(shared_sandbox: "Sandbox") -> Iterator["Sandbox"]:
    """Yield the shared vendors, without orders of former tests."""
    yield shared_sandbox
    shared_sandbox.withdraw_orders()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start the PostgreSQL that all tests of this process share; yield the URL of its databases, without a name.

    If there is none, skip the tests with installation advice; on a build machine, fail.
    """
    from local_servers import or_skipped  # few tests need it
    from postgres import FAST, server

    with or_skipped(), server(*FAST) as base:
        yield base


@pytest.fixture
def database_url(postgres: str) -> str:
    """Create a database for the test, without tables; return its URL."""
    from postgres import new_database

    return new_database(postgres)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Start the S3 server that all tests of this process share, and yield its URL."""
    from s3_server import moto_server  # few tests need it

    with moto_server() as url:
        yield url


@pytest.fixture(scope="session")
def clouds() -> Iterator["Clouds"]:
    """Yield what creates places on B2 and S3 for all tests of this process."""
    from cron_buckets import places_in_clouds  # few tests need it

    with places_in_clouds() as place:
        yield place


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the keys that the S3 server accepts into the environment."""
    from s3_server import KEYS

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace ffmpeg with an empty shell script, to be written by the test."""
    script = tmp_path / "ffmpeg.sh"
    script.touch(mode=0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(script))
    return script


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn fsync off: its effect shows only after a power cut, and thousands of calls are slow on a busy disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
