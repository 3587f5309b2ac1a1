"""Slow refusals by the bucket hold up other work for one pass at most."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import pytest
from images_world import CALM, PNG, ApiBucket, ImagesWorld
from service_world import ServiceWorld

from retake.bucket import ANY
from retake.bucket.wrappers import Wrapper
from retake.errors import StorageError
from retake.images import uploads
from retake.images.rows import TableAway
from retake.images.turns import Turns

T = TypeVar("T")


class Reluctant(Wrapper):
    """A bucket that takes half a minute to refuse the deletion of a file in one of these folders."""

    def __init__(self, world: ServiceWorld, folders: Collection[str]) -> None:
        super().__init__(world.bucket)
        self._world, self._folders, self.asked = world, folders, list[str]()

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        if operation == "delete":
            folder = key.split("/")[1]
            self.asked.append(folder)
            if folder in self._folders:
                self._world.clock.sleep(30)
                raise StorageError("503 Slow Down")
        return call()


def test_jobs_whose_files_stay_hold_up_no_other(service_world: ServiceWorld) -> None:
    world = service_world
    jobs = [world.ready() for _ in range(6)]
    world.clock.sleep(timedelta(days=1).total_seconds())
    order = [it.job_id for it in world.store.members("jobs:status:ready")]
    reluctant = Reluctant(world, order[:2])
    sweeper = world.sweeper(bucket=reluctant)
    for _ in range(3):
        sweeper.sweep()
    assert sorted(it for it in jobs if world.status(it)) == sorted(order[:2])
    sweeper.sweep()
    assert {*reluctant.asked[-2:]} == {*order[:2]}, "each gets its turn"


def test_files_without_a_job_that_stay_hold_up_no_other(service_world: ServiceWorld) -> None:
    world = service_world
    for number in range(5):
        world.bucket.write(f"jobs/{number}/a", b"x", ANY)
    world.clock.sleep(400)
    sweeper = world.sweeper(bucket=Reluctant(world, ["0", "1"]))
    for _ in range(3):
        world.store.client.delete("jobs:alone:orphans")
        sweeper.sweep()
    assert world.files() == ["jobs/0/a", "jobs/1/a"]


def test_a_pass_ends_though_each_file_stays(service_world: ServiceWorld) -> None:
    world, orphans = service_world, "0123"
    jobs = [world.ready() for _ in orphans]
    for number in orphans:
        world.bucket.write(f"jobs/{number}/a", b"x", ANY)
    world.clock.sleep(timedelta(days=1).total_seconds())
    reluctant = Reluctant(world, {*jobs, *orphans})
    world.sweeper(bucket=reluctant).sweep()
    assert len(reluctant.asked) == 2, "one file of a job, and one without a job"


def test_a_postgresql_that_is_away_is_asked_once_in_a_pass(
    table_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, asked = table_world, list[str]()
    for _ in range(4):
        world.ready(world.job(in_table="1"))
    without_row = world.ready()
    world.clock.sleep(timedelta(days=1).total_seconds())

    def completed(job_id: str, *_: object) -> None:
        asked.append(job_id)
        raise TableAway("PostgreSQL did not answer within 5 s")

    monkeypatch.setattr(world.table, "completed", completed)
    world.sweeper().sweep()
    assert len(asked) == 1
    assert not world.status(without_row)


def test_uploads_that_stay_hold_up_no_other(
    instances: Callable[..., ImagesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = instances(images=CALM._replace(result_grace_seconds=0.05))
    users = ("alice", "bob", "carol")
    for user in users:
        api.bucket.write(f"{user}/a.png", PNG, ANY)
        api.parts.uploads.answered(user, {"a.png": api.bucket.read(f"{user}/a.png")[1]})
    first = next(iter(api.redis.sscan_iter("uploads:answered")))
    broken, read = f"{first}/a.png", ApiBucket.read

    def damaged(bucket: ApiBucket, key: str) -> tuple[bytes, str]:
        if key == broken:
            raise StorageError(f"{key} is damaged")
        return read(bucket, key)

    monkeypatch.setattr(ApiBucket, "read", damaged)
    monkeypatch.setattr(uploads, "_MAX_PASS_S", -1.0)

    time.sleep(0.1)
    for _ in users:
        with pytest.raises(StorageError, match="is damaged"):
            api.parts.uploads.sweep()
    assert api.bucket.kept == {broken}


def test_what_failed_comes_last_and_what_is_gone_is_forgotten() -> None:
    turns = Turns()

    def taken(names: str, failing: str) -> str:
        order = ""
        for it in turns.ordered(names, str):
            order += it
            with suppress(ZeroDivisionError), turns.processing(it):
                assert 1 / (it not in failing)
        return order

    assert taken("abcd", "bc") == "abcd"
    assert taken("abcd", "c") == "adbc"
    assert taken("ab", "") == "ab"
    assert taken("abcd", "") == "abcd"
