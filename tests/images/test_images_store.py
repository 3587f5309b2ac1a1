"""The jobs in a real Redis: every script, and concurrent writers of a job."""

import time
from collections.abc import Iterator
from threading import Timer
from uuid import uuid4

import pytest
from together import at_once

from retake.clock import FakeClock
from retake.images import scripts
from retake.images.claims import ClaimResult, WriteResult
from retake.images.held_job import HeldJob, JobInterrupted, JobLost
from retake.images.jobs import UNDER_WAY, ImageJob, JobType, TextRequest, is_job_id, job_of, text_fields
from retake.images.redis_calls import RedisAway, open_redis
from retake.images.store import IDEMPOTENCY_S, JobStore

SETS = ("pending", "ready", "dispatcher_cache_processing", "failed")


@pytest.fixture
def store(redis_url: str) -> Iterator[JobStore]:
    with open_redis(redis_url) as client:
        yield JobStore(client, FakeClock())


def new_job(user: str = "ann") -> ImageJob:
    return ImageJob(str(uuid4()), "pending", JobType.TEXT, user, text=TextRequest("a fox"))


def made(store: JobStore, key: str = "", user: str = "ann") -> str:
    job = new_job(user)
    return store.create(job, text_fields(job.text), key)


def sets_of(store: JobStore, job_id: str) -> list[str]:
    return [name for name in SETS if store.client.sismember(f"jobs:status:{name}", job_id)]


def expired(store: JobStore, job_id: str) -> None:
    """Let the time of the job's claim expire."""
    store.client.hset(job_id, "claim_until", 1)


def test_a_redis_that_is_full_is_reported_in_its_own_words(store: JobStore) -> None:
    store.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(RedisAway) as raised:
            made(store)
    finally:
        store.client.config_set("maxmemory", 0)
    told = "Redis refuses: command not allowed when used memory > 'maxmemory'. (OutOfMemoryError)"
    assert str(raised.value) == told


def test_a_changed_password_is_reported_by_each_call(store: JobStore, redis_url: str) -> None:
    (known,) = store.client.config_get("requirepass").values()
    store.client.config_set("requirepass", "changed")
    try:
        with open_redis(redis_url) as client:
            late = JobStore(client, FakeClock())
            for _ in ("refused", "a moment later"):
                with pytest.raises(RedisAway, match="refuses the user or the password: correct REDIS_URL"):
                    late.counts()
    finally:
        store.client.config_set("requirepass", known)


def test_invalid_numbers_of_another_program_stop_nobody(store: JobStore) -> None:
    job_id = made(store)
    store.client.hset(job_id, mapping={"claim": "other", "claim_until": "soon", "deaths": "many"})
    assert store.claim(job_id, "t", 60, 5).result is ClaimResult.CLAIMED
    store.end_ready(job_id, "t", "jobs/x/output.png", "image/png", "w")
    for give_back in (lambda: store.uncache(job_id), lambda: store.run(scripts.UNCACHE_PAGE, [scripts.CACHED], [0, 9])):
        store.run(scripts.CACHE_PAGE, [scripts.READY], [0, 9, "dispatcher", 60_000, 9])
        store.client.hset(job_id, "cached_until", "later")
        give_back()
        assert sets_of(store, job_id) == ["ready"]


# --- making and removing --------------------------------------------------------------------------------------------


def test_a_new_job_is_pending_with_what_was_asked(store: JobStore) -> None:
    asked = TextRequest("a \u2028 fox\n", "blur", ("ink", "ä"), 64, 2048, 150, 2**53 - 1)
    job = ImageJob(str(uuid4()), "pending", JobType.TEXT, "ann", text=asked)
    store.create(job, text_fields(asked))
    found = store.get(job.job_id)
    assert found
    assert found.text == asked
    assert (found.status, found.user_id, found.attempt, found.in_table) == ("pending", "ann", 0, False)
    assert found.created_at == found.updated_at == "2026-01-01T00:00:00.000000+00:00"
    assert sets_of(store, job.job_id) == ["pending"]


def test_one_key_makes_one_job_also_at_once_and_after_its_end(store: JobStore) -> None:
    ids = at_once([lambda: made(store, "key")] * 12)
    assert len(set(ids)) == 1
    assert store.counts()["jobs:status:pending"] == 1
    assert made(store, "key", "bob") != ids[0]
    assert made(store, "other") != ids[0]
    assert store.known("ann", "key") == ids[0]
    assert store.remove(ids[0])
    assert made(store, "key") == ids[0]
    assert store.get(ids[0]) is None, "an ended job is not created again"
    [place] = [it for it in store.client.scan_iter("jobs:idempotency:ann:*") if store.client.get(it) == ids[0]]
    assert IDEMPOTENCY_S - 60 < store.client.ttl(place) <= IDEMPOTENCY_S


