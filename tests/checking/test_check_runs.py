"""Runs in a bucket: planted damage on each kind of store, healthy ledgers, leftovers of crashes, and the cost."""

import json
import os
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import test_ledger_bucket_crash as crash
from damage import Damage, Site, assert_found, busy_world, trouble
from reading_world import ask
from run_damage import ROBOT, ROWS, SEGMENT, THIRD, WAITING, create, edited, ledger_of, site_with_runs, written
from s3_server import new_bucket

from retake.bucket import ANY, Bucket, Entry
from retake.bucket.b2.bucket import open_b2
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.bucket.s3 import S3Bucket
from retake.bucket.wrappers import CountingBucket
from retake.checking import Check, CheckReport, Scope
from retake.checking.bucket_runs import BucketRuns
from retake.clock import Clock, FakeClock
from retake.console.cancel import command as cancel
from retake.exit_codes import ExitCode
from retake.runs.bucket_index import OPEN, TASKS, ended_key, task_key
from retake.runs.bucket_ledger import LEASE, BucketLedger
from retake.runs.run import run_id_of
from retake.runs.run_document import MAX_EVENTS, run_key
from retake.runs.states import RunStatus, Trigger
from retake.sandbox.b2 import B2Sandbox

_numbers = count(1)


def runs_of(bucket: Bucket, clock: Clock, *, repair: bool = False, **more: object) -> CheckReport:
    """Check the runs in a bucket, and nothing else."""
    examination = BucketRuns("runs", "", leasable=lambda: bucket, leases=[LEASE], owner="test", mirrored=["story"])
    return Check([examination], Scope(bucket, clock)).run(repair=repair)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_damage_is_found(row: Damage) -> None:
    assert_found(row, site_with_runs())


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_damage_is_found_in_a_directory(row: Damage, tmp_path: Path) -> None:
    assert_found(row, site_with_runs(DirectoryBucket(str(tmp_path))))


@pytest.mark.parametrize("code", ["runs-open-twice", "run-without-generation"])
def test_the_run_that_a_finding_says_to_cancel_is_cancelled_and_nothing_else(code: str) -> None:
    site = site_with_runs()
    next(row for row in ROWS if row.code == code).plant(site)
    [finding] = [it for it in site.check().findings if it.code == code]
    assert "retake cancel RUN_ID" in finding.todo
    before = {run.run_id for run in ledger_of(site).runs(status=[RunStatus.CANCELLED])}
    run_id = re.findall(r"run-\w{16}", finding.what)[0]
    name = site.world.generation_id
    assert ask(cancel, site.context(), run=run_id, yes=False).exit_code == ExitCode.OK
    assert site.world.generation_id == name, "the generation goes on"
    assert {run.run_id for run in ledger_of(site).runs(status=[RunStatus.CANCELLED])} == {*before, run_id}
    assert code not in {it.code for it in site.check().findings}


FAR = [row for row in ROWS if row.name in ("no tally", "an end that is not listed", "an event is gone")]


@pytest.mark.parametrize("row", FAR, ids=str)
def test_damage_is_found_on_b2(row: Damage) -> None:
    with B2Sandbox() as sandbox:
        url = sandbox.storage_url(f"check-{next(_numbers)}")
        assert_found(row, site_with_runs(open_b2(url, environ=sandbox.environment())))


@pytest.fixture
def s3(s3_endpoint: str, s3_keys: None) -> S3Bucket:
    return S3Bucket(new_bucket(s3_endpoint))


@pytest.mark.parametrize("row", FAR, ids=str)
def test_damage_is_found_on_s3(row: Damage, s3: S3Bucket) -> None:
    assert_found(row, site_with_runs(s3))


# --- healthy ledgers --------------------------------------------------------------------------------------------------


def test_healthy_runs_have_no_finding() -> None:
    site = site_with_runs()
    report = runs_of(site.bucket, site.world.clock)
    assert [it for it in report.findings if it.code != "unknown-object"] == []
    assert report.looked_at["runs"] == 8
    assert report.looked_at["events"] > 30


def test_each_of_its_keys_is_known() -> None:
    site = site_with_runs()
    report = runs_of(site.bucket, site.world.clock)
    assert not [it.where for it in report.findings if it.where.startswith("runs/")]
    for key in ("runs/notes.txt", "runs/run-1.json", "runs/index/ended/x", "runs/events/run-1/1.json"):
        written(key)(site)
        assert key in [it.where for it in runs_of(site.bucket, site.world.clock).findings if it.level == "note"]


def test_runs_in_the_bucket_beside_the_channels_are_looked_at() -> None:
    site = site_with_runs()
    channels = Site(site.world, settings=site.settings._replace(channels=("en",)))
    assert channels.check().looked_at["runs"] == 8


def test_dropped_notes_leave_no_gap() -> None:
    clock, bucket = FakeClock(), MemoryBucket()
    ledger = BucketLedger(bucket, clock, max_events=4)
    run = create(ledger, "long", 1)
    for number in range(700):
        ledger.note(run, "remark", {"number": number}, actor="robot")
    events = ledger.events(run.run_id)
    assert len(events) < 700
    report = runs_of(bucket, clock)
    assert report.findings == []
    assert report.looked_at["events"] == len(events)


