"""Clean-up with a crash between any two of its steps: what is left is swept, and nothing is executed twice."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from service_world import NOWHERE, SETTINGS, ServiceWorld
from test_check_images import checked

from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash
from retake.errors import StorageError
from retake.images.claims import WriteResult
from retake.images.cleanup import DELETED, CleanUp, reopen_row
from retake.images.redis_calls import RedisAway
from retake.images.rows import TableAway
from retake.images.table import JobTable


class Mortal:
    """Passes calls on to `real` until its owner's steps are used up; then the process dies, before or after a step."""

    def __init__(self, real: Any, steps: "Steps") -> None:
        self._real, self._steps = real, steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        return (
            (lambda *given, **named: self._steps.take(lambda: method(*given, **named))) if callable(method) else method
        )


class Steps:
    def __init__(self, allowed: float, *, after: bool) -> None:
        self.allowed, self.after, self.taken = allowed, after, 0

    def take(self, step: Callable[[], Any]) -> Any:
        self.taken += 1
        if self.taken > self.allowed:
            raise Crash
        done = step()
        if self.after and self.taken == self.allowed:
            raise Crash
        return done


@pytest.fixture
def world(table_world: ServiceWorld) -> Iterator[ServiceWorld]:
    return table_world


def make(world: ServiceWorld, state: str) -> str:
    """Create a job of jobs2 in this state, with a picture of its own."""
    job_id = world.row(state)
    world.clock.sleep(31)
    world.sweeper().sweep()
    world.sent()
    world.bucket.write(f"jobs/{job_id}/input_person.png", b"x", ANY)
    if state == "ready":
        world.ready(job_id)
    elif state == "failed":
        world.claim(job_id)
        world.store.end_failed(job_id, f"token {job_id}", "it broke")
    elif state == "claimed":
        world.claim(job_id)
        world.store.update(job_id, f"token {job_id}", 60, {"status": "processing_comfyui"})
    return job_id


ENDS = {"ready": "completed", "failed": "failed", "pending": "failed", "claimed": "failed"}


@pytest.mark.parametrize("state", ENDS)
def test_everything_of_a_job_goes(world: ServiceWorld, state: str) -> None:
    job_id = make(world, state)
    clean = CleanUp(world.store, world.bucket, world.table).clean
    clean(job_id)
    assert (world.files(), world.keys(), world.row_status(job_id)) == ([], [], ENDS[state])
    clean(job_id)
    assert world.row_status(job_id) == ENDS[state]


def test_the_row_keeps_what_became_of_it(world: ServiceWorld) -> None:
    assert world.table
    clean = CleanUp(world.store, world.bucket, world.table).clean
    ready, failed, deleted = (make(world, it) for it in ("ready", "failed", "pending"))
    for it in (ready, failed, deleted):
        clean(it)
    row = world.table.get(ready)
    assert row
    assert (row.output_r2_key, row.executed_by) == (f"jobs/{ready}/output.png", "A @ h:1")
    rows = [world.table.get(job) for job in (failed, deleted)]
    assert [it.error for it in rows if it] == ["it broke", DELETED]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("state", ENDS)
def test_a_crash_at_any_step_leaves_nothing_for_long_and_executes_nothing(
    world: ServiceWorld, state: str, after: bool
) -> None:
    for allowed in range(20):
        job_id = make(world, state)
        steps = Steps(allowed, after=after)
        dying = CleanUp(Mortal(world.store, steps), Mortal(world.bucket, steps), Mortal(world.table, steps))
        try:
            dying.clean(job_id)
        except Crash:
            survived = False
        else:
            survived = True
        user_asks_again = state in ("pending", "claimed") and world.status(job_id)
        if user_asks_again:
            CleanUp(world.store, world.bucket, world.table).clean(job_id)
        swept(world)
        assert (world.files(), world.keys(), world.row_status(job_id)) == ([], [], ENDS[state]), allowed
        assert world.sent() == []
        if survived:
            assert allowed >= 4
            return
    pytest.fail("it never ended")


