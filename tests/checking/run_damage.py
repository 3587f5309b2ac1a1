"""A bucket with the runs of stories and robots over several days, and damage to plant in it."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from damage import Damage, Site, busy_world
from story_world import World

from retake.bucket import ANY, Bucket
from retake.runs.bucket_index import ENDED, OPEN, TALLY, TASKS, open_key, task_key
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run import CHANGED, Run, run_id_of
from retake.runs.run_document import run_key
from retake.runs.states import Trigger
from retake.story.store import DocumentStore

ROBOT = "robot/sorter"
DAY_S = 86_400.0
Raw = dict[str, Any]


def ledger_of(site: Site, max_events: int = 4) -> BucketLedger:
    return BucketLedger(site.bucket, site.world.clock, max_events=max_events)


def site_with_runs(bucket: Bucket | None = None) -> Site:
    """Return what busy ticks and a robot have left; `bucket` is another store."""
    moment, objects = _filled()
    world = World()
    world.clock.moment = moment
    for key, data in objects.items():
        world.bucket.write(key, data, ANY)
    return Site(world, bucket)


@cache
def _filled() -> tuple[datetime, Mapping[str, bytes]]:
    """Return the time and the objects.

    A robot has three runs that ended on three days, the last with a retry and an interruption, and one that waits.
    """
    site = Site(busy_world())
    ledger, clock = ledger_of(site), site.world.clock
    for number in (1, 2, 3):
        clock.sleep(DAY_S)
        run = claimed(ledger, create(ledger, "sort", number))
        if number == 3:
            run = claimed(ledger, failed(ledger, run, clock.now()))
            run = claimed(ledger, ledger.move(run, Trigger.PROCESS_RESTART, actor="recovery"))
        ledger.note(run, "remark", {"text": "half of it is done"}, actor="robot")
        ledger.move(run, Trigger.COMPLETED, actor="robot")
    failed(ledger, claimed(ledger, create(ledger, "wait", 1)), clock.now() + timedelta(days=300))
    return clock.now(), site.contents()


def create(ledger: BucketLedger, task: str, number: int) -> Run:
    return ledger.create_for_task(task, f"{task}#{number}", actor="robot", pipeline=ROBOT)


def claimed(ledger: BucketLedger, run: Run) -> Run:
    found = ledger.claim("w", actor="robot", pipeline=ROBOT)
    assert found
    assert found.run_id == run.run_id
    return found


def failed(ledger: BucketLedger, run: Run, due: datetime) -> Run:
    code = "ERR_TEMPORARY_NETWORK"
    return ledger.move(run, Trigger.RETRYABLE_ERROR, actor="robot", next_retry_at=due, error_code=code)


# --- damage -----------------------------------------------------------------------------------------------------------

FIRST, SECOND, THIRD, WAITING = (run_id_of(it) for it in ("sort#1", "sort#2", "sort#3", "wait#1"))


def raw_of(site: Site, key: str) -> Raw:
    value: Raw = json.loads(site.bucket.read(key)[0])
    return value


def edited(run_id: str, change: Callable[[Raw], object]) -> Callable[[Site], object]:
    """Change a run's document by hand."""

    def plant(site: Site) -> None:
        raw = raw_of(site, run_key(run_id))
        change(raw)
        site.bucket.write(run_key(run_id), json.dumps(raw).encode(), ANY)

    return plant


def of_transition(**fields: Any) -> Callable[[Site], object]:
    """Change the last transition of the waiting run by hand."""

    def change(raw: Raw) -> None:
        last = [it for it in raw["events"] if it["kind"] == CHANGED][-1]
        last["payload"].update(fields)

    return edited(WAITING, change)


def removed(prefix: str, number: int = 0) -> Callable[[Site], object]:
    """Remove one object below a prefix."""
    return lambda site: site.bucket.delete(site.bucket.list(prefix)[number].key)


def written(key: str, data: bytes = b"") -> Callable[[Site], object]:
    return lambda site: site.bucket.write(key, data, ANY)