def test_documents_of_early_versions_have_no_counts() -> None:
    site = site_with_runs()
    edited(WAITING, lambda raw: (raw.pop("retries"), raw.pop("crashes")))(site)
    assert trouble(runs_of(site.bucket, site.world.clock)) == []


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own_lease", "max_events"), [(True, MAX_EVENTS), (False, 3)])
def test_a_death_at_any_operation_leaves_nothing_that_does_not_fit(own_lease: bool, max_events: int) -> None:
    points = [*crash.points(own_lease=own_lease, max_events=max_events)]
    for number, after in points[:: 1 if "RETAKE_SEEDS" in os.environ else 3]:
        world = crash.World(max_events)
        dying = FailingBucket(world.bucket(), Fault(Crash, number=number, after=after))
        with suppress(Crash):
            world.live(dying, own_lease=own_lease)
        world.store.end_leases()
        when = f"{'after' if after else 'before'} operation {number}"
        for _ in range(2):
            report = runs_of(world.bucket(), world.clock)
            assert {it.code for it in trouble(report)} <= {"nothing-here"}, f"death {when}: {report.findings}"
            world.live(world.bucket(), own_lease=own_lease)
            world.store.end_leases()


# --- repairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", ["story", LEASE])
def test_nothing_is_repaired_beside_a_tick_or_an_operator(lease: str) -> None:
    site = site_with_runs()
    site.bucket.delete("runs/index/ended.json")
    held = site.bucket.lease(lease, "another")
    report = site.check(repair=True)
    assert report.exit_code == ExitCode.TRY_LATER  # somebody was at work all the time
    assert "still-changing" in [it.code for it in report.findings]
    assert not report.done
    held.release()
    assert site.check(repair=True).whole


def test_what_is_younger_than_a_day_is_left_alone() -> None:
    site = site_with_runs()
    written(f"{SEGMENT}0009-0123456789ab.json", b"{}")(site)
    written(f"{OPEN}story.run-0123456789abcdef")(site)
    written(f"{TASKS}{'0' * 24}/run-0123456789abcdef")(site)
    assert not [it for it in site.check().findings if it.code in ("events-leftover", "index-entry-dangling")]


def test_after_a_repair_the_ledger_counts_and_lists_as_before() -> None:
    site = site_with_runs()
    ledger = ledger_of(site)
    before = ledger.counts(), ledger.runs()
    for entry in site.bucket.list("runs/index/ended"):
        site.bucket.delete(entry.key)
    assert ledger.counts() != before[0]
    assert site.check(repair=True).whole
    assert (ledger.counts(), ledger.runs()) == before
    assert [run.run_id for run in ledger.of_task("sort")][-1] == THIRD


# --- the cost ---------------------------------------------------------------------------------------------------------


class StreamedBucket(MemoryBucket):
    """A bucket that streams its listing, like stores that list in pages."""

    def scan(self, prefix: str) -> Iterator[Entry]:
        yield from (Entry(key, len(it.data), it.modified) for key, it in self.store.objects.items())


def filled(number: int) -> tuple[CountingBucket, FakeClock]:
    """Return a ledger with `number` ended runs, written as the ledger does."""
    template, clock = MemoryBucket(), FakeClock()
    ledger = BucketLedger(template, clock)
    run = ledger.move(create(ledger, "t@", 1), Trigger.CANCEL_COMMAND, actor="operator")
    bucket = StreamedBucket()
    data, segment = template.read(run_key(run.run_id))[0].decode(), "2026-01-01"
    for n in range(number):
        it = run._replace(task_id=f"t{n}", idempotency_key=f"t{n}#1", run_id=run_id_of(f"t{n}#1"))
        text = data.replace("t@", f"t{n}").replace(run.run_id, it.run_id)
        bucket.write(run_key(it.run_id), text.encode(), ANY)
        bucket.write(task_key(it), b"", ANY)
        bucket.write(ended_key(it, segment), b"", ANY)
    tally = f'{{"open_segment": "2026-01-02", "closed_segments": {{"{segment}": {{"robot+sorter": '
    bucket.write("runs/index/ended.json", f'{tally}{{"cancelled": {number}}}}}}}}}'.encode(), ANY)
    return CountingBucket(bucket), clock


def test_each_run_is_read_once_and_nothing_is_listed_again() -> None:
    bucket, clock = filled(3000)
    report = runs_of(bucket, clock)
    assert (report.findings, report.looked_at["runs"]) == ([], 3000)
    assert bucket.counts == {"list": 1, "read": 3000 + 1}  # the runs and the tally


def test_memory_does_not_grow_with_the_runs() -> None:
    peaks = []
    for number in (300, 1500):
        bucket, clock = filled(number)
        tracemalloc.start()
        assert runs_of(bucket, clock).whole
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000, peaks


def test_the_robots_runs_are_examined_like_any_other() -> None:
    site = site_with_runs()
    assert ledger_of(site).counts(pipeline=ROBOT)
    assert site.check().looked_at["runs"] == 8


def test_a_channels_runs_are_those_of_its_part() -> None:
    site = site_with_runs()
    whole = MemoryBucket()
    for key, data in site.contents().items():
        whole.write(f"en/{key}", data, ANY)
    channel = Site(site.world, whole, site.settings._replace(channels=("en",)))
    runs = [key for key in channel.contents() if "/runs/" in key]
    assert not {it.where for it in channel.check().findings} & {*runs}
    whole.delete("en/runs/index/ended.json")
    found = [it for it in channel.check(channel="en", repair=True).findings if it.code == "tally-wrong"]
    assert [(it.where, it.repaired) for it in found] == [("en/runs/index/ended.json", True)]
    assert whole.find("en/runs/index/ended.json", [""])


def test_a_retry_that_is_due_at_no_time_at_all_is_reported() -> None:
    site = Site(busy_world(), MemoryBucket())
    for key in [it.key for it in site.bucket.list("runs/run-")]:
        document = json.loads(site.bucket.read(key)[0])
        for event in document["events"]:
            if event["payload"].get("next_retry_at"):
                event["payload"]["next_retry_at"] = True
        site.bucket.write(key, json.dumps(document).encode(), ANY)
    assert "run-differs" in {it.code for it in site.check().findings}
