"""A ledger in a bucket beyond the contract: its documents, its names, its lease, and its requests."""

import json
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from retake.bucket import ANY, Bucket
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import CountingBucket
from retake.clock import FakeClock
from retake.errors import LeaseHeld, LeaseLost, StateError, StorageError
from retake.runs import bucket_index
from retake.runs.bucket_index import ENDED, OPEN, TALLY
from retake.runs.bucket_ledger import PATIENCE_S, BucketLedger
from retake.runs.run import CHANGED, ERROR, Event, Run, StaleRun, UnknownRun
from retake.runs.run_document import DROPPED, MAX_DOCUMENT_BYTES, segment_key
from retake.runs.states import RunStatus, Trigger


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def ledger(bucket: MemoryBucket, clock: FakeClock) -> BucketLedger:
    return BucketLedger(bucket, clock)


def key_of(run: Run) -> str:
    return f"runs/{run.run_id}.json"


def edit(bucket: Bucket, run: Run, **changes: Any) -> None:
    """Change the document by hand."""
    bucket.write(key_of(run), json.dumps(json.loads(bucket.read(key_of(run))[0]) | changes).encode(), ANY)


def run_to_end(ledger: BucketLedger, name: str, trigger: Trigger = Trigger.COMPLETED, pipeline: str = "story") -> Run:
    run = ledger.create_for_task(name, f"{name}#1", actor="cron", pipeline=pipeline)
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="cron")
    return ledger.move(run, trigger, actor="cron")


# --- documents --------------------------------------------------------------------------------------------------


def test_a_document_can_be_read_by_people(ledger: BucketLedger, bucket: MemoryBucket) -> None:
    run = ledger.create_for_task("утро", "утро#1", actor="cron", pipeline="story/ru", trace_id="tr")
    text = bucket.read(key_of(run))[0].decode()
    assert '  "task_id": "утро",\n' in text
    assert '  "created_at": "2026-01-01T00:00:00Z",\n' in text
    assert text.endswith("}\n")


def test_keys_that_nobody_knows_stay(ledger: BucketLedger, bucket: MemoryBucket) -> None:
    run = ledger.create_for_task("t", "t#1", actor="cron")
    edit(bucket, run, remark="do not touch")
    ledger.move(run, Trigger.WORKER_CLAIM, actor="cron")
    assert json.loads(bucket.read(key_of(run))[0])["remark"] == "do not touch"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", 0),
        ("status", "on holiday"),
        ("created_at", "yesterday"),
        ("next_retry_at", "2026-01-01T00:00:00Z"),
        ("version", "1"),
        ("events", []),
        ("events", [{"seq": 1, "kind": "x", "at": "2026-01-01T00:00:00Z", "trace_id": "tr", "payload": 3}]),
        ("run_id", "run-0123456789abcdef"),
        ("idempotency_key", "another"),
        ("resumes", None),
        ("retries", -1),
        ("segments", ["../../config"]),
    ],
)
def test_an_invalid_document_is_named_and_left_as_it_is(
    ledger: BucketLedger, bucket: MemoryBucket, field: str, value: object
) -> None:
    run = ledger.create_for_task("t", "t#1", actor="cron")
    edit(bucket, run, **{field: value})
    before = bucket.read(key_of(run))
    for call in (
        lambda: ledger.get(run.run_id),
        lambda: ledger.create_for_task("t", "t#1", actor="cron"),
        lambda: ledger.create_for_task("t", "t#2", actor="cron"),  # nobody can tell which attempt it is
        lambda: ledger.move(run, Trigger.WORKER_CLAIM, actor="cron"),
        lambda: ledger.note(run, "run.note", {}, actor="cron"),
    ):
        with pytest.raises(StateError) as refusal:
            call()
        assert key_of(run) in str(refusal.value)
        assert field in str(refusal.value) or field == "idempotency_key"
    assert bucket.read(key_of(run)) == before


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_not_a_document_at_all_is_named_too(ledger: BucketLedger, bucket: MemoryBucket, data: bytes) -> None:
    run = ledger.create_for_task("t", "t#1", actor="cron")
    bucket.write(key_of(run), data, ANY)
    with pytest.raises(StateError, match="the whole document"):
        ledger.get(run.run_id)


