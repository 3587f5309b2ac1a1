"""The dispatcher: ready jobs into memory and back, its modes, and the work left for a stop."""

from collections.abc import Callable, Iterator
from threading import Event
from typing import NoReturn
from uuid import uuid4

import pytest
from images_world import ImagesWorld, pictured
from redis import Redis
from waiting import eventually

from retake.clock import SystemClock
from retake.errors import StorageError
from retake.images import dispatcher as module
from retake.images import scripts
from retake.images.dispatcher import Dispatcher
from retake.images.redis_calls import RedisAway, open_redis
from retake.images.settings import ImageJobSettings
from retake.images.store import JobStore
from retake.images.unfinished import MAX_PIECES, Unfinished
from retake.testing.logs import CapturedLogs

SETTINGS = ImageJobSettings(cache_ttl_seconds=3600, idle_after_seconds=30)


class Desk:
    """Dispatchers on one Redis, with the test's own clock."""

    def __init__(self, url: str) -> None:
        self.client: Redis = open_redis(url)
        self.store = JobStore(self.client, SystemClock())
        self.now = 1000.0

    def dispatcher(self, settings: ImageJobSettings = SETTINGS, **chosen: object) -> Dispatcher:
        given = {"unfinished": Unfinished(), "monotonic": lambda: self.now, **chosen}
        return Dispatcher(settings, self.store, uuid4().hex, **given)  # type: ignore[arg-type]

    def ready(self, **fields: str) -> str:
        job_id = str(uuid4())
        known = {"status": "ready", "user_id": "alice", "output_r2_key": f"jobs/{job_id}/output.png", **fields}
        self.client.hset(job_id, mapping=known)
        self.client.sadd(scripts.READY, job_id)
        return job_id

    def members(self, name: str) -> set[str]:
        return set(self.client.smembers(name))  # type: ignore[arg-type]


@pytest.fixture
def desk(redis_url: str) -> Iterator[Desk]:
    desk = Desk(redis_url)
    yield desk
    desk.client.close()


def pass_ttl(desk: Desk, job_id: str) -> None:
    """Let the time of a cached job expire, by Redis's clock and by the test's."""
    desk.client.hset(job_id, "cached_until", 1)
    desk.now += 3600


def test_what_is_ready_is_cached_by_one_of_several(desk: Desk) -> None:
    first, second, job_id = desk.dispatcher(), desk.dispatcher(), desk.ready(image_type="image/png")
    first.cycle()
    second.cycle()
    cached = first.cached(job_id)
    assert cached
    assert cached[:4] == (job_id, "alice", f"jobs/{job_id}/output.png", "image/png")
    assert second.cached(job_id) is None
    assert (desk.members(scripts.READY), desk.members(scripts.CACHED)) == (set(), {job_id})
    assert (first.count, second.count) == (1, 0)


def test_a_job_whose_time_is_over_is_back_in_ready(desk: Desk) -> None:
    dispatcher, job_id = desk.dispatcher(), desk.ready()
    dispatcher.cycle()
    pass_ttl(desk, job_id)
    dispatcher.cycle()
    assert dispatcher.count == 0
    assert (desk.members(scripts.READY), desk.members(scripts.CACHED)) == ({job_id}, set())
    assert not {"cached_by", "cached_until"} & set(desk.store.fields(job_id))
    dispatcher.cycle()
    assert dispatcher.count == 1, "and can be cached again"


def test_what_a_dead_dispatcher_had_is_back_in_ready(desk: Desk) -> None:
    dead, living, job_id = desk.dispatcher(), desk.dispatcher(), desk.ready()
    dead.cycle()
    desk.client.hset(job_id, "cached_until", 9_999_999_999_999)
    living.cycle()
    assert desk.members(scripts.CACHED) == {job_id}, "it may be alive"
    pass_ttl(desk, job_id)
    living.cycle()
    assert desk.members(scripts.READY) == {job_id}
    living.cycle()
    dead._give_back(list(dead._cache.values()))  # it was only slow
    assert desk.members(scripts.CACHED) == {job_id}, "what another one has is not taken from it"


@pytest.mark.parametrize("fields", [{"status": "pending"}, {"status": "failed"}, {"output_r2_key": ""}, {"status": ""}])
def test_what_is_not_ready_after_all_leaves_the_set(desk: Desk, fields: dict[str, str]) -> None:
    desk.ready(**fields)
    desk.client.sadd(scripts.READY, str(uuid4()), "no id", scripts.PENDING)
    desk.client.sadd(scripts.CACHED, str(uuid4()), "no id", scripts.READY)
    dispatcher = desk.dispatcher()
    dispatcher.cycle()
    assert (desk.members(scripts.READY), desk.members(scripts.CACHED)) == (set(), set())
    assert dispatcher.count == 0


def test_on_a_stop_cached_jobs_go_back(desk: Desk) -> None:
    dispatcher, ids = desk.dispatcher(), {desk.ready() for _ in range(20)}
    dispatcher.start()
    eventually(lambda: dispatcher.count == 20)
    desk.client.delete(gone := ids.pop())
    dispatcher.stop()
    dispatcher.close()
    assert (desk.members(scripts.READY), desk.members(scripts.CACHED)) == (ids, set())
    assert gone not in ids
    assert dispatcher.count == 0


def test_thousands_are_gone_through_and_some_are_cached(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 700)
    ids = {desk.ready() for _ in range(2500)}
    broken = {desk.ready(status="pending") for _ in range(600)}
    dispatcher = desk.dispatcher()
    for _ in range(2):
        dispatcher.cycle()
        assert dispatcher.count == 700
        assert desk.client.scard(scripts.READY) == 1800
    assert not broken & desk.members(scripts.READY)
    assert desk.members(scripts.READY) | desk.members(scripts.CACHED) == ids