@pytest.mark.parametrize("key", ["\ud800", "a:b", "*", "é" * 200, "\0"])
def test_any_text_is_a_key(store: JobStore, key: str) -> None:
    assert made(store, key) == made(store, key) != made(store, key + "x")


def test_creating_again_changes_nothing(store: JobStore) -> None:
    job = new_job()
    store.create(job, text_fields(job.text))
    store.claim(job.job_id, "t", 60, 5)
    store.end_ready(job.job_id, "t", "k", "image/png", "A")
    store.create(job, text_fields(job.text))
    assert sets_of(store, job.job_id) == ["ready"]


def test_a_job_that_a_worker_has_or_that_was_sent_is_not_withdrawn(store: JobStore) -> None:
    taken, sent, free = new_job(), new_job(), new_job()
    for job in (taken, sent, free):
        store.create(job, text_fields(job.text), job.job_id)
    store.claim(taken.job_id, "t", 60, 5)
    store.sent(sent.job_id)
    assert [store.withdraw(it, it.job_id) for it in (taken, sent, free)] == [False, False, True]
    assert store.get(free.job_id) is None
    assert store.known("ann", free.job_id) is None
    assert sets_of(store, free.job_id) == []
    assert not store.withdraw(free)
    assert [store.sent(it.job_id) for it in (sent, free)] == [True, False]
    assert store.get(free.job_id) is None


def test_either_the_worker_or_the_one_who_withdraws_has_the_job(store: JobStore) -> None:
    for _ in range(50):
        job = new_job()
        store.create(job, text_fields(job.text))
        claimed, withdrawn = at_once(
            [lambda it=job: store.claim(it.job_id, "t", 60, 5).result, lambda it=job: store.withdraw(it)]
        )
        assert (claimed, withdrawn) in ((ClaimResult.CLAIMED, False), (ClaimResult.GONE, True))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "jobs:status:pending",
        "A3F0C5D2-0000-4000-8000-00000000000A",
        "{a3f0c5d2-0000-4000-8000-00000000000a}",
        "\ud800",
    ],
)
def test_what_is_not_an_id_is_not_a_job(store: JobStore, text: str) -> None:
    made(store)
    assert not is_job_id(text)
    assert store.get(text) is None
    if "\ud800" not in text:
        store.settle(text)
    assert store.counts()["jobs:status:pending"] == 1


# --- claims ---------------------------------------------------------------------------------------------------------


def test_one_of_many_workers_has_the_job(store: JobStore) -> None:
    job_id = made(store)
    taken = at_once([lambda n=n: store.claim(job_id, f"t{n}", 60, 5) for n in range(12)])
    assert sorted(it.result for it in taken) == [ClaimResult.CLAIMED] + [ClaimResult.HELD] * 11
    assert all(30 < it.held_s <= 60 for it in taken if it.result is ClaimResult.HELD)


def test_one_of_many_workers_that_wait_for_a_dead_one_gets_the_job(store: JobStore) -> None:
    job_id = made(store)
    store.claim(job_id, "dead", 60, 5)
    expired(store, job_id)
    taken = at_once([lambda n=n: store.claim(job_id, f"t{n}", 60, 5).result for n in range(12)])
    assert sorted(taken) == [ClaimResult.CLAIMED] + [ClaimResult.HELD] * 11
    assert store.fields(job_id)["deaths"] == "1"


def test_a_claim_with_the_same_token_is_renewed_and_is_not_a_death(store: JobStore) -> None:
    job_id = made(store)
    for _ in range(3):
        assert store.claim(job_id, "t", 60, 1).result is ClaimResult.CLAIMED
        expired(store, job_id)
    assert "deaths" not in store.fields(job_id)
    assert store.renew(job_id, "t", 60) is WriteResult.DONE


def test_the_last_death_that_is_allowed_exhausts_the_job(store: JobStore) -> None:
    job_id = made(store)
    for number in range(3):
        assert store.claim(job_id, f"t{number}", 60, 3).result is ClaimResult.CLAIMED
        expired(store, job_id)
    assert store.claim(job_id, "last", 60, 3).result is ClaimResult.EXHAUSTED
    assert store.end_failed(job_id, "last", "three workers died of it") is WriteResult.DONE
    assert sets_of(store, job_id) == ["failed"]


def test_what_is_given_back_is_not_a_death(store: JobStore) -> None:
    job_id = made(store)
    for number in range(5):
        assert store.claim(job_id, f"t{number}", 60, 1).result is ClaimResult.CLAIMED
        store.update(job_id, f"t{number}", 60, {"status": "processing_comfyui", "prompt_id": "p"})
        store.clock.sleep(1)
        assert store.give_back(job_id, f"t{number}") is WriteResult.DONE
    fields = store.fields(job_id)
    assert fields["updated_at"] == store.now()
    assert fields["status"] == "pending"
    assert fields["prompt_id"] == "p"
    assert not fields.keys() & {"claim", "claim_until", "deaths"}


