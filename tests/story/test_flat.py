"""The requests of a tick do not grow with the archive, the dead letters and the spending records."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha1
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pytest
from b2sdk.v3 import B2Session
from botocore.client import BaseClient
from moto.s3.models import s3_backends
from s3_server import KEYS, moto_server, new_bucket
from watched_world import WatchedWorld

from retake.bucket import Bucket, Entry
from retake.bucket.b2.bucket import open_b2
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.s3 import S3Bucket
from retake.bucket.s3.client import parse_url
from retake.bucket.wrappers import Wrapper
from retake.sandbox.b2 import B2Sandbox
from retake.story.documents import GROUP

T = TypeVar("T")

PUBLIC = "config/config_public.json"
FEW, MANY = 100, 100_000


def old(number: int) -> str:
    """Return the id of a generation of years ago."""
    return f"{20100101 + number // 1440:08d}-{number % 1440:04d}"


def left_by(number: int) -> list[str]:
    """Return what old generations leave for ever: half of them succeeded, half became dead letters."""
    name = old(number)
    letter = (f"dead_letters/{name}/report.json", f"dead_letters/{name}/config_midjourney.json")
    return [*(f"archive/{name}.{suffix}" for suffix in GROUP), *letter, f"spend/{name}.json"]


class Crowded(MemoryBucket):
    """A bucket in memory whose listings include the leftovers of old generations, without holding them."""

    def __init__(self, generations: int) -> None:
        super().__init__()
        self._left = sorted(key for number in range(generations) for key in left_by(number))

    def find(self, stem: str, endings: Iterable[str]) -> list[Entry]:
        names = {f"{stem}{ending}" for ending in endings}
        return sorted([*super().find(stem, endings), *(it for it in self._listed(stem) if it.key in names)])

    def list(self, prefix: str) -> list[Entry]:
        return sorted([*super().list(prefix), *self._listed(prefix)])

    def _listed(self, prefix: str) -> Any:
        first, last = (bisect_left(self._left, it) for it in (prefix, f"{prefix}\U0010ffff"))
        return [Entry(key, 0, 0.0) for key in self._left[first:last]]


class Costs(Wrapper):
    """Counts operations, and the objects in their listings."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.counts: Counter[str] = Counter()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self.counts[operation] += 1
        result = call()
        if isinstance(result, list):
            self.counts["objects listed"] += len(result)
        return result


class Ticks(WatchedWorld):
    def after_tick(self) -> None:
        """Look at nothing, so that only the ticks are counted."""


def put_group(world: Ticks, place: str) -> None:
    for suffix in GROUP:
        world.put(f"{place}.{suffix}", suffix.encode())


def publish(world: Ticks, *names: str) -> None:
    world.put(PUBLIC, {**world.json(PUBLIC), "generation_id": list(names)})


def life(bucket: Any, counts: Callable[[], Counter[str]]) -> list[Counter[str]]:
    """Return the cost of each tick: published groups are archived, a generation is made, one rests, one fails for
    good."""
    world, costs = Ticks(bucket=bucket, max_retries=0), []

    def tick() -> None:
        before = Counter(counts())
        world.tick()
        costs.append(counts() - before)

    for folder, name in (("444", "20250101-0001"), ("555", "20250101-0002"), ("666", "20250101-0003")):
        put_group(world, f"{folder}/{name}")
    world.put(PUBLIC, {})
    publish(world, "20250101-0001", old(3), "no-files")
    world.vendors.plan("fetch", "running")
    while "done" not in world.ended:
        tick()
    tick()  # nothing to do
    publish(world, "20250101-0002", "no-files")
    world.vendors.plan("write", *["refused"] * 9)
    while "failed" not in world.ended:
        tick()
    assert 5 <= len(costs) <= 12
    return costs


def test_a_tick_costs_the_same_whatever_is_in_the_archive() -> None:
    def costs(generations: int) -> list[Counter[str]]:
        bucket = Costs(Crowded(generations))
        return life(bucket, lambda: bucket.counts)

    assert costs(FEW) == costs(MANY)


# --- on each backend --------------------------------------------------------------------------------------------------


def touch(root: Path, keys: Iterable[str]) -> None:
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).touch()


def test_on_a_directory_no_folder_that_only_grows_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_fsync: None
) -> None:
    calls: Counter[str] = Counter()
    scanned: set[str] = set()

    def counted(name: str) -> None:
        usual = getattr(os, name)

        def call(path: Any, *args: Any, **named: Any) -> Any:
            calls[name] += 1
            if name in ("scandir", "listdir"):
                folder = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path  # shutil's own way
                scanned.add(os.path.basename(folder))
            return usual(path, *args, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("scandir", "listdir", "open", "stat", "lstat"):
        counted(name)

    def costs(generations: int) -> list[Counter[str]]:
        root = tmp_path / str(generations)
        touch(root, (key for number in range(generations) for key in left_by(number)))
        scanned.clear()
        return life(DirectoryBucket(str(root)), lambda: calls)

    costs(1)  # loads lazy imports
    assert costs(10) == costs(300)
    assert {"444", "555", "666"} <= scanned
    assert scanned.isdisjoint({"archive", "dead_letters", "spend"})


MORE_THAN_A_PAGE = 1_010


def in_pages() -> Iterator[str]:
    for name in map(old, range(MORE_THAN_A_PAGE)):
        yield from (f"archive/{name}.json", f"dead_letters/{name}/report.json", f"spend/{name}.json")


def test_on_b2_no_listing_has_more_than_a_few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[int] = []
    usual = B2Session.list_file_versions

    def listed(*args: Any, **named: Any) -> Any:
        answer = usual(*args, **named)
        pages.append(len(answer["files"]))
        return answer

    monkeypatch.setattr(B2Session, "list_file_versions", listed)
    with B2Sandbox() as sandbox:
        store, account = sandbox.store.bucket_name_to_bucket["retake"], sandbox.store
        token = account.authorize_account("", account.account, account.key)["authorizationToken"]
        for key in in_pages():
            store.upload_file(
                "", token, key, 0, "text/plain", sha1(b"", usedforsecurity=False).hexdigest(), {}, BytesIO(b"")
            )
        bucket = open_b2(sandbox.storage_url(), environ=sandbox.environment())
        life(bucket, Counter)
        assert 0 < max(pages) < 50
        assert len(bucket.list("")) > 3 * MORE_THAN_A_PAGE
        assert max(pages) == 1000


def test_on_s3_no_listing_has_more_than_a_few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    pages: list[int] = []
    usual = BaseClient._make_api_call

    def call(client: Any, operation: str, named: dict[str, Any]) -> Any:
        answer = usual(client, operation, named)
        if operation.startswith("List"):
            pages.append(len(answer.get("Contents", ())))
        return answer

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    with moto_server() as endpoint:
        url = new_bucket(endpoint)
        place = parse_url(url)
        store = s3_backends["123456789012"]["aws"]
        for key in in_pages():
            store.put_object(place.bucket, f"{place.prefix}{key}", b"")
        bucket = S3Bucket(url)
        life(bucket, Counter)
        assert 0 < max(pages) < 50
        assert len(bucket.list("")) > 3 * MORE_THAN_A_PAGE
        assert max(pages) == 1000
