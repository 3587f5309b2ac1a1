"""Groups move within their store: their content never passes through the program, and the next tidying repairs a death
at any point."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from dying import dying
from s3_server import KEYS, moto_server, new_bucket

from retake.bucket import ABSENT, ANY, Bucket
from retake.bucket.b2.bucket import open_b2
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.connection import B2Connection
from retake.bucket.b2.marks import Version
from retake.bucket.contract import write_file
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash
from retake.bucket.s3 import S3Bucket
from retake.bucket.s3.client import S3Client
from retake.bucket.s3.objects import S3Objects
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.sandbox.b2 import B2Sandbox
from retake.story.documents import GROUP
from retake.story.settings import Folders
from retake.story.tidy import FileMove, carry_out, groups, plan

FOLDERS = Folders("666/", "555/", "444/", "archive/")
NAME = "20260101-0930"
MOVES = [FileMove(f"666/{NAME}.{suffix}", f"555/{NAME}.{suffix}") for suffix in GROUP]
MEDIA = b"media " * 60_000  # 360 kB


class Place(NamedTuple):
    """A kind of bucket: opens another client of a new place, and can die at a step of the store's client."""

    connect: Callable[[], Bucket]
    dying: Callable[[int, bool], Any]
    log: list[str]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[B2Sandbox]:
    with B2Sandbox(part_size=300_000) as running:
        yield running


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(params=["directory", "b2", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    log: list[str] = []
    if request.param == "directory":
        monkeypatch.setattr(os, "fsync", lambda file: None)
        return Place(lambda: DirectoryBucket(str(tmp_path / uuid4().hex)), at_system_calls(log), log)
    if request.param == "b2":
        sandbox: B2Sandbox = request.getfixturevalue("sandbox")
        return Place(
            lambda: open_b2(sandbox.storage_url(uuid4().hex), environ=sandbox.environment(), clock=FakeClock()),
            at_calls(B2Connection, "call", log),
            log,
        )
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    endpoint: str = request.getfixturevalue("endpoint")
    return Place(lambda: S3Bucket(new_bucket(endpoint)), at_calls(S3Client, "once", log), log)


def at_system_calls(log: list[str]) -> Callable[[int, bool], Any]:
    @contextmanager
    def die(number: int, after: bool) -> Iterator[None]:
        log.clear()
        with dying(number or 10**9, "after" if after else "before") as calls:
            try:
                yield
            finally:
                log.extend(calls.made)

    return die


def at_calls(kind: type, method: str, log: list[str]) -> Callable[[int, bool], Any]:
    """Return a function that makes the `number`-th request to the store die, before or after its effect; 0 is never."""

    @contextmanager
    def die(number: int, after: bool) -> Iterator[None]:
        usual, dead = getattr(kind, method), [False]
        log.clear()

        def call(self: object, what: str, *args: Any, **named: Any) -> Any:
            if dead[0]:
                raise Crash(what)
            log.append(what)
            dead[0] = len(log) == number
            if dead[0] and not after:
                raise Crash(what)
            answer = usual(self, what, *args, **named)
            if dead[0]:
                raise Crash(what)
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, method, call)
            yield

    return die


def with_group(bucket: Bucket) -> Bucket:
    for suffix in GROUP:
        bucket.write(f"666/{NAME}.{suffix}", suffix.encode() + MEDIA, ABSENT)
    return bucket


def there(bucket: Bucket) -> dict[str, bytes]:
    return {entry.key: bucket.read(entry.key)[0] for entry in bucket.list("")}


def tidy_up(bucket: Bucket) -> None:
    """Tidy up until nothing moves any more, as successive ticks do."""
    for _ in range(5):
        listed = {folder: groups([it.key for it in bucket.list(folder)], folder) for folder in FOLDERS}
        staged = {folder: listed[folder] for folder in FOLDERS.staged}
        found = plan([], [], staged, listed[FOLDERS.archive], FOLDERS)
        for moves in found.moves:
            carry_out(bucket, moves)
        if not found.moves:
            return
    raise AssertionError("tidying up never ends")


def test_a_group_moves_without_its_content(place: Place) -> None:
    bucket = with_group(place.connect())
    with place.dying(0, False):
        carry_out(bucket, MOVES)
    assert there(bucket) == {f"555/{NAME}.{suffix}": suffix.encode() + MEDIA for suffix in GROUP}
    assert place.log
    content = ("write", "read", "put_object", "get_object", "store", "upload")
    assert not [what for what in place.log if what.split()[0] in content]


def test_on_b2_and_s3_no_body_holds_media(sandbox: B2Sandbox, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the wire, no body of a request or an answer is as large as a file of the group."""
    import http.client

    import urllib3

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    sizes: list[int] = []
    send, read = http.client.HTTPConnection.send, urllib3.response.HTTPResponse.read

    def sent(self: Any, data: Any) -> Any:
        sizes.append(len(data) if isinstance(data, bytes) else 10**9)
        return send(self, data)

    def received(self: Any, *args: Any, **named: Any) -> bytes:
        data: bytes = read(self, *args, **named)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(http.client.HTTPConnection, "send", sent)
    monkeypatch.setattr(urllib3.response.HTTPResponse, "read", received)
    for bucket in (
        open_b2(sandbox.storage_url(uuid4().hex), environ=sandbox.environment()),
        S3Bucket(new_bucket(endpoint)),
    ):
        with_group(bucket)
        assert sum(sizes) > 3 * len(MEDIA)
        sizes.clear()
        carry_out(bucket, MOVES)
        assert sum(sizes) < 60_000
        assert len(bucket.list("555/")) == 3


def test_a_death_at_any_step_of_a_move_is_repaired_by_the_next_tidying(place: Place) -> None:
    whole = {suffix: suffix.encode() + MEDIA for suffix in GROUP}
    bucket = with_group(place.connect())
    with place.dying(0, False):
        carry_out(bucket, MOVES)
    steps = len(place.log)
    for number in range(1, steps + 1):
        for after in (False, True):
            bucket = with_group(place.connect())
            with place.dying(number, after), pytest.raises(Crash):
                carry_out(bucket, MOVES)
            where = f"{'after' if after else 'before'} step {number}: {place.log[number - 1]}"
            for key, data in there(bucket).items():
                assert data == whole[key.rpartition(".")[2]], where
            assert {key.rpartition(".")[2] for key in there(bucket)} == set(GROUP), where
            tidy_up(bucket)
            assert there(bucket) == {f"444/{NAME}.{suffix}": data for suffix, data in whole.items()}, where


# --- on a directory ---------------------------------------------------------------------------------------------------


def test_on_a_directory_the_files_themselves_move_with_two_fsyncs_a_group(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    bucket = with_group(DirectoryBucket(str(root)))
    bucket.write("555/x.json", b"", ABSENT)
    before = {it.name: it.stat().st_ino for it in (root / "666").iterdir()}
    with dying() as calls:
        carry_out(bucket, MOVES)
    assert {it.name: it.stat().st_ino for it in (root / "555").iterdir() if it.name != "x.json"} == before
    assert [it for it in calls.made if it in ("write", "fsync", "rename", "link", "unlink")] == [
        *["rename"] * 3,
        *["fsync"] * 2,
    ]


def test_a_folder_on_another_disk_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = with_group(DirectoryBucket(str(tmp_path / "bucket")))
    usual = os.rename

    def rename(source: str, target: str) -> None:
        if "/666/" in source and "/555/" in target:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        usual(source, target)

    monkeypatch.setattr(os, "rename", rename)
    carry_out(bucket, MOVES)
    assert there(bucket) == {f"555/{NAME}.{suffix}": suffix.encode() + MEDIA for suffix in GROUP}


def test_two_names_of_one_file_become_one(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    bucket = with_group(DirectoryBucket(str(root)))
    (root / "555").mkdir()
    for move in MOVES:
        os.link(root / move.source, root / move.target)
    carry_out(bucket, MOVES)
    assert there(bucket) == {f"555/{NAME}.{suffix}": suffix.encode() + MEDIA for suffix in GROUP}


def test_a_move_through_wrappers_and_parts_is_one_operation(tmp_path: Path) -> None:
    counted = CountingBucket(DirectoryBucket(str(tmp_path / "bucket")))
    part = counted.part("channels/a/")
    with_group(part)
    counted.counts.clear()
    carry_out(part, MOVES)
    assert counted.counts == {"move": 1}


# --- copies that differ -----------------------------------------------------------------------------------------------


def test_on_b2_a_copy_with_another_digest_deletes_nothing(sandbox: B2Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = with_group(open_b2(sandbox.storage_url(uuid4().hex), environ=sandbox.environment()))
    usual = B2Calls.copy

    def copy(self: B2Calls, source: Version, name: str, info: dict[str, str]) -> Version:
        from io import BytesIO

        if name.endswith("mp4"):
            return self.upload(name, BytesIO(b"x" * source.size), info)
        return usual(self, source, name, info)

    monkeypatch.setattr(B2Calls, "copy", copy)
    with pytest.raises(StorageError, match="is not the same; nothing was deleted"):
        carry_out(bucket, MOVES)
    assert {move.source for move in MOVES} <= set(there(bucket))


def test_on_s3_a_copy_with_another_digest_deletes_nothing(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    bucket = with_group(S3Bucket(new_bucket(endpoint)))
    monkeypatch.setattr(S3Objects, "copy", lambda self, source, target: bucket.write(target, b"half of it", ANY))
    with pytest.raises(StorageError, match="is not the same; nothing was deleted"):
        carry_out(bucket, MOVES)
    assert {move.source for move in MOVES} <= set(there(bucket))


def test_where_the_store_has_no_digest_the_content_is_compared(
    sandbox: B2Sandbox, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    usual = S3Objects.tags
    monkeypatch.setattr(Version, "digest", property(lambda self: ""))
    monkeypatch.setattr(
        S3Objects, "tags", lambda self, keys: {key: (key, it[1]) for key, it in usual(self, keys).items()}
    )
    for bucket in (
        open_b2(sandbox.storage_url(uuid4().hex), environ=sandbox.environment()),
        S3Bucket(new_bucket(endpoint)),
    ):
        with_group(bucket)
        carry_out(bucket, MOVES)
        assert there(bucket) == {f"555/{NAME}.{suffix}": suffix.encode() + MEDIA for suffix in GROUP}


def test_a_large_file_of_b2_moves_with_its_digest(sandbox: B2Sandbox, tmp_path: Path) -> None:
    bucket = open_b2(sandbox.storage_url(uuid4().hex), environ=sandbox.environment())
    (tmp_path / "video").write_bytes(MEDIA * 2)
    with open(tmp_path / "video", "rb") as file:
        write_file(bucket, f"666/{NAME}.mp4", file, ABSENT)
    sandbox.withdraw_orders()
    before = len(sandbox.calls())
    bucket.move([(f"666/{NAME}.mp4", f"555/{NAME}.mp4")])
    bucket.move([(f"555/{NAME}.mp4", f"444/{NAME}.mp4")])
    names = [call.name for call in sandbox.calls()[before:]]
    assert "b2_copy_file" in names
    assert not [name for name in names if "download" in name or "upload" in name]
    assert there(bucket) == {f"444/{NAME}.mp4": MEDIA * 2}
