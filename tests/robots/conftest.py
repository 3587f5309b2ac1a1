import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from retake.bucket.b2.bucket import open_b2
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.clock import FakeClock
from retake.retrying.state_store import BucketStateStore, MemoryStateStore, StateStore
from retake.sandbox.b2 import B2Sandbox

# A busy machine is no fault of the code: an example may take as long as it needs.
settings.register_profile("robots", deadline=None, print_blob=True)
settings.load_profile("robots")


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Yield the lines that the robots log during the test."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    logging.getLogger("retake.robots").addHandler(handler)
    yield lines
    logging.getLogger("retake.robots").removeHandler(handler)


@pytest.fixture(scope="session")
def b2() -> Iterator[B2Sandbox]:
    with B2Sandbox() as running:
        yield running


@pytest.fixture(params=["memory", "bucket in memory", "directory", "b2"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Callable[[], StateStore]:
    """Return a function that opens a state store, each time as another client of the same one."""
    if request.param == "memory":
        one = MemoryStateStore()
        return lambda: one
    if request.param == "directory":
        return lambda: BucketStateStore(DirectoryBucket(str(tmp_path / "bucket")), "robots/", clock)
    if request.param == "b2":
        sandbox: B2Sandbox = request.getfixturevalue("b2")
        url = sandbox.storage_url(f"retake-{tmp_path.name.replace('_', '-')}")
        return lambda: BucketStateStore(open_b2(url, environ=sandbox.environment()), "robots/", clock)
    store = MemoryStore()
    return lambda: BucketStateStore(MemoryBucket(store), "robots/", clock)