def test_one_document_without_sense_does_not_hide_the_others(ledger: BucketLedger, bucket: MemoryBucket) -> None:
    broken, sound = (ledger.create_for_task(name, f"{name}#1", actor="cron") for name in ("broken", "sound"))
    ended = run_to_end(ledger, "ended")
    edit(bucket, broken, status="?")
    assert set(ledger.runs()) == {sound, ended}
    assert ledger.counts()[RunStatus.QUEUED] == 1
    assert ledger.claim("w") is not None
    run_to_end(ledger, "another")


def test_what_is_not_a_runs_id_names_no_run(ledger: BucketLedger) -> None:
    for text in ("", "../../etc/passwd", "run-XYZ", "run-0123456789abcdef/x", "index/open/x"):
        with pytest.raises(UnknownRun):
            ledger.get(text)


# --- the size of a document -----------------------------------------------------------------------------------------


def documents_of(bucket: MemoryBucket, run: Run) -> list[list[int]]:
    """Return the numbers of the events in each segment, and in the run's document."""
    document = json.loads(bucket.read(key_of(run))[0])
    found = [bucket.read(segment_key(run.run_id, name))[0] for name in document.get("segments", [])]
    return [[event["seq"] for event in it["events"]] for it in (*map(json.loads, found), document)]


def retried(ledger: BucketLedger, clock: FakeClock, times: int, notes: int = 0) -> Run:
    """Return a run that failed `times` times, with `notes` notes before each failure."""
    run = ledger.create_for_task("t", "t#1", actor="cron")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="cron")
    for number in range(times):
        clock.sleep(1)
        for text in range(notes):
            ledger.note(run, "run.note", {"text": f"{number}.{text}"}, actor="cron")
        record = {"error_code": "ERR_TEMPORARY_X", "message": str(number)}
        run = ledger.move(run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=clock.now(), error=record)
        run = ledger.move(run, Trigger.RETRY_DUE, actor="cron", worker="w")
    return run