def test_the_deletion_of_a_result_that_dies_is_finished_after_the_grace(world: ServiceWorld) -> None:
    """`retake check` does not mistake the deleted files for lost ones."""
    for allowed in range(1, 20):
        job_id = make(world, "ready")
        steps = Steps(allowed, after=True)
        dying = CleanUp(Mortal(world.store, steps), Mortal(world.bucket, steps), Mortal(world.table, steps))
        with suppress(Crash):
            dying.clean(job_id)
        assert checked(world).findings == [], allowed
        begun = f"jobs/{job_id}/output.png" not in world.files()
        world.clock.sleep(SETTINGS.result_grace_seconds)
        world.sweeper().sweep()
        assert checked(world).findings == [], allowed
        if steps.taken < allowed:
            return
        assert not (begun and world.status(job_id)), allowed
    pytest.fail("it never ended")


def swept(world: ServiceWorld) -> None:
    """Sweep until everything that has expired is gone."""
    for _ in range(3):
        world.clock.sleep(max(SETTINGS.result_ttl_seconds, SETTINGS.orphan_after_seconds))
        world.store.client.delete("jobs:alone:orphans")
        world.sweeper().sweep()


def test_a_worker_whose_job_is_deleted_can_write_nothing(world: ServiceWorld) -> None:
    job_id = make(world, "claimed")
    CleanUp(world.store, world.bucket, world.table).clean(job_id)
    token = f"token {job_id}"
    assert world.store.update(job_id, token, 60, {"status": "processing_comfyui"}) is WriteResult.GONE
    assert world.store.end_ready(job_id, token, "k", "image/png", "A") is WriteResult.GONE
    assert world.store.give_back(job_id, token) is WriteResult.GONE
    assert world.keys() == []


def test_a_job_that_becomes_ready_while_it_is_deleted_goes_anyway(world: ServiceWorld) -> None:
    """Its worker saves the picture and writes "ready" between any two steps of the clean-up."""
    for number in range(1, 8):
        job_id = make(world, "claimed")
        steps = Between(number, lambda it=job_id: world.ready(it))
        cleanup = CleanUp(Mortal(world.store, steps), Mortal(world.bucket, steps), Mortal(world.table, steps))  # type: ignore[arg-type]
        cleanup.clean(job_id)
        swept(world)
        assert (world.files(), world.keys()) == ([], []), number


def test_a_failed_job_that_begins_anew_while_it_is_cleaned_up_stays(world: ServiceWorld) -> None:
    """An operator requeues it between any two steps of the clean-up."""
    for number in range(1, 7):
        job_id, begun = make(world, "failed"), list[bool]()
        steps = Between(number, lambda it=job_id, into=begun: into.append(world.store.requeue(it)))
        cleanup = CleanUp(Mortal(world.store, steps), Mortal(world.bucket, steps), Mortal(world.table, steps))  # type: ignore[arg-type]
        stays = not cleanup.clean(job_id, ended=True)
        assert stays == (begun == [True]), number
        assert (world.status(job_id) == "pending") == stays, number


@pytest.mark.parametrize("state", ["failed", "pending"])
def test_a_job_that_begins_anew_while_its_user_deletes_it_is_not_done_once_more(
    world: ServiceWorld, state: str
) -> None:
    """An operator requeues it between any two steps of the clean-up, or a sweeper finishes that."""
    assert world.table
    for number in range(1, 8):
        job_id = make(world, state)

        def anew(it: str = job_id) -> None:
            if world.store.requeue(it) and world.table:
                reopen_row(world.table, world.store, it)

        steps = Between(number, anew)
        cleanup = CleanUp(Mortal(world.store, steps), Mortal(world.bucket, steps), Mortal(world.table, steps))  # type: ignore[arg-type]
        cleanup.clean(job_id)
        for _ in range(2):
            world.clock.sleep(31)
            world.sweeper().sweep()
        assert (world.status(job_id), world.row_status(job_id), world.sent()) == ("", "failed", []), number