def test_a_worker_that_was_overtaken_can_change_nothing(store: JobStore) -> None:
    job_id = made(store)
    store.claim(job_id, "slow", 60, 5)
    expired(store, job_id)
    store.claim(job_id, "quick", 60, 5)
    before = store.fields(job_id)
    assert store.update(job_id, "slow", 60, {"status": "ready"}) is WriteResult.LOST
    assert store.renew(job_id, "slow", 60) is WriteResult.LOST
    assert store.give_back(job_id, "slow") is WriteResult.LOST
    assert store.end_ready(job_id, "slow", "k", "image/png", "A") is WriteResult.LOST
    assert store.end_failed(job_id, "slow", "x") is WriteResult.LOST
    assert store.fields(job_id) == before


def test_ended_once_it_stays_as_it_ended(store: JobStore) -> None:
    job_id = made(store)
    store.claim(job_id, "t", 60, 5)
    assert store.end_ready(job_id, "t", "k", "image/png", "A") is WriteResult.DONE
    store.client.smove(scripts.READY, scripts.CACHED, job_id)
    assert store.end_ready(job_id, "t", "k", "image/png", "A") is WriteResult.DONE, "again, as after a lost answer"
    assert sets_of(store, job_id) == ["dispatcher_cache_processing"]
    assert store.end_failed(job_id, "other", "x") is WriteResult.LOST
    assert store.claim(job_id, "t", 60, 5).result is ClaimResult.DONE
    assert store.remove(job_id)
    assert store.end_ready(job_id, "t", "k", "image/png", "A") is WriteResult.GONE
    assert store.client.dbsize() == 0


def test_a_pause_ends_when_the_claim_is_lost_and_when_the_worker_stops(store: JobStore) -> None:
    job_id, began = made(store), time.monotonic()
    store.claim(job_id, "t", 60, 5)
    with HeldJob(store, job_id, "t", 0.3) as held:
        store.client.hset(job_id, "claim", "another")
        with pytest.raises(JobLost):
            held.pause(60)
    with HeldJob(store, job_id, "another", 60) as held:
        Timer(0.1, held.halt).start()
        with pytest.raises(JobInterrupted):
            held.pause(60)
    assert time.monotonic() - began < 60


def test_a_removal_and_an_end_at_once_leave_nothing(store: JobStore) -> None:
    for _ in range(50):
        job_id = made(store)
        store.claim(job_id, "t", 60, 5)
        at_once(
            [
                lambda it=job_id: store.end_ready(it, "t", "k", "image/png", "A"),
                lambda it=job_id: store.remove(it),
                lambda it=job_id: store.settle(it),
            ]
        )
        assert store.client.dbsize() == 0


def test_a_job_is_in_one_set_whatever_happens_at_once(store: JobStore) -> None:
    for _ in range(30):
        job_id = made(store)
        store.claim(job_id, "t", 60, 5)
        at_once(
            [
                lambda it=job_id: store.end_failed(it, "t", "x"),
                lambda it=job_id: store.requeue(it),
                lambda it=job_id: store.settle(it),
                lambda it=job_id: store.claim(it, "u", 60, 5),
            ]
        )
        wanted = "failed" if store.fields(job_id)["status"] == "failed" else "pending"
        assert sets_of(store, job_id) == [wanted]


def test_a_requeue_begins_a_failed_job_anew_and_leaves_one_under_way_to_its_worker(store: JobStore) -> None:
    job_id = made(store)
    store.claim(job_id, "t", 60, 5)
    store.update(job_id, "t", 60, {"status": "processing_comfyui", "attempt": "1", "prompt_id": "p"})
    before = store.fields(job_id)
    store.clock.sleep(1)
    assert store.requeue(job_id)
    assert store.fields(job_id) == before
    store.end_failed(job_id, "t", "x")
    store.clock.sleep(1)
    assert store.requeue(job_id)
    fields = store.fields(job_id)
    assert (fields["status"], fields["attempts_before"], fields["attempt"]) == ("pending", "1", "2")
    assert fields["updated_at"] == store.now(), "its message is sent now: no sweeper needs to"


# --- sweeping -------------------------------------------------------------------------------------------------------


def test_what_a_dispatcher_has_is_returned_by_itself_or_after_its_time(store: JobStore) -> None:
    job_id = made(store)
    store.claim(job_id, "t", 60, 5)
    store.end_ready(job_id, "t", "k", "image/png", "A")
    store.run(scripts.CACHE_PAGE, [scripts.READY], [0, 9, "dispatcher", 60_000, 9])
    assert [store.uncache(job_id), store.uncache(job_id, "other")] == [False, False]
    assert sets_of(store, job_id) == ["dispatcher_cache_processing"]
    assert store.uncache(job_id, "dispatcher")
    assert sets_of(store, job_id) == ["ready"]


