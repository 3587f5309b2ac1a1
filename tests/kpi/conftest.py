"""Makes the helpers of the ledgers' tests available."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
sys.path += [folder for folder in (str(TESTS / "runs"), str(TESTS / "kpi")) if folder not in sys.path]

from kpi_ledgers import Place  # noqa: E402

from retake.bucket.memory import MemoryBucket, MemoryStore  # noqa: E402
from retake.clock import FakeClock  # noqa: E402


@pytest.fixture(params=["bucket", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Place]:
    """Yield an empty ledger of each kind, with its bucket."""
    urls: dict[str, Callable[[], str | None]] = {
        "bucket": lambda: None,
        "sqlite": lambda: f"sqlite:{tmp_path}/ledger.db",
        "postgresql": lambda: str(request.getfixturevalue("database_url")),
    }
    place = Place(urls[request.param](), MemoryBucket(MemoryStore(clock)), clock)
    yield place
    place.close()