def test_older_events_move_into_segments_and_all_of_them_are_reported(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger = BucketLedger(bucket, clock, max_events=8)
    run = retried(ledger, clock, times=10, notes=1)
    *segments, last = documents_of(bucket, run)
    assert len(segments) > 3
    assert len(last) <= 8
    assert [seq for part in (*segments, last) for seq in part] == list(range(1, 43))
    for reader in (ledger, BucketLedger(bucket, clock)):
        assert [event.seq for event in reader.events(run.run_id)] == list(range(1, 43))
    assert (run.retries, ledger.get(run.run_id).retries) == (10, 10)


def test_a_segment_is_written_before_the_document_that_names_it_and_never_again(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    failing = FailingBucket(bucket)
    run = retried(BucketLedger(failing, clock, max_events=8), clock, times=10)
    writes = [key for operation, key in failing.operations if operation == "write"]
    segments = [key for key in writes if key.startswith("runs/events/")]
    assert len(segments) == len(set(segments)) > 0
    for key in segments:
        assert writes[writes.index(key) + 1] == key_of(run)


def test_a_document_of_few_but_large_events_is_divided_too(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger = BucketLedger(bucket, clock)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    for number in range(8):
        ledger.note(run, "run.note", {"number": number, "text": "x" * 400_000}, actor="cron")
    assert len(bucket.read(key_of(run))[0]) <= MAX_DOCUMENT_BYTES
    assert [event.payload.get("number") for event in ledger.events(run.run_id)] == [None, *range(8)]


def test_a_segment_that_is_gone_is_named_and_the_run_can_still_be_worked_on(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    ledger = BucketLedger(bucket, clock, max_events=8)
    run = retried(ledger, clock, times=10)
    (first, *_) = json.loads(bucket.read(key_of(run))[0])["segments"]
    bucket.delete(segment_key(run.run_id, first))
    with pytest.raises(StateError, match=f"{segment_key(run.run_id, first)}: is missing"):
        ledger.events(run.run_id)
    assert ledger.move(run, Trigger.COMPLETED, actor="cron").ended


@pytest.mark.parametrize("data", [b"", b"[]", b'{"run_id": "run-0123456789abcdef", "events": []}', b'{"events": 3}'])
def test_an_invalid_segment_is_named(bucket: MemoryBucket, clock: FakeClock, data: bytes) -> None:
    ledger = BucketLedger(bucket, clock, max_events=8)
    run = retried(ledger, clock, times=10)
    (first, *_) = json.loads(bucket.read(key_of(run))[0])["segments"]
    bucket.write(segment_key(run.run_id, first), data, ANY)
    with pytest.raises(StateError, match=segment_key(run.run_id, first)):
        ledger.events(run.run_id)


def test_beyond_the_bound_notes_are_dropped_and_events_says_so_but_no_transition_ever(
    bucket: MemoryBucket, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retake.runs.run_document.MAX_SEGMENTS", 2)
    ledger = BucketLedger(bucket, clock, max_events=8)
    run = retried(ledger, clock, times=20, notes=9)
    events = ledger.events(run.run_id)
    changes = [event.payload for event in events if event.kind == CHANGED]
    assert len(changes) == run.version == 42
    assert len([event for event in events if event.kind == ERROR]) == 20
    dropped = [event.payload for event in events if event.kind == DROPPED]
    notes = [event for event in events if event.kind == "run.note"]
    assert sum(it["count"] for it in dropped) + len(notes) == 180
    assert dropped[0]["text"].startswith(f"{dropped[0]['count']} notes were dropped, the last of them of 2026-01-01T")
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert len(json.loads(bucket.read(key_of(run))[0])["events"]) <= 8


def test_notes_alone_do_not_make_a_run_grow_without_end(
    bucket: MemoryBucket, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retake.runs.run_document.MAX_SEGMENTS", 2)
    ledger = BucketLedger(bucket, clock, max_events=8)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    for number in range(300):
        ledger.note(run, "run.note", {"number": number}, actor="cron")
    assert len(documents_of(bucket, run)) == 3
    (mark,) = (event.payload for event in ledger.events(run.run_id) if event.kind == DROPPED)
    assert mark["count"] > 270
    assert ledger.events(run.run_id)[-1].seq == 301


def test_a_document_of_an_older_version_is_counted_from_its_events(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger = BucketLedger(bucket, clock)
    run = retried(ledger, clock, times=3)
    run = ledger.move(run, Trigger.PROCESS_RESTART, actor="worker")
    run = ledger.move(run, Trigger.RECOVERY_RESUME, actor="cron")
    run = ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery")
    document = json.loads(bucket.read(key_of(run))[0])
    assert (document.pop("retries"), document.pop("crashes")) == (3, 1)
    bucket.write(key_of(run), json.dumps(document).encode(), ANY)
    assert ledger.get(run.run_id) == run
    after = ledger.move(run, Trigger.RECOVERY_RESUME, actor="cron")
    assert (after.retries, after.crashes) == (3, 1)
    assert json.loads(bucket.read(key_of(run))[0])["crashes"] == 1


def test_signs_of_life_are_no_events(ledger: BucketLedger, bucket: MemoryBucket) -> None:
    run = ledger.move(ledger.create_for_task("t", "t#1", actor="cron"), Trigger.WORKER_CLAIM, actor="cron")
    for _ in range(20):
        run = ledger.heartbeat(run)
    assert len(ledger.events(run.run_id)) == 2


# --- what is asked of the bucket --------------------------------------------------------------------------------


def asked(bucket: MemoryBucket, clock: FakeClock) -> tuple[BucketLedger, CountingBucket]:
    counting = CountingBucket(bucket)
    return BucketLedger(counting, clock, lease=bucket.lease("story", "a tick")), counting


def test_under_a_lease_a_move_of_an_open_run_is_one_write(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger, counting = asked(bucket, clock)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    assert counting.counts == Counter(read=1, list=1, write=3)
    counting.counts.clear()
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="cron")
    ledger.note(run, "run.step.done", {"step": "imagine"}, actor="cron")
    ledger.heartbeat(run)
    run = ledger.move(run, Trigger.RETRYABLE_ERROR, actor="cron", next_retry_at=clock.now())
    assert counting.counts == Counter(write=4)
    counting.counts.clear()
    run = ledger.move(run, Trigger.RETRY_DUE, actor="cron")
    assert counting.counts == Counter(list=1, write=1)  # are there other runs of the task?


def test_the_end_of_a_run_is_one_document_and_two_names(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger, counting = asked(bucket, clock)
    run_to_end(ledger, "of the first day, on which there is no tally")
    clock.sleep(24 * 3600)
    run_to_end(ledger, "first of the day")
    run = ledger.create_for_task("t", "t#1", actor="cron")
    counting.counts.clear()
    ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
    assert counting.counts == Counter(read=1, write=2, delete=1)


def test_a_transition_and_its_event_are_one_write(bucket: MemoryBucket, clock: FakeClock) -> None:
    run = BucketLedger(bucket, clock).create_for_task("t", "t#1", actor="cron")
    for after, version in ((False, 1), (True, 2)):
        failing = FailingBucket(bucket, Fault(StorageError, operation="write", after=after))
        with pytest.raises(StorageError):
            BucketLedger(failing, clock).move(run, Trigger.WORKER_CLAIM, actor="cron")
        ledger = BucketLedger(bucket, clock)
        assert (ledger.get(run.run_id).version, len(ledger.events(run.run_id))) == (version, version)


def test_an_idle_worker_takes_no_lease_and_writes_nothing(bucket: MemoryBucket, clock: FakeClock) -> None:
    run_to_end(BucketLedger(bucket, clock), "done")
    counting = CountingBucket(bucket)
    assert BucketLedger(counting, clock).claim("w") is None
    assert counting.counts == Counter(list=1)


def test_without_a_lease_that_lasts_nothing_is_kept_in_mind(clock: FakeClock) -> None:
    store = MemoryStore()
    ours, theirs = (BucketLedger(MemoryBucket(store), clock) for _ in range(2))
    run = ours.create_for_task("t", "t#1", actor="cron")
    theirs.move(run, Trigger.WORKER_CLAIM, actor="worker")
    with pytest.raises(StaleRun):
        ours.move(run, Trigger.CANCEL_COMMAND, actor="operator")


def test_under_one_lease_a_note_by_another_process_is_seen_before_it_is_written_over(
    bucket: MemoryBucket, clock: FakeClock
) -> None:
    """A script that joined its manager's lease adds something; the manager remembers the document as it was."""
    lease = bucket.lease("story", "a tick")
    manager, script = (BucketLedger(bucket, clock, lease=lease) for _ in range(2))
    run = manager.create_for_task("t", "t#1", actor="cron")
    script.note(run, "run.step.done", {"step": "content"}, actor="cron")
    run = manager.move(run, Trigger.WORKER_CLAIM, actor="cron")
    assert [event.seq for event in manager.events(run.run_id)] == [1, 2, 3]


# --- the lease --------------------------------------------------------------------------------------------------


def test_a_change_waits_for_who_has_the_lease_and_then_says_so(bucket: MemoryBucket, clock: FakeClock) -> None:
    bucket.lease("runs", "somebody else")
    ledger, before = BucketLedger(bucket, clock), clock.now()
    with pytest.raises(LeaseHeld, match="somebody else"):
        ledger.create_for_task("t", "t#1", actor="cron")
    assert PATIENCE_S <= (clock.now() - before).total_seconds() < PATIENCE_S + 1
    assert bucket.list("runs/") == []


def test_a_change_goes_on_as_soon_as_the_lease_is_free(bucket: MemoryBucket, clock: FakeClock) -> None:
    class Patient(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            held.release()

    held = bucket.lease("runs", "somebody else")
    assert BucketLedger(bucket, Patient()).create_for_task("t", "t#1", actor="cron").attempt == 1


def test_the_lease_is_given_back_after_each_change(bucket: MemoryBucket, ledger: BucketLedger) -> None:
    run = ledger.create_for_task("t", "t#1", actor="cron")
    with pytest.raises(StaleRun):
        ledger.move(run._replace(version=7), Trigger.WORKER_CLAIM, actor="cron")
    assert bucket.store.holders["runs"] == []


def test_nothing_is_written_once_the_lease_is_lost(bucket: MemoryBucket, clock: FakeClock) -> None:
    lease = bucket.lease("story", "a tick")
    ledger = BucketLedger(bucket, clock, lease=lease)
    run = ledger.create_for_task("t", "t#1", actor="cron")
    before = dict(bucket.store.objects)
    lease.release()
    for call in (
        lambda: ledger.move(run, Trigger.WORKER_CLAIM, actor="cron"),
        lambda: ledger.create_for_task("t", "t#2", actor="cron"),
        lambda: ledger.note(run, "run.note", {}, actor="cron"),
    ):
        with pytest.raises(LeaseLost):
            call()
    assert bucket.store.objects == before


def test_whoever_changes_the_storys_runs_needs_the_storys_lease(bucket: MemoryBucket, clock: FakeClock) -> None:
    bucket.lease("story", "a tick")
    with pytest.raises(LeaseHeld, match="a tick"):
        BucketLedger(bucket, clock, lease_name="story").create_for_task("t", "t#1", actor="operator")


# --- many ended runs --------------------------------------------------------------------------------------------


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.runs.bucket_index.SEGMENT_SIZE", 4)


@pytest.mark.usefixtures("small_segments")
def test_what_has_ended_is_counted_without_being_read(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger = BucketLedger(bucket, clock)
    for number in range(30):
        clock.sleep(2 * 3600)
        trigger = Trigger.NON_RETRYABLE_ERROR if number % 5 == 0 else Trigger.COMPLETED
        run_to_end(ledger, f"t{number}", trigger, pipeline="ab"[number % 2])
    ledger.create_for_task("open", "open#1", actor="cron")
    counting = CountingBucket(bucket)
    counts = BucketLedger(counting, clock).counts()
    assert (counts[RunStatus.SUCCEEDED], counts[RunStatus.FAILED], counts[RunStatus.QUEUED]) == (24, 6, 1)
    assert counting.counts == Counter(list=2, read=2)  # open names, the open segment; the tally, the open run
    assert BucketLedger(bucket, clock).counts(pipeline="b")[RunStatus.FAILED] == 3


@pytest.mark.usefixtures("small_segments")
def test_the_last_ones_are_found_without_the_others_being_read(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger = BucketLedger(bucket, clock)
    ended = []
    for number in range(30):
        clock.sleep(2 * 3600)
        ended.append(run_to_end(ledger, f"t{number}", Trigger.CANCEL_COMMAND if number == 3 else Trigger.COMPLETED))
    counting = CountingBucket(bucket)
    ledger = BucketLedger(counting, clock)
    assert ledger.runs(limit=6) == ended[:-7:-1]
    assert counting.counts["read"] == 6 + 1
    counting.counts.clear()
    assert ledger.runs(status=[RunStatus.CANCELLED]) == [ended[3]]
    assert counting.counts == Counter(read=2, list=3)  # of all segments, only the one that has such a run
    assert ledger.runs(limit=100) == ended[::-1]
    assert ledger.runs(limit=0) == []


@pytest.mark.usefixtures("small_segments")
def test_those_that_ended_in_one_moment_are_listed_by_id(ledger: BucketLedger) -> None:
    """Not by how they ended, nor by where their names are."""
    ways = (Trigger.COMPLETED, Trigger.NON_RETRYABLE_ERROR, Trigger.CANCEL_COMMAND)
    ended = sorted(run_to_end(ledger, f"t{number}", ways[number % 3]).run_id for number in range(11))
    for limit in range(12):
        assert [run.run_id for run in ledger.runs(limit=limit)] == ended[::-1][:limit]


def test_a_clock_that_was_set_back_loses_nobody(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger = BucketLedger(bucket, clock)
    for number, days in enumerate((0, 400, -400, 1, -1, 0)):
        clock.sleep(60)
        clock.moment += timedelta(days=days)
        run_to_end(ledger, f"t{number}")
    assert BucketLedger(bucket, clock).counts()[RunStatus.SUCCEEDED] == 6
    assert len(ledger.runs()) == 6


@pytest.mark.parametrize("data", [b"", b"{}", b'{"open_segment": 3, "closed_segments": {}}', b"[1]", b'"x"'])
def test_an_invalid_tally_is_counted_anew(bucket: MemoryBucket, clock: FakeClock, data: bytes) -> None:
    ledger = BucketLedger(bucket, clock)
    for number in range(3):
        clock.sleep(24 * 3600)
        run_to_end(ledger, f"t{number}")
    bucket.write(TALLY, data, ANY)
    assert ledger.counts()[RunStatus.SUCCEEDED] == len(ledger.runs()) == 3
    run_to_end(ledger, "t3")
    tally = bucket_index.read_tally(bucket)
    assert tally is not None
    assert ledger.counts()[RunStatus.SUCCEEDED] == 4


def test_a_first_end_that_a_crash_left_unnamed_needs_no_tally_later(bucket: MemoryBucket, clock: FakeClock) -> None:
    ledger = BucketLedger(bucket, clock)
    run = run_to_end(ledger, "t")
    bucket.delete(bucket.list(ENDED)[0].key)
    bucket.write(f"{OPEN}story.{run.run_id}", b"", ANY)
    clock.sleep(24 * 3600)
    assert [run_to_end(ledger, "t2"), run] == ledger.runs()
    assert len({entry.key.split("/")[3] for entry in bucket.list(ENDED)}) == 1


def test_names_of_others_are_passed_over(bucket: MemoryBucket, ledger: BucketLedger) -> None:
    for key in (f"{OPEN}.keep", f"{OPEN}a.b", f"{ENDED}2026-01-01/README", f"{ENDED}x", "runs/index/tasks/a/b"):
        bucket.write(key, b"", ANY)
    run = run_to_end(ledger, "t")
    assert ledger.runs() == [run]
    assert sum(ledger.counts().values()) == 1


# --- the idle path ----------------------------------------------------------------------------------------------


def test_it_is_loaded_without_anything_heavy() -> None:
    """A tick of the story loads it. From Python 3.14 on, logging itself loads dataclasses."""
    code = "import logging, sys; old = set(sys.modules); import retake.runs.bucket_ledger; print(*{*sys.modules} - old)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"dataclasses", "inspect", "sqlalchemy", "random", "tempfile", "subprocess", "socket", "http"}
    assert not heavy & set(ran.stdout.split())


def test_an_event_is_what_was_written(ledger: BucketLedger, bucket: MemoryBucket, clock: FakeClock) -> None:
    """A lone surrogate, which JSON can represent and UTF-8 cannot."""
    run = ledger.create_for_task("t", "t#1", actor="cron")
    written = ledger.note(run, "run.note", {"text": "\ud800 é"}, actor="cron")
    assert BucketLedger(bucket, clock).events(run.run_id)[-1] == written
    assert isinstance(written, Event)