def later(plant: Callable[[Site], object]) -> Callable[[Site], object]:
    """Plant it two days ago, by the store's clock."""

    def both(site: Site) -> None:
        plant(site)
        site.world.clock.moment = datetime.now(UTC) + timedelta(days=2)

    return both


def run_of(site: Site, run_id: str) -> Run:
    return ledger_of(site).get(run_id)


def present(site: Site) -> str:
    name = DocumentStore(site.bucket, site.settings.paths, None, site.world.clock).read().gen.generation_id
    assert name
    return name


def twin(number: int) -> Callable[[Site], object]:
    """Create a second run for the generation under way."""

    def plant(site: Site) -> None:
        name = present(site)
        ledger_of(site).create_for_task(name, f"{name}#{number}", actor="cron", pipeline="story")

    return plant


def second_name(site: Site) -> None:
    entries = site.bucket.list(ENDED)
    last = entries[-1].key.split("/")
    name = entries[0].key.rpartition("/")[2]
    site.bucket.write("/".join([*last[:-1], name]), b"", ANY)


def recounted(change: Callable[[Raw], object]) -> Callable[[Site], object]:
    def plant(site: Site) -> None:
        raw = raw_of(site, TALLY)
        change(raw["closed_segments"])
        site.bucket.write(TALLY, json.dumps(raw).encode(), ANY)

    return plant


def one_more(closed: Raw) -> None:
    for by_status in next(iter(closed.values())).values():
        by_status["succeeded"] = 7


def same_attempt(raw: Raw) -> None:
    raw["attempt"] = 1
    for it in raw["events"]:
        it["payload"]["attempt"] = 1


def marker_of_another(site: Site) -> None:
    site.bucket.write(f"{OPEN}music.{WAITING}", b"", ANY)


def ended_by_hand(site: Site) -> None:
    run = ledger_of(site).find(f"{present(site)}#1")
    assert run
    ledger_of(site).move(run, Trigger.CANCEL_COMMAND, actor="operator")


def backwards(raw: Raw) -> None:
    raw["events"][-2]["at"] = "2027-01-01T00:00:00Z"


def segment_spoilt(site: Site) -> None:
    site.bucket.write(site.bucket.list(SEGMENT)[0].key, b"{", ANY)


SEGMENT = f"runs/events/{THIRD}/"
NOBODY = "run-0123456789abcdef"

