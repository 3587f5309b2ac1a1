"""Planted damage to alerts, the mode, breakers and snapshots of figures."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from damage import Damage, Site, assert_found
from money import change, changed, deleted, paid_world, read, write, written
from story_world import World

from retake.alerts.board import Alert, ChannelQueue, QueuedMessage
from retake.alerts.message import AlertEvent
from retake.alerts.store import BoardStore
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.checking import Severity
from retake.clock import stamp
from retake.degraded.mode import Hand, ModeState
from retake.degraded.store import ModeStore
from retake.errors import CodedError
from retake.operations.kpi import KpiReader
from retake.retrying.breaker import Breaker, breakers_of

BOARD, MODE, VENDOR, STORY = "alerts/state.json", "mode/state.json", "breakers/piapi.json", "kpi/story.json"
DAY = "alerts/2026-01-01.json"


@cache
def watched_world() -> World:
    """Return a world with open and closed alerts, a mode set by an operator, a breaker with failures, and snapshots."""
    world = paid_world()
    now = stamp(world.clock.now())
    alert = Alert("alert-1", "stopped", "stopped", "critical", "It stopped", 1, {"story": now}, now, now)
    over = alert._replace(id="alert-0", key="slow", state="resolved", closed_at=now)
    message = QueuedMessage("m-1", AlertEvent.TRIGGER, now, "alert-1", "critical", "It stopped", "It stopped", {})
    channels = {"ops": ChannelQueue((message,))}
    board = BoardStore(world.bucket, world.clock)
    board.change(lambda it: (it._replace(alerts={"stopped": alert}, ended=(over,), channels=channels), None))
    ModeStore(world.bucket, world.clock).change(lambda it: ModeState(Hand(1, "an outage", now)))
    breaker = Breaker("piapi", breakers_of(world.bucket, world.clock), clock=world.clock, owner="test:1")
    breaker.failed(breaker.allow(), CodedError("ERR_TEMPORARY_UNAVAILABLE", "HTTP 500"))
    KpiReader(Site(world).context().operations).metrics()
    return world


def waited(site: Site) -> None:
    """Leave the channel's message waiting for more than a day."""
    long_ago = stamp(site.world.clock.now() - timedelta(days=2))
    change(site, BOARD, lambda it: it["channels"]["ops"]["queue"][0].update(at=long_ago))


def breaker_of(**ago_s: float) -> Callable[[Site], None]:
    """Return a function that plants a breaker open since or until then, or with a probe that began then."""

    def plant(site: Site) -> None:
        now = site.world.clock.now()
        moments = {name: stamp(now - timedelta(seconds=seconds)) for name, seconds in ago_s.items()}
        probe = {"who": "gone:1#1", "since": since} if (since := moments.pop("probe", None)) else None
        write(site, VENDOR, {"failures": [], "open_until": stamp(now), "probe": probe, **moments})

    return plant


def others_sums(index: dict[str, Any]) -> None:
    for it in index["segments"].values():
        it["totals"] = [[amount + 1, *cell] for amount, *cell in it["totals"]]


def nobody_looked(site: Site) -> None:
    """Date the snapshot days back, before anything had happened."""
    days_ago = read(site, STORY)["taken_at"] - 2 * 86_400_000_000
    write(site, STORY, {**read(site, STORY), "taken_at": days_ago, "segments": {}})


