"""Uploads: stored completely or not at all, answered, deleted after the grace period, and never a newer one."""

import json
import time
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from images_world import CALM, JPEG, PNG, WEBP, ApiBucket, ImagesWorld
from waiting import eventually

from retake.bucket import ANY, Expect
from retake.errors import StorageError
from retake.images import uploads as module
from retake.testing.logs import CapturedLogs

NO_GRACE = CALM._replace(result_grace_seconds=0)
SHORT = CALM._replace(result_grace_seconds=0.05)


def images(api: ImagesWorld, user: str = "alice") -> dict[str, tuple[str, bytes]]:
    answer = api.all.get(f"/images/{user}")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["userId"], set(answer.json())) == (user, {"userId", "images"})
    return {it["key"]: (it["image_type"], b64decode(it["image_data_base64"])) for it in answer.json()["images"]}


def noted(api: ImagesWorld) -> set[str]:
    return set(api.redis.hkeys("uploads:answered:alice"))  # type: ignore[arg-type]


def test_all_pictures_of_a_user_are_answered(api: ImagesWorld) -> None:
    assert images(api) == {}
    assert api.upload(("a.png", PNG), ("b.jpg", JPEG)).status_code == 201
    assert api.upload(("c.bin", WEBP)).status_code == 201
    api.bucket.write("alice2/x.png", PNG, ANY)
    expected = {
        "alice/a.png": ("image/png", PNG),
        "alice/b.jpg": ("image/jpeg", JPEG),
        "alice/c.bin": ("image/webp", WEBP),
    }
    assert images(api) == images(api) == expected
    assert set(images(api, "alice2")) == {"alice2/x.png"}


def test_what_was_answered_goes_after_the_grace(instances: Callable[..., ImagesWorld]) -> None:
    api = instances(images=SHORT)
    assert api.upload(("a.png", PNG)).status_code == 201
    time.sleep(0.1)
    api.parts.uploads.sweep()
    assert api.bucket.kept == {"alice/a.png"}, "it was not answered"
    images(api)
    eventually(lambda: noted(api))
    eventually(lambda: [api.parts.uploads.sweep(), not api.bucket.kept][1])
    assert not [*api.redis.scan_iter("uploads:*")]


def test_within_the_grace_it_is_answered_again_and_the_first_answer_counts(
    instances: Callable[..., ImagesWorld],
) -> None:
    api = instances()
    assert api.upload(("a.png", PNG)).status_code == 201
    images(api)
    eventually(lambda: noted(api))
    first = api.redis.hget("uploads:answered:alice", "a.png")
    assert set(images(api)) == {"alice/a.png"}
    time.sleep(0.1)
    assert api.redis.hget("uploads:answered:alice", "a.png") == first
    api.parts.uploads.sweep()
    assert api.bucket.kept == {"alice/a.png"}


def test_a_bucket_that_is_away_is_reported_once(instances: Callable[..., ImagesWorld]) -> None:
    api = instances(images=SHORT)
    api.parts.uploads.answered("alice", {"a.png": api.bucket.write("alice/a.png", PNG, ANY)})
    time.sleep(0.1)
    api.bucket.away = True
    with CapturedLogs() as log:
        for _ in range(3):
            api.dispatcher._sweep()
    assert len([it for it in log.records if "the bucket is away" in it.getMessage()]) == 1
    api.bucket.away = False
    api.dispatcher._sweep()
    assert api.bucket.kept == set()


def test_what_was_uploaded_again_stays(instances: Callable[..., ImagesWorld]) -> None:
    api = instances(images=SHORT)
    assert api.upload(("a.png", PNG), ("b.png", PNG)).status_code == 201
    images(api)
    eventually(lambda: len(noted(api)) == 2)
    assert api.upload(("a.png", PNG)).status_code == 201, "the same bytes, but a newer upload"
    eventually(lambda: [api.parts.uploads.sweep(), not noted(api)][1])
    assert api.bucket.kept == {"alice/a.png"}


def test_without_a_grace_it_goes_at_once(instances: Callable[..., ImagesWorld]) -> None:
    api = instances(images=NO_GRACE)
    assert api.upload(("a.png", PNG)).status_code == 201
    assert set(images(api)) == {"alice/a.png"}
    eventually(lambda: not api.bucket.kept)


def test_another_instance_deletes_after_a_crash(instances: Callable[..., ImagesWorld]) -> None:
    first, second = instances(images=SHORT), instances(images=SHORT)
    assert first.upload(("a.png", PNG)).status_code == 201
    images(first)
    eventually(lambda: noted(first))
    eventually(lambda: [second.parts.uploads.sweep(), not second.bucket.kept][1])


def test_one_fails_and_none_is_kept(instances: Callable[..., ImagesWorld]) -> None:
    api = instances()
    api.bucket.failing = "c.png"
    answer = api.upload(("a.png", PNG), ("b.png", PNG), ("c.png", PNG))
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    eventually(lambda: api.bucket.kept == set())  # an answer waits a second for it at most
    api.bucket.failing = ""
    assert api.upload(("a.png", PNG), ("c.png", PNG)).status_code == 201
    api.parts.uploads.sweep()
    assert api.bucket.kept == {"alice/a.png", "alice/c.png"}


