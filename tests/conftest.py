"""What kind of test each is, for `make check` and `make soak`: markers by file, so that no test can forget its own.

search     walks, sweeps, simulations, histories: many worlds each; RETAKE_SEEDS and RETAKE_PAIRS_EVERY say how many
process    starts processes, servers or databases
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

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

SEARCHES = {
    "test_bucket_claims_sim",
    "test_bucket_crash",
    "test_bucket_lease_model",
    "test_crash_sweep",
    "test_images_chaos",
    "test_ledger_bucket_crash",
    "test_ledger_histories",
    "test_robot_crashes",
    "test_simulation",
    "test_walk",
}

PROCESS_FOLDERS = {"attack", "cron", "images", "rabbit", "sandbox", "vendors", "web"}
PROCESSES = {
    "test_alert_s3",
    "test_bucket_b2",
    "test_bucket_b2_contract",
    "test_bucket_b2_processes",
    "test_bucket_b2_url",
    "test_bucket_publisher",
    "test_bucket_s3",
    "test_bucket_s3_contract",
    "test_bucket_s3_processes",
    "test_breaker_b2",
    "test_breaker_shared",
    "test_cache",
    "test_caps",
    "test_channels_apprise",
    "test_channels_email",
    "test_channels_http",
    "test_channels_sandbox",
    "test_channels_wire",
    "test_command",
    "test_console_acting",
    "test_console_alerts",
    "test_console_doctor",
    "test_console_process",
    "test_cut_uploads",
    "test_examples",
    "test_extras",
    "test_full_disk",
    "test_fallback",
    "test_ledger_clouds",
    "test_ledger_contract",
    "test_ledger_database",
    "test_ledger_sql",
    "test_ledger_tables",
    "test_library",
    "test_listing",
    "test_locks",
    "test_make",
    "test_migrations",
    "test_music_actions",
    "test_music_messages",
    "test_music_migrations",
    "test_music_publish",
    "test_music_secrets",
    "test_music_steps",
    "test_music_stuck",
    "test_music_telegram",
    "test_outbox",
    "test_pages",
    "test_postgres",
    "test_saga",
    "test_term",
    "test_text_is_read_in_linear_time",
    "test_time_limit",
    "test_wheel",
    "test_worker_processes",
}


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


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shell script in ffmpeg's place, to be written by the test."""
    script = tmp_path / "ffmpeg.sh"
    script.touch(mode=0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(script))
    return script