def test_it_is_idle_once_nobody_asks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, woken = desk.dispatcher(), list[object]()
    monkeypatch.setattr(module.Loop, "wake", lambda loop: woken.append(loop))
    assert dispatcher.mode == "active"
    desk.now += 29
    dispatcher.wake()
    desk.now += 29
    assert dispatcher.mode == "active"
    desk.now += 2
    assert (dispatcher.mode, dispatcher._turn(), woken) == ("idle", SETTINGS.idle_seconds, [])
    dispatcher.wake()
    assert len(woken) == 2, "its cycles and its passes begin at once"
    assert (dispatcher.mode, dispatcher._turn()) == ("active", SETTINGS.active_seconds)


def test_a_wake_ends_the_pause_of_an_idle_one(desk: Desk) -> None:
    settings = SETTINGS._replace(idle_seconds=3600, active_seconds=3600, cache_ttl_seconds=3600)
    sweeps: list[int] = []
    dispatcher = desk.dispatcher(settings, sweep=lambda: sweeps.append(1))
    desk.now += 60
    dispatcher.start()
    try:
        eventually(lambda: sweeps)
        job_id = desk.ready()
        dispatcher.wake()
        eventually(lambda: dispatcher.cached(job_id) and len(sweeps) == 2)
    finally:
        dispatcher.stop()
        dispatcher.close()


def test_a_stop_waits_for_what_is_in_progress(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, join = Event(), Event(), module.Loop.join
    swept: list[int] = []

    def sweep() -> None:
        begun.set()
        assert goes_on.wait(60)
        swept.append(1)

    def joined(loop: module.Loop, timeout: float) -> None:
        goes_on.set()
        join(loop, timeout)

    monkeypatch.setattr(module.Loop, "join", joined)
    dispatcher = desk.dispatcher(sweep=sweep)
    dispatcher.start()
    assert begun.wait(60)
    dispatcher.stop()
    dispatcher.close(60.0)
    assert swept


def test_a_redis_that_is_away_is_reported_once_and_so_is_its_return(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> NoReturn:
        raise RedisAway("Redis does not answer")

    dispatcher = desk.dispatcher()
    with CapturedLogs() as log:
        with monkeypatch.context() as patch:
            patch.setattr(desk.store, "run", away)
            assert dispatcher._turn() == dispatcher._turn() == SETTINGS.active_seconds
        dispatcher._turn()
        dispatcher._turn()
    told = ["Redis does not answer; cached jobs are answered, others are not", "Redis answers again"]
    assert [it.getMessage() for it in log.records if it.name == module.__name__] == told


def test_a_job_that_is_made_or_asked_for_wakes_it(api: ImagesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(type(api.dispatcher), "wake", lambda _: woken.append(1))
    job_id = api.job()
    assert len(woken) == 1
    api.result(job_id)
    assert len(woken) == 2
    assert api.outfit().status_code == 201
    assert len(woken) == 3


def test_what_is_cached_is_answered_and_forgotten_with_its_job(instances: Callable[..., ImagesWorld]) -> None:
    first, second = instances(), instances()
    job_id = first.job()
    first.finish(job_id)
    first.dispatcher.cycle()
    assert pictured(second.result(job_id)) == pictured(first.result(job_id)), "wherever it is asked for"
    assert second.alice.delete("/jobResult", params={"jobId": job_id}).status_code == 204
    assert first.dispatcher.cached(job_id)
    assert first.result(job_id).status_code == 404
    assert first.dispatcher.cached(job_id) is None


# --- what is left to be done ----------------------------------------------------------------------------------------


def test_a_cached_job_whose_key_another_program_took_holds_up_no_other(desk: Desk) -> None:
    jobs = [desk.ready() for _ in range(4)]
    dispatcher = desk.dispatcher()
    dispatcher.cycle()
    odd = next(iter(dispatcher._cache))
    for job_id in jobs:
        pass_ttl(desk, job_id)
    desk.client.set(odd, "not a hash")
    dispatcher.cycle()
    assert desk.members(scripts.READY) == {*jobs} - {odd}
    assert desk.members(scripts.CACHED) == set()
    assert dispatcher.count == 0


def test_what_failed_is_done_later_and_does_not_hold_up_the_rest() -> None:
    unfinished, done, away = Unfinished(), list[str](), [True]

    def work(name: str, *, fails: bool = False) -> Callable[[], None]:
        def call() -> None:
            if fails and away[0]:
                raise StorageError("away")
            done.append(name)

        return call

    assert unfinished.attempt("a", work("a"))
    assert not unfinished.attempt("b", work("b", fails=True))
    unfinished.add("c", work("c"))
    unfinished.retry()
    assert (done, len(unfinished)) == (["a"], 2)
    unfinished.retry()
    assert (done, len(unfinished)) == (["a", "c"], 1)
    away[0] = False
    unfinished.retry()
    assert (done, len(unfinished)) == (["a", "c", "b"], 0)


def test_what_is_left_is_bounded() -> None:
    unfinished, done = Unfinished(), list[int]()
    for number in range(MAX_PIECES + 5):
        unfinished.add(str(number), lambda number=number: done.append(number))  # type: ignore[misc]
    unfinished.add("7", lambda: done.append(-7))
    unfinished.retry()
    assert len(done) == MAX_PIECES
    assert done[-1] == -7