def test_what_was_written_after_nobody_waits_is_deleted(
    instances: Callable[..., ImagesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = instances()
    monkeypatch.setattr(api.parts.uploads._files, "_seconds", 0.2)
    monkeypatch.setattr("retake.serving.bounded_calls.COOLDOWN_S", 0.0)
    api.bucket.running.clear()
    answer = api.upload(("a.png", PNG))
    assert answer.status_code == 503
    api.bucket.running.set()
    eventually(lambda: noted(api))
    api.parts.uploads.sweep()
    assert api.bucket.kept == set()


# --- races ----------------------------------------------------------------------------------------------------------


class Meanwhile(ApiBucket):
    """Does something in the middle of a deletion, after the read, or of an upload, before the write."""

    def __init__(self) -> None:
        super().__init__()
        self.after_read: Callable[[], Any] | None = None
        self.before_write: Callable[[], Any] | None = None

    def read(self, key: str) -> tuple[bytes, str]:
        found = super().read(key)
        work, self.after_read = self.after_read, None
        if work:
            work()
        return found

    def write(self, key: str, data: bytes, expect: str | Expect) -> str:
        work, self.before_write = self.before_write, None
        if work:
            work()
        return super().write(key, data, expect)


def test_an_upload_waits_for_a_deletion_and_is_not_deleted(
    instances: Callable[..., ImagesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Meanwhile()
    api = instances(images=SHORT, bucket=bucket)
    monkeypatch.setattr(module, "_WAIT_S", 0.2)
    assert api.upload(("a.png", PNG)).status_code == 201
    images(api)
    eventually(lambda: noted(api))
    time.sleep(0.1)
    statuses: list[int] = []
    bucket.after_read = lambda: statuses.append(api.upload(("a.png", JPEG)).status_code)
    api.parts.uploads.sweep()
    assert statuses == [503], "nothing is written during the deletion"
    assert bucket.kept == set()
    assert api.upload(("a.png", JPEG)).status_code == 201
    api.parts.uploads.sweep()
    assert bucket.kept == {"alice/a.png"}


def test_nothing_is_deleted_while_it_is_written(instances: Callable[..., ImagesWorld]) -> None:
    bucket, kept = Meanwhile(), list[set[str]]()
    api = instances(images=SHORT, bucket=bucket)
    assert api.upload(("a.png", PNG)).status_code == 201
    images(api)
    eventually(lambda: noted(api))
    time.sleep(0.1)
    api.redis.zadd("uploads:writing:alice:a.png", {"another": 9_999_999_999_999})
    api.parts.uploads.sweep()
    assert api.bucket.kept == {"alice/a.png"}
    api.redis.zadd("uploads:writing:alice:a.png", {"another": 1})  # it died
    bucket.before_write = lambda: (api.parts.uploads.sweep(), kept.append(bucket.kept))
    assert api.upload(("a.png", JPEG)).status_code == 201
    assert kept == [{"alice/a.png"}]
    api.redis.zadd("uploads:writing:alice:a.png", {"another": 1})
    images(api)
    eventually(lambda: (api.parts.uploads.sweep(), bucket.kept == set())[1])


def test_a_process_that_was_stopped_deletes_nothing_late(
    instances: Callable[..., ImagesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = instances(images=SHORT)
    assert api.upload(("a.png", PNG)).status_code == 201
    images(api)
    eventually(lambda: noted(api))
    time.sleep(0.1)
    monkeypatch.setattr(module, "DELETE_WITHIN_S", -1.0)
    api.parts.uploads.sweep()
    assert api.bucket.kept == {"alice/a.png"}
    monkeypatch.undo()
    api.parts.uploads.sweep()
    assert api.bucket.kept == set()


def test_a_file_that_cannot_be_read_keeps_no_other_one(
    instances: Callable[..., ImagesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = instances(images=SHORT)
    for user in ("alice", "bob", "carol"):
        for name in ("a.png", "b.png"):
            api.bucket.write(f"{user}/{name}", PNG, ANY)
        images(api, user)
    eventually(lambda: len(api.redis.smembers("uploads:answered")) == 3)
    time.sleep(0.1)
    broken, read = {"alice/a.png", "bob/b.png"}, ApiBucket.read

    def damaged(bucket: ApiBucket, key: str) -> tuple[bytes, str]:
        if key in broken:
            raise StorageError(f"{key} is damaged")
        return read(bucket, key)

    monkeypatch.setattr(ApiBucket, "read", damaged)
    with pytest.raises(StorageError, match="is damaged"):
        api.parts.uploads.sweep()
    assert api.bucket.kept == broken


def test_a_deletion_of_unknown_outcome_keeps_its_turn(
    instances: Callable[..., ImagesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = instances(images=SHORT)
    monkeypatch.setattr(module, "_WAIT_S", 0.1)
    assert api.upload(("a.png", PNG)).status_code == 201
    images(api)
    eventually(lambda: noted(api))
    time.sleep(0.1)

    def fail(key: str) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(api.bucket, "delete", fail)
    with pytest.raises(StorageError):
        api.parts.uploads.sweep()
    assert api.upload(("a.png", JPEG)).status_code == 503, "the deletion may still be carried out"


def test_the_answer_is_streamed_and_a_failure_before_it_is_503(api: ImagesWorld) -> None:
    api.bucket.away = True
    answer = api.alice.get("/images/alice")
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    api.bucket.away = False
    for number in range(30):
        api.bucket.write(f"alice/{number:02}.png", PNG, ANY)
    with api.alice.stream("GET", "/images/alice") as answer:
        assert "content-length" not in answer.headers
        assert len(json.loads(answer.read())["images"]) == 30


def test_an_answer_that_fails_in_the_middle_is_cut_off(api: ImagesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    read = api.bucket.read

    def broken(key: str) -> tuple[bytes, str]:
        if key == "alice/2.png":
            raise StorageError("the disk is broken")
        return read(key)

    for number in range(3):
        api.bucket.write(f"alice/{number}.png", PNG, ANY)
    monkeypatch.setattr(api.bucket, "read", broken)
    with CapturedLogs() as log, pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        api.alice.get("/images/alice")
    assert log.warnings == ["an answer was cut off: the disk is broken"]
    assert not noted(api)