def test_one_of_several_that_touch_a_job_does(store: JobStore) -> None:
    job_id = made(store)
    [summary] = store.members(scripts.PENDING)
    store.clock.sleep(1)
    assert sorted(at_once([lambda: store.touch(summary)] * 8)) == [False] * 7 + [True]
    store.remove(job_id)
    assert not store.touch(summary)
    assert not store.touch(summary._replace(updated_at=""))
    assert store.client.dbsize() == 0


def test_a_count_of_requests_without_an_end_ends(store: JobStore) -> None:
    """A program that restores keys without their expiry would otherwise lock the user out for ever."""
    store.client.set("jobs:rate:ann", 1000)
    assert 0 < store.allow("ann", 5) <= 60
    assert store.client.pttl("jobs:rate:ann") > 0


def test_members_come_whole_and_tolerate_strangers(store: JobStore) -> None:
    ids = {made(store) for _ in range(1200)}
    store.client.sadd(scripts.PENDING, "stranger", "jobs:status:pending")
    odd = ids.pop()
    store.client.hset(odd, mapping={"claim_until": "soon", "cached_until": "nan", "in_table": "yes"})
    found = {it.job_id: it for it in store.members(scripts.PENDING)}
    assert found.keys() == ids | {odd, "stranger", "jobs:status:pending"}
    assert found["stranger"].status == ""
    assert not found[odd].in_table
    store.client.sadd(scripts.CACHED, odd)
    for name, changed in ((scripts.PENDING, "9"), (scripts.CACHED, "")):
        assert odd in {it.job_id for it in store.members(name, calm=UNDER_WAY, changed=changed)}


def test_statuses_of_many(store: JobStore) -> None:
    job_id, other = made(store), str(uuid4())
    store.client.set(other, "text")
    bare = str(uuid4())
    store.client.hset(bare, "x", "y")
    assert store.statuses([job_id, "", other, bare, str(uuid4())]) == ["pending", None, "", "", None]
    assert store.statuses([]) == []


def test_alone_is_one_of_many_for_a_while(store: JobStore) -> None:
    assert sorted(at_once([lambda: store.take_lock("x", 60)] * 8)) == [False] * 7 + [True]
    store.release_lock("x")
    assert store.take_lock("x", 60)


def test_a_lock_that_has_expired_is_neither_renewed_nor_released_for_another_holder(store: JobStore) -> None:
    other = JobStore(store.client, store.clock)
    assert store.take_lock("y", 60)
    assert store.renew_lock("y", 60)
    store.client.delete("jobs:alone:y")  # as when its time is up
    assert not store.renew_lock("y", 60)
    assert other.take_lock("y", 1)
    assert not store.renew_lock("y", 60)
    store.release_lock("y")
    assert 0 < store.client.pttl("jobs:alone:y") <= 1000
    assert not store.take_lock("y", 60)


def test_only_the_first_delivery_counts(store: JobStore) -> None:
    job_id = made(store)
    store.claim(job_id, "t", 60, 5)
    store.end_failed(job_id, "t", "x")
    assert not store.delivered(job_id, "2026-01-01T00:00:00+00:00", "ready")
    assert store.delivered(job_id, "2026-01-01T00:00:00+00:00", "failed")
    assert not store.delivered(job_id, "2026-01-02T00:00:00+00:00", "failed")
    store.remove(job_id)
    assert not store.delivered(job_id, "x", "failed")
    assert store.client.dbsize() == 0


def test_requests_of_a_minute_are_counted_together(store: JobStore) -> None:
    waits = at_once([lambda: store.allow("ann", 5)] * 12)
    assert len([it for it in waits if it == 0]) == 5
    assert all(0 < it <= 60 for it in waits if it)
    assert store.allow("bob", 5) == 0


# --- hashes of other programs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"styles": "[1, null]", "width": "1e3", "seed": "-5", "attempt": "9" * 40},
        {"styles": "{", "width": "", "steps": "٣", "in_table": "true"},
        {"styles": '["' + "[" * 5000, "height": "0x10"},
    ],
)
def test_any_hash_is_read(fields: dict[str, str]) -> None:
    job = job_of(str(uuid4()), fields)
    assert job.text.styles == ()
    assert (job.text.width, job.attempt, job.in_table) == (1024, 0, False)


def test_a_hash_with_bytes_that_are_no_text_is_read(store: JobStore) -> None:
    job_id = made(store)
    store.client.hset(job_id, "error", b"\xff\xfe")
    job = store.get(job_id)
    assert job
    assert job.error == "\ufffd\ufffd"