class Between(Steps):
    """Does something else before one of the steps."""

    def __init__(self, number: int, work: Callable[[], Any]) -> None:
        super().__init__(float("inf"), after=False)
        self._number, self._work = number, work

    def take(self, step: Callable[[], Any]) -> Any:
        if self.taken + 1 == self._number:
            self._work()
        return super().take(step)


def test_many_at_once(world: ServiceWorld) -> None:
    jobs = [make(world, "ready") for _ in range(5)]
    clean = CleanUp(world.store, world.bucket, world.table).clean
    threads = [threading.Thread(target=lambda: [clean(it) for it in jobs]) for _ in range(4)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()
    assert (world.files(), world.keys()) == ([], [])
    assert {world.row_status(it) for it in jobs} == {"completed"}


def test_a_file_that_cannot_be_deleted_keeps_no_other_job(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, delete = [world.ready() for _ in range(8)], world.bucket.delete

    def guarded(key: str) -> None:
        if jobs[0] in key or key == "jobs/1/x.png":
            raise StorageError("it may not be deleted")
        delete(key)

    for number in "123":
        world.bucket.write(f"jobs/{number}/x.png", b"without a job", ANY)
    monkeypatch.setattr(world.bucket, "delete", guarded)
    swept(world)
    assert [it for it in jobs if world.status(it)] == jobs[:1]
    assert set(world.files()) == {f"jobs/{jobs[0]}/output.png", "jobs/1/x.png"}


def test_what_is_not_a_job(world: ServiceWorld) -> None:
    clean = CleanUp(world.store, world.bucket, world.table).clean
    for it in ("", "x", "../../etc", "jobs:status:pending", str(uuid4())):
        clean(it)
    world.store.client.sadd("jobs:status:ready", gone := str(uuid4()))
    clean(gone)
    assert world.keys() == []


def test_without_jobs2_a_job_of_it_goes_too(world: ServiceWorld) -> None:
    job_id = make(world, "ready")
    CleanUp(world.store, world.bucket, None).clean(job_id)
    assert (world.files(), world.keys()) == ([], [])


def test_a_service_that_is_away_is_reported(world: ServiceWorld) -> None:
    job_id = make(world, "ready")
    away = JobTable(NOWHERE.database, world.clock)
    with pytest.raises(TableAway):
        CleanUp(world.store, world.bucket, away).clean(job_id)
    away.close()

    def failing(error: type[Exception]) -> Callable[..., None]:
        def fail(*_: object, **__: object) -> None:
            raise error("away")

        return fail

    assert len(world.files()) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.bucket, "delete", failing(StorageError))
        with pytest.raises(StorageError):
            CleanUp(world.store, world.bucket, world.table).clean(job_id)
    assert world.status(job_id) == "ready"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "remove", failing(RedisAway))
        with pytest.raises(RedisAway):
            CleanUp(world.store, world.bucket, world.table).clean(job_id)
    assert world.status(job_id) == "ready"
    CleanUp(world.store, world.bucket, world.table).clean(job_id)
    assert (world.files(), world.keys()) == ([], [])


def test_no_job_leaves_a_folder(service_world: ServiceWorld, tmp_path: Path) -> None:
    world = service_world
    world.bucket = DirectoryBucket(str(tmp_path / "bucket"))
    ready, gone = world.ready(), str(uuid4())
    world.bucket.write(f"jobs/{gone}/output.png", b"x", ANY)
    os.utime(tmp_path / f"bucket/jobs/{gone}/output.png", (0, 0))
    assert {it.name for it in (tmp_path / "bucket/jobs").iterdir()} == {ready, gone}
    world.clock.sleep(1000)
    world.sweeper().sweep()
    assert list((tmp_path / "bucket/jobs").iterdir()) == []
