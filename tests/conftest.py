"""What holds for all tests.

Each is marked by its file as a search or a process (kinds.py), so that none can forget its own mark; `make check`
leaves these out, and what takes long.
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

if TYPE_CHECKING:
    from rabbit_server import RabbitServer

os.environ["XDG_CACHE_HOME"] = os.devnull
"""No tick that a test starts leaves anything in the cache of whoever runs the tests, or rests by what is there."""

signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell ignores Ctrl-C for what it runs in the background, and whatever the tests start would inherit that."""

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

QUICK = "RETAKE_QUICK" in os.environ
"""Few examples of each property: `make check` runs on each save."""


def pytest_configure() -> None:
    if Path(__file__).parents[1].joinpath("music/music.sqlite3").exists():
        raise pytest.UsageError(
            "music/music.sqlite3 is in this checkout, so that every command under test would find music in use: "
            "move it away meanwhile, or test in another clone"
        )


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """`make check` does not even load what it leaves out."""
    left_out = SEARCHES | PROCESSES | PROCESS_FOLDERS | LONG
    return True if QUICK and collection_path.stem in left_out else None


def pytest_collection() -> None:
    gc.disable()  # until `pytest_collection_finish`: hardly anything that is made meanwhile is garbage


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
    gc.freeze()  # thousands of tests and what they import: they stay, and no collection needs to look through them
    if QUICK:  # only now have the folders loaded profiles of their own
        settings.register_profile("quick", settings.default, max_examples=5)
        settings.load_profile("quick")


@pytest.fixture(scope="session")
def shared_rabbit() -> Iterator["RabbitServer"]:
    """A RabbitMQ for all tests of this process, of whichever folder: its start takes five seconds of CPU."""
    from rabbit_server import running  # what hardly a test needs

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A server of S3 for all tests of this process, of whichever folder."""
    from s3_server import moto_server  # what hardly a test needs

    with moto_server() as url:
        yield url


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys that it takes, in the environment."""
    from s3_server import KEYS

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shell script in ffmpeg's place, to be written by the test."""
    script = tmp_path / "ffmpeg.sh"
    script.touch(mode=0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(script))
    return script


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fsync does cannot be seen without a power cut, and thousands of them take long on a busy disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
