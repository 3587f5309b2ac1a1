"""What a pass of the sweeper repairs, what it leaves alone, and that concurrent sweepers do nothing twice."""

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from local_servers import RunningServer
from service_world import NOWHERE, SETTINGS, ServiceWorld
from together import at_once

from retake.bucket import ANY
from retake.bucket.failing import FailingBucket, Fault
from retake.images import scripts
from retake.images.jobs import UNDER_WAY, iso
from retake.images.messages import OUTFIT_QUEUE, TOPOLOGY
from retake.images.redis_calls import open_redis
from retake.images.store import JobStore
from retake.images.sweeper import LOST, MAX_SENT
from retake.images.table import JobTable
from retake.rabbit.broker import Broker, BrokerAway
from retake.testing.logs import CapturedLogs

# --- sending again --------------------------------------------------------------------------------------------------


def test_a_job_without_a_message_is_sent_again_once(service_world: ServiceWorld) -> None:
    world, sweeper = service_world, service_world.sweeper()
    job_id = world.job()
    sweeper.sweep()
    assert world.depths() == (0, 0)
    world.clock.sleep(30)
    sweeper.sweep()
    assert world.sent() == [job_id]
    sweeper.sweep()
    assert world.depths() == (0, 0)
    world.clock.sleep(30)
    sweeper.sweep()
    assert world.sent() == [job_id]


def test_an_outfit_job_goes_to_its_own_queue(service_world: ServiceWorld) -> None:
    world = service_world
    job_id = world.job(job_type="outfit_change")
    world.clock.sleep(31)
    world.sweeper().sweep()
    assert world.depths() == (0, 1)
    assert world.sent(OUTFIT_QUEUE) == [job_id]


def test_a_job_whose_worker_lives_is_left_and_one_whose_worker_is_silent_is_not(service_world: ServiceWorld) -> None:
    world = service_world
    living, silent = world.job(), world.job()
    world.claim(living, 60)
    world.store.claim(silent, "t", 60, 5)
    world.store.update(silent, "t", 0.001, {"status": "processing_comfyui"})
    while silent not in (it.job_id for it in world.store.members(scripts.PENDING, calm=UNDER_WAY, changed="9")):
        pass
    world.clock.sleep(31)
    world.sweeper().sweep()
    assert world.sent() == [silent]
    assert world.status(silent) == "processing_comfyui"


def test_nothing_is_sent_while_messages_wait(service_world: ServiceWorld) -> None:
    world = service_world
    world.job()
    world.broker.publish("TextExchange", "text", b"{}")
    outfit = world.job(job_type="outfit_change")
    world.clock.sleep(31)
    world.sweeper().sweep()
    assert world.depths() == (1, 1)
    assert world.sent(OUTFIT_QUEUE) == [outfit]


def test_several_sweepers_at_once_send_each_job_once(service_world: ServiceWorld) -> None:
    world = service_world
    jobs = sorted(world.job() for _ in range(40))
    world.clock.sleep(31)
    at_once([world.sweeper().sweep for _ in range(5)])
    assert world.sent() == jobs


