"""Reports made by ticks: each run is reported once, however late the tick is that makes the report."""

from datetime import UTC, datetime, timedelta

import pytest

from retake.alerts.settings import ALERTS
from retake.alerts.store import BoardStore
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock, parse_stamp
from retake.operations.reports import send_report
from retake.runs import open_ledger
from retake.runs.states import Trigger
from retake.settings.schema import read_table
from retake.story.operations import open_operations
from retake.story.settings import Settings

CHANNELS = {"all": {"kind": "webhook", "reports": ["daily", "weekly"]}}
LATE_MINUTES = (65, 115, 60, 90, 600, 65, 119, 61, 80, 110, 63, 100, 67, 75, 69, 60)


@pytest.mark.parametrize("kind", ["daily", "weekly"])
@pytest.mark.parametrize(
    ("zone", "first"),
    [
        ("UTC", datetime(2026, 3, 2, 7, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 3, 23, 6, tzinfo=UTC)),  # clocks go forward on the 29th
        ("Europe/Berlin", datetime(2026, 10, 19, 5, tzinfo=UTC)),  # and back on the 25th
    ],
    ids=["utc", "spring", "autumn"],
)
def test_a_report_that_comes_late_leaves_no_run_out_and_tells_of_none_twice(
    kind: str, zone: str, first: datetime
) -> None:
    faults: list[str] = []
    alerts = read_table(ALERTS, {"channels": CHANNELS, "timezone": zone, "report_at": "07:00"}, "ALERTS", faults)
    clock, bucket = FakeClock(first), MemoryBucket()
    ledger = open_ledger(None, bucket, clock)
    operations = open_operations(Settings()._replace(alerts=alerts), clock, bucket=bucket)
    due = [first + timedelta(days=day, minutes=minutes) for day, minutes in enumerate(LATE_MINUTES)]
    ended: list[datetime] = []
    while clock.moment < first + timedelta(days=15):
        clock.sleep(1200)
        run = ledger.create_for_task(f"{len(ended)}", f"{len(ended)}", actor="cron", pipeline="story")
        run = ledger.move(run, Trigger.WORKER_CLAIM, actor="cron", worker="w")
        ledger.move(run, Trigger.COMPLETED, actor="cron")
        ended.append(clock.moment)
        if any(clock.moment - timedelta(seconds=1200) < at <= clock.moment for at in due):
            send_report(operations, kind, clock.moment)
    told = [it.fields for it in BoardStore(bucket, clock).read().channels["all"].queue]
    assert len({it["since"] for it in told}) == len(told) > 1
    assert [it["since"] for it in told[1:]] == [it["until"] for it in told[:-1]]
    for it in told:
        since, until = (parse_stamp(it[name]) for name in ("since", "until"))
        assert it["made"] == sum(since < at <= until for at in ended)