ROWS = [
    Damage("a board that is not JSON", written(BOARD, b"{"), "alerts-unreadable", BOARD),
    Damage(
        "an alert of no level", changed(BOARD, lambda it: it["alerts"][0].update(level="loud")), "alerts-unreadable"
    ),
    Damage("an alert without an id", changed(BOARD, lambda it: it["alerts"][0].pop("id")), "alerts-unreadable", BOARD),
    Damage(
        "a queue that is none", changed(BOARD, lambda it: it["channels"].update(ops=[])), "alerts-unreadable", BOARD
    ),
    Damage(
        "a message of no time",
        changed(BOARD, lambda it: it["channels"]["ops"]["queue"][0].update(at="soon")),
        "alerts-unreadable",
        BOARD,
    ),
    Damage("a day of no alerts", written(DAY, {"alerts": [1]}), "alert-day-unreadable", DAY),
    Damage("a day that is not JSON", written(DAY, b"alerts"), "alert-day-unreadable", DAY),
    Damage("a message that nobody takes", waited, "messages-waiting", BOARD),
    Damage("a mode that is not JSON", written(MODE, b"2"), "mode-unreadable", MODE),
    Damage("a mode that there is not", changed(MODE, lambda it: it["hand"].update(mode=9)), "mode-unreadable", MODE),
    Damage(
        "a mode that was not copied",
        changed(MODE, lambda it: it["hand"].update(mode=2)),
        "mode-copy-old",
        BOARD,
        repaired=True,
    ),
    Damage("a mode that is gone, and its copy not", deleted(MODE), "mode-copy-old", BOARD, repaired=True),
    Damage("a breaker that is not JSON", written(VENDOR, b""), "breaker-unreadable", VENDOR),
    Damage("a breaker of no time", changed(VENDOR, lambda it: it.update(open_until="x")), "breaker-unreadable", VENDOR),
    Damage("a breaker open for weeks", breaker_of(open_until=-30 * 86_400), "breaker-open-long", VENDOR),
    Damage("a probe that never ended", breaker_of(probe=86_400), "probe-left", VENDOR, repaired=True),
    Damage("an index that is not JSON", written(STORY, b"{"), "snapshot-unreadable", STORY, repaired=True),
    Damage("an index of another version", written(STORY, {"version": 0}), "snapshot-unreadable", STORY, repaired=True),
    Damage(
        "a sheet that is none",
        written("kpi/story.open.json", {"version": 1}),
        "snapshot-unreadable",
        "kpi/story.o",
        repaired=True,
    ),
    Damage("an index with other sums", changed(STORY, others_sums), "snapshot-wrong", "kpi/story.", repaired=True),
    Damage(
        "an index with empty cells",
        changed(STORY, lambda it: next(iter(it["segments"].values())).update(totals=[[1]])),
        "snapshot-unreadable",
        STORY,
        repaired=True,
    ),
    Damage("a sheet is gone", deleted("kpi/story.2026-01-01.json"), "snapshot-wrong", "kpi/story.2026", repaired=True),
    Damage(
        "the books' snapshot is wrong",
        changed("kpi/caps.json", others_sums),
        "snapshot-wrong",
        "kpi/caps.2026-01",
        repaired=True,
    ),
    Damage("figures at which nobody looked", nobody_looked, "snapshot-old", STORY, repaired=True),
]


@pytest.fixture(params=["memory", "directory"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    world = watched_world()
    return Site(world, MemoryBucket() if request.param == "memory" else DirectoryBucket(str(tmp_path / "bucket")))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_damage_is_found(row: Damage, site: Site) -> None:
    assert_found(row, site)


def test_a_snapshot_is_made_again_from_what_it_counts(site: Site) -> None:
    before = read(site, STORY)["segments"]
    changed(STORY, others_sums)(site)
    assert read(site, STORY)["segments"] != before
    site.check(repair=True)
    assert read(site, STORY)["segments"] == before


def test_what_is_healthy_has_no_finding_and_each_object_is_known(site: Site) -> None:
    found = site.check()
    ours = ("alerts/", "mode/", "breakers/", "kpi/", "caps/", "spend/")
    assert [it for it in found.findings if it.where.startswith(ours)] == []
    assert found.looked_at["alert_documents"] == 2
    assert found.looked_at["breakers"] == 1


def test_a_month_of_days_is_compared_with_their_sheets() -> None:
    world = paid_world()
    KpiReader(Site(world).context().operations).metrics()
    world.later(days=100)

    def of_figures() -> list[tuple[str, str]]:
        found = Site(world).check().findings
        return [(it.code, it.where) for it in found if it.where.startswith("kpi/") and it.code != "snapshot-old"]

    assert Site(world).check().looked_at["snapshots"]
    assert not [it for it in Site(world).check().findings if it.code == "snapshot-old"], "nothing has changed since"
    KpiReader(Site(world).context().operations).metrics()
    assert "2026-01" in world.json(STORY)["segments"]
    assert of_figures() == []
    day = "kpi/story.2026-01-01.json"
    sheet = world.json(day)
    world.put(day, {**sheet, "amounts": [it + 1 for it in sheet["amounts"]]})
    assert of_figures() == [("snapshot-wrong", "kpi/story.2026-01-01.json")]


def test_a_channel_that_the_settings_no_longer_have_is_reported(site: Site) -> None:
    waited(site)
    [it] = [it for it in site.check().findings if it.code == "messages-waiting"]
    assert it.level is Severity.WARNING
    assert "1 message waiting for ops, which is no longer a channel of the settings" in it.what


def test_a_probe_under_way_is_left_alone(site: Site) -> None:
    breaker_of(probe=60)(site)
    assert [it.code for it in site.check(repair=True).findings if it.where == VENDOR] == []
    assert read(site, VENDOR)["probe"]["who"] == "gone:1#1"