def test_a_pass_sends_a_bounded_number(service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = service_world
    assert MAX_SENT == 1000
    monkeypatch.setattr("retake.images.sweeper.MAX_SENT", 3)
    for _ in range(8):
        world.job()
    world.clock.sleep(31)
    sweeper = world.sweeper()
    counts = []
    for _ in range(3):
        sweeper.sweep()
        counts.append(len(world.sent()))
    assert counts == [3, 3, 2]


def test_a_message_that_rabbitmq_does_not_take_puts_off_no_other_job(service_world: ServiceWorld) -> None:
    class Full(Broker):
        tried = 0

        def publish(self, *_: object, **__: object) -> None:
            self.tried += 1
            raise BrokerAway("no answer within 5 s")

    world = service_world
    for _ in range(3):
        world.job()
    world.clock.sleep(31)
    full = Full(world.places.rabbitmq, TOPOLOGY, name="full")
    world.opened(full).connect(30)
    world.sweeper(broker=full).sweep()
    assert full.tried == 1
    world.sweeper().sweep()
    assert len(world.sent()) == 2


TOUCHED = ["", "yesterday", "9" * 400, "0001-01-01T00:00:00+14:00", "2026-12-31T00:00:00.000000+00:00"]
"""No time, a time that Python cannot represent, and one written by a clock far ahead."""


@pytest.mark.parametrize("stamp", TOUCHED)
def test_a_job_whose_last_change_is_unknown_is_touched_now(service_world: ServiceWorld, stamp: str) -> None:
    world = service_world
    pending, ready = world.job(), world.ready()
    for job_id in (pending, ready):
        world.store.client.hset(job_id, "updated_at", stamp)
    world.clock.sleep(2000)
    sweeper = world.sweeper()
    sweeper.sweep()
    assert world.depths() == (0, 0)
    assert world.status(ready) == "ready"
    world.clock.sleep(30)
    sweeper.sweep()
    assert world.sent() == [pending]
    world.clock.sleep(970)
    sweeper.sweep()
    assert world.status(ready) == ""


def test_times_of_other_programs_are_read(service_world: ServiceWorld) -> None:
    world = service_world
    job_id = world.job()
    world.store.client.hset(job_id, "updated_at", "2026-01-01T02:00:00+02:00")
    world.clock.sleep(29)
    sweeper = world.sweeper()
    sweeper.sweep()
    assert world.depths() == (0, 0)
    world.clock.sleep(1)
    sweeper.sweep()
    assert world.sent() == [job_id]


# --- sets -----------------------------------------------------------------------------------------------------------


def test_each_job_gets_where_its_status_belongs(service_world: ServiceWorld) -> None:
    world, client = service_world, service_world.store.client
    pending, ready, failed, odd, blank = world.job(), world.ready(), world.failed(), world.job(), world.ready()
    client.hset(odd, "status", "dancing")
    client.hset(blank, "output_r2_key", "")
    gone = str(uuid4())
    strangers = ["x", "", "jobs:status:pending", "jobs:rate:ann", gone]
    client.set("jobs:rate:ann", "1")
    for name in scripts.SETS:
        client.sadd(name, pending, failed, odd, blank, *strangers)
    for name in (scripts.PENDING, scripts.FAILED):
        client.sadd(name, ready)
    sweeper = world.sweeper()
    sweeper.sweep()
    sweeper.sweep()
    assert [world.sets_of(it) for it in (pending, ready, failed, odd, blank)] == [
        ["pending"], ["ready"], ["failed"], [], ["failed"],
    ]  # fmt: skip
    assert [world.sets_of(it) for it in strangers] == [[]] * 5
    assert client.get("jobs:rate:ann") == "1"


def test_a_job_in_the_memory_of_a_dead_dispatcher_is_ready_again(service_world: ServiceWorld) -> None:
    world = service_world
    mine, dead = world.ready(), world.ready()
    for job_id, until in ((mine, 2**53), (dead, 1)):
        world.store.client.smove(scripts.READY, scripts.CACHED, job_id)
        world.store.client.hset(job_id, mapping={"cached_by": "x", "cached_until": until})
    world.sweeper().sweep()
    assert world.sets_of(mine) == ["dispatcher_cache_processing"]
    assert world.sets_of(dead) == ["ready"]
    assert not world.store.fields(dead).keys() & {"cached_by", "cached_until"}


# --- cleaning up ----------------------------------------------------------------------------------------------------


def test_a_result_goes_when_its_grace_is_over(service_world: ServiceWorld) -> None:
    world, sweeper = service_world, service_world.sweeper()
    for job_id in (world.ready(), world.failed()):
        world.store.delivered(job_id, world.store.now(), world.status(job_id))
    kept = world.ready()
    world.clock.sleep(59)
    sweeper.sweep()
    assert len(world.files()) == 3
    world.clock.sleep(1)
    sweeper.sweep()
    assert world.files() == [f"jobs/{kept}/output.png"]
    assert world.keys() == [kept, scripts.READY]


def test_a_result_that_nobody_asks_for_goes_in_the_end(service_world: ServiceWorld) -> None:
    world, sweeper = service_world, service_world.sweeper()
    world.ready()
    world.failed()
    blank = world.ready()
    world.store.client.hset(blank, "output_r2_key", "")
    world.store.settle(blank)
    assert world.sets_of(blank) == ["failed"]
    world.clock.sleep(999)
    sweeper.sweep()
    assert len(world.files()) == 3
    world.clock.sleep(1)
    sweeper.sweep()
    assert (world.files(), world.keys()) == ([], [])


def test_a_job_under_way_is_never_cleaned_up(service_world: ServiceWorld) -> None:
    world = service_world
    job_id = world.job()
    world.store.client.sadd(scripts.READY, job_id)
    world.store.client.hset(job_id, "delivered_at", world.store.now())
    world.clock.sleep(10**6)
    world.sweeper().sweep()
    assert world.status(job_id) == "pending"


def test_a_job_that_begins_anew_during_a_pass_is_not_cleaned_up(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, delete = service_world, service_world.bucket.delete
    jobs, begun = {world.failed(), world.failed()}, set[str]()

    def slow(key: str) -> None:
        begun.update(it for it in jobs if it not in key and world.store.requeue(it))
        delete(key)

    monkeypatch.setattr(world.bucket, "delete", slow)
    world.clock.sleep(1000)
    world.sweeper().sweep()
    assert len(begun) == 1
    assert [world.status(it) for it in begun] == ["pending"]


def test_several_sweepers_clean_up_together(service_world: ServiceWorld) -> None:
    world = service_world
    for _ in range(30):
        world.ready()
    world.clock.sleep(1000)
    at_once([world.sweeper().sweep for _ in range(4)])
    assert (world.files(), world.keys()) == ([], [])


# --- files without a job --------------------------------------------------------------------------------------------


def test_files_without_a_job_go_when_they_are_old(service_world: ServiceWorld) -> None:
    world, sweeper = service_world, service_world.sweeper()
    known, gone = world.job(), str(uuid4())
    orphans = [f"jobs/{gone}/input_person.png", f"jobs/{gone}/output.png", "jobs/notes.txt", "jobs/x/y/z"]
    kept = ["ann/mine.png", f"jobs/{known}/input_person.png"]
    for key in orphans + kept:
        world.bucket.write(key, b"x", ANY)
    sweeper.sweep()
    world.clock.sleep(399)
    next_turn(world)
    sweeper.sweep()
    assert len(world.files()) == 6
    world.clock.sleep(1)
    world.bucket.write(f"jobs/{gone}/late.png", b"x", ANY)
    next_turn(world)
    sweeper.sweep()
    assert world.files() == [kept[0], f"jobs/{gone}/late.png", kept[1]] or set(world.files()) == {
        *kept,
        f"jobs/{gone}/late.png",
    }


def next_turn(world: ServiceWorld) -> None:
    """Let the time between two listings of the bucket pass; Redis's own clock measures it."""
    world.store.client.delete("jobs:alone:orphans")


def test_the_bucket_is_listed_now_and_then_by_one_of_all(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = service_world
    take_lock, asked = JobStore.take_lock, []

    def noted(self: JobStore, what: str, seconds: float) -> bool:
        asked.append(seconds)
        return take_lock(self, what, seconds)

    monkeypatch.setattr(JobStore, "take_lock", noted)
    counting = FailingBucket(world.bucket)
    sweepers = [world.sweeper(bucket=counting) for _ in range(3)]
    for it in sweepers * 2:
        it.sweep()
    assert counting.operations.count(("list", "jobs/")) == 1
    assert set(asked) == {100}
    assert 0 < world.store.client.pttl("jobs:alone:orphans") <= 100_000
    next_turn(world)
    sweepers[0].sweep()
    assert counting.operations.count(("list", "jobs/")) == 2
    next_turn(world)
    world.sweeper(SETTINGS._replace(orphan_after_seconds=0.1)).sweep()
    assert asked[-1] == 1


def test_many_files_go_over_several_passes(service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sweeper = service_world, service_world.sweeper()
    monkeypatch.setattr("retake.images.sweeper.MAX_CLEANED", 4)
    for number in range(10):
        world.bucket.write(f"jobs/{number}/a", b"x", ANY)
    world.clock.sleep(400)
    counts = []
    for _ in range(3):
        sweeper.sweep()
        counts.append(len(world.files()))
    assert counts == [6, 2, 0]


# --- rows of jobs2 --------------------------------------------------------------------------------------------------


def test_a_row_whose_job_was_never_made_is_brought_in_and_sent(table_world: ServiceWorld) -> None:
    world, sweeper = table_world, table_world.sweeper()
    job_id = world.row("a blue fox", "key")
    sweeper.sweep()
    assert world.keys() == []
    world.clock.sleep(31)
    sweeper.sweep()
    job = world.store.get(job_id)
    assert job
    assert (job.status, job.text.prompt, job.user_id, job.in_table) == ("pending", "a blue fox", "ann", True)
    assert world.store.known("ann", "key") == job_id
    for _ in range(2):  # it is sent again like any other if its message is lost
        assert world.sent() == [job_id]
        sweeper.sweep()
        assert world.depths() == (0, 0)
        world.clock.sleep(31)
        sweeper.sweep()


def test_several_sweepers_bring_in_and_send_once(table_world: ServiceWorld) -> None:
    world = table_world
    rows = sorted(world.row() for _ in range(20))
    world.clock.sleep(31)
    at_once([world.sweeper().sweep for _ in range(4)])
    assert world.sent() == rows


def test_a_row_follows_its_job(table_world: ServiceWorld) -> None:
    world, sweeper = table_world, table_world.sweeper()
    good, bad = (world.job(in_table="1") for _ in range(2))
    for job_id in (good, bad):
        assert world.table
        job = world.store.get(job_id)
        assert job
        world.table.add(job)
    sweeper.sweep()
    assert {world.row_status(it) for it in (good, bad)} == {"pending"}
    world.ready(good)
    world.claim(bad)
    world.store.end_failed(bad, f"token {bad}", "no \udc80 luck")
    sweeper.sweep()
    row = world.table.get(good)
    assert row
    assert (row.status, row.output_r2_key, row.executed_by) == ("ready", f"jobs/{good}/output.png", "A @ h:1")
    row = world.table.get(bad)
    assert row
    assert (row.status, row.error) == ("failed", "no ? luck")
    world.clock.sleep(1000)
    sweeper.sweep()
    assert {world.row_status(good), world.row_status(bad)} == {"completed", "failed"}
    assert world.keys() == []


def test_a_result_that_redis_has_lost_is_a_failed_row(table_world: ServiceWorld) -> None:
    world, sweeper = table_world, table_world.sweeper()
    job_id = world.row()
    assert world.table
    world.table.ready(job_id, "jobs/x/output.png", "A")
    world.clock.sleep(31)
    sweeper.sweep()
    row = world.table.get(job_id)
    assert row
    assert (row.status, row.error) == ("failed", LOST)
    assert world.keys() == []


def test_many_rows_take_several_passes(table_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sweeper = table_world, table_world.sweeper()
    monkeypatch.setattr("retake.images.sweeper._PAGE", 2)
    monkeypatch.setattr("retake.images.sweeper.MAX_ROWS", 4)
    rows = {world.row() for _ in range(9)}
    world.clock.sleep(31)
    counts = []
    for _ in range(4):
        sweeper.sweep()
        counts.append(len([it for it in rows if world.status(it)]))
    assert counts == [4, 8, 9, 9]


# --- services that are away -----------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[CapturedLogs]:
    with CapturedLogs() as captured:
        yield captured


def logged(log: CapturedLogs) -> list[str]:
    """Return what the sweeper has logged since the last call."""
    found = [it.getMessage() for it in log.records if it.name == "retake.images.sweeper"]
    log.records.clear()
    return found


def test_without_redis_a_pass_says_so_once(
    redis_server: RunningServer, service_world: ServiceWorld, log: CapturedLogs
) -> None:
    sweeper = service_world.sweeper()
    redis_server.kill()
    sweeper.sweep()
    sweeper.sweep()
    [line] = logged(log)
    assert "Redis" in line
    redis_server.start()
    while not (lines := logged(log)):  # it is not asked again at once
        sweeper.sweep()
    sweeper.sweep()
    assert lines + logged(log) == ["Redis answers again"]


def test_without_rabbitmq_the_rest_is_done(service_world: ServiceWorld, log: CapturedLogs) -> None:
    world = service_world
    broker = world.opened(Broker(NOWHERE.rabbitmq, TOPOLOGY, name="away", timeout_s=0.5))
    sweeper = world.sweeper(broker=broker)
    world.ready()
    pending = world.job()
    world.clock.sleep(1000)
    sweeper.sweep()
    assert world.keys() == sorted([pending, scripts.PENDING])
    assert len([it for it in logged(log) if "without RabbitMQ" in it]) == 1
    sweeper.sweep()
    assert logged(log) == []
    updated = world.store.fields(pending)["updated_at"]
    assert updated == iso(world.clock.now() - timedelta(seconds=1000))  # it is due as soon as RabbitMQ is there


def test_without_postgresql_the_jobs_of_jobs2_wait(table_world: ServiceWorld, log: CapturedLogs) -> None:
    world = table_world
    away = JobTable(NOWHERE.database, world.clock)
    sweeper = world.sweeper(table=away)
    mine = [world.ready(world.job(in_table="1")) for _ in range(3)]
    world.ready()
    world.clock.sleep(1000)
    sweeper.sweep()
    assert world.keys() == sorted([*mine, scripts.READY])
    lines = logged(log)
    assert len([it for it in lines if "without PostgreSQL" in it]) == 1
    assert "hunter2" not in str(lines)
    sweeper.sweep()
    assert logged(log) == []
    away.close()
    world.sweeper().sweep()
    assert world.keys() == []


def test_without_the_bucket_nothing_is_forgotten(service_world: ServiceWorld, log: CapturedLogs) -> None:
    world = service_world
    jobs = [world.ready() for _ in range(3)]
    pending = world.job()
    away = FailingBucket(world.bucket, Fault(times=3))
    sweeper = world.sweeper(bucket=away)
    world.clock.sleep(1000)
    sweeper.sweep()
    assert all(world.status(it) == "ready" for it in jobs)
    assert world.sent() == [pending]
    assert len([it for it in logged(log) if "without the bucket" in it]) == 1
    world.store.client.delete("jobs:alone:orphans")
    sweeper.sweep()
    sweeper.sweep()
    assert world.files() == []
    assert "the bucket answers again" in logged(log)


def test_a_redis_that_was_never_there(service_world: ServiceWorld) -> None:
    world = service_world
    with open_redis(NOWHERE.redis) as client:
        world.sweeper(store=JobStore(client, world.clock)).sweep()