ROWS = [
    Damage("a run that is not JSON", written(run_key(FIRST), b"{"), "run-unreadable", FIRST),
    Damage("a run of no known status", edited(FIRST, lambda raw: raw.update(status="x")), "run-unreadable", FIRST),
    Damage("a run under another's id", edited(FIRST, lambda raw: raw.update(run_id=NOBODY)), "run-unreadable", FIRST),
    Damage(
        "a retry without its time",
        edited(WAITING, lambda raw: raw.update(next_retry_at=None)),
        "run-unreadable",
        "runs/",
    ),
    Damage("older events that are no JSON", segment_spoilt, "run-unreadable", SEGMENT),
    Damage("an event is gone", edited(WAITING, lambda raw: raw["events"].pop(1)), "run-events-missing", WAITING),
    Damage(
        "an event appears twice",
        edited(WAITING, lambda raw: raw["events"].insert(1, raw["events"][1])),
        "run-events-missing",
        WAITING,
    ),
    Damage("older events are gone", removed(SEGMENT), "run-events-missing", THIRD),
    Damage("a transition that is none", of_transition(status="queued", next_retry_at=None), "run-history-illegal"),
    Damage("a transition from elsewhere", of_transition(previous_status="queued"), "run-history-illegal", WAITING),
    Damage("a retry that has no time", of_transition(next_retry_at=None), "run-history-illegal", WAITING),
    Damage("a transition of another task", of_transition(task_id="x"), "run-history-illegal", WAITING),
    Damage("an attempt that nothing made", of_transition(attempt=4), "run-history-illegal", also=("attempts-wrong",)),
    Damage("a transition by nobody", of_transition(actor=""), "run-history-illegal", WAITING),
    Damage(
        "another end by hand",
        edited(FIRST, lambda raw: raw.update(status="failed")),
        "run-differs",
        FIRST,
        also=("ended-name-wrong", "ended-name-missing"),
    ),
    Damage("another version", edited(WAITING, lambda raw: raw.update(version=9)), "run-differs", WAITING),
    Damage("another error", edited(WAITING, lambda raw: raw.update(error_code="E")), "run-differs", WAITING),
    Damage("a worker has what waits", edited(WAITING, lambda raw: raw.update(worker="w")), "run-differs", WAITING),
    Damage("retries", edited(WAITING, lambda raw: raw.update(retries=0)), "run-counts-wrong", WAITING, repaired=True),
    Damage("crashes", edited(THIRD, lambda raw: raw.update(crashes=9)), "run-counts-wrong", THIRD, repaired=True),
    Damage("a clock that was set back", edited(WAITING, backwards), "run-clock-backwards", WAITING),
    Damage("the same attempt twice", edited(SECOND, same_attempt), "attempts-wrong"),
    Damage(
        "a run of several is gone",
        lambda site: site.bucket.delete(run_key(SECOND)),
        "attempts-wrong",
        also=("ended-name-wrong",),
    ),
    Damage("two open runs of a generation", twin(2), "runs-open-twice"),
    Damage("a run of a generation is left out", twin(3), "run-numbers-wrong", also=("runs-open-twice",)),
    Damage(
        "no task has it",
        lambda site: site.bucket.delete(task_key(run_of(site, THIRD))),
        "run-not-indexed",
        THIRD,
        repaired=True,
    ),
    Damage(
        "no worker finds it",
        lambda site: site.bucket.delete(open_key(run_of(site, WAITING))),
        "run-not-indexed",
        WAITING,
        repaired=True,
    ),
    Damage(
        "a marker of an open run that is none",
        later(written(f"{OPEN}story.{NOBODY}")),
        "index-entry-dangling",
        NOBODY,
        repaired=True,
    ),
    Damage(
        "a marker of a task's run that is none",
        later(written(f"{TASKS}{'0' * 24}/{NOBODY}")),
        "index-entry-dangling",
        NOBODY,
        repaired=True,
    ),
    Damage("a marker of another pipeline", marker_of_another, "index-entry-wrong", WAITING, repaired=True),
    Damage(
        "a marker of another task", written(f"{TASKS}{'0' * 24}/{FIRST}"), "index-entry-wrong", FIRST, repaired=True
    ),
    Damage("an end that is not listed", removed(ENDED, -1), "ended-name-missing", THIRD, repaired=True),
    Damage(
        "an end that is counted and not listed",
        removed(ENDED),
        "ended-name-missing",
        repaired=True,
        also=("tally-wrong",),
    ),
    Damage(
        "the end of a run that is none",
        written(f"{ENDED}2026-01-01/20260101T000000000000.failed.story.{NOBODY}"),
        "ended-name-wrong",
        NOBODY,
        repaired=True,
        also=("tally-wrong",),
    ),
    Damage("an end that is listed twice", second_name, "ended-name-wrong", repaired=True),
    Damage("no tally", removed(TALLY), "tally-wrong", repaired=True),
    Damage("a tally that is not JSON", written(TALLY, b"{"), "tally-wrong", repaired=True),
    Damage("a tally that counts too many", recounted(one_more), "tally-wrong", repaired=True),
    Damage("a tally without a day", recounted(lambda closed: closed.popitem()), "tally-wrong", repaired=True),
    Damage(
        "older events that no run names",
        later(written(f"{SEGMENT}0009-0123456789ab.json", b"{}")),
        "events-leftover",
        SEGMENT,
        repaired=True,
    ),
    Damage(
        "older events of a run that is gone",
        written(f"runs/events/{NOBODY}/0001-0123456789ab.json", b"{}"),
        "events-without-run",
        NOBODY,
    ),
    Damage(
        "an open run of a generation that is gone",
        lambda site: ledger_of(site).create_for_task("gone", "gone#1", actor="cron", pipeline="story"),
        "run-without-generation",
    ),
    Damage("a run that ended before its generation", ended_by_hand, "run-behind"),
]
