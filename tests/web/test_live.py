"""One look for all viewers, an event for each change, nothing while nobody watches."""

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from dashboard import Board, World

sys.path.append(str(Path(__file__).parent.parent / "story"))

from far_channels import FarChannels

from retake.alerts.board import Alert
from retake.alerts.store import BoardStore
from retake.errors import StorageError
from retake.operations.kpi import KpiReader
from retake.operations.pipelines import Operations
from retake.operations.status import status_report
from retake.runs import open_ledger
from retake.runs.states import Trigger
from retake.story.operations import open_operations
from retake.web import live as module
from retake.web.live import Live, fingerprint


class Eyes:
    """What is looked at: `facts` by name; each look waits until the test allows it."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {"status": "1", "mode": "0"}
        self.looks, self.changes, self.away = 0, 0, False
        self.looked = threading.Condition()

    def look(self) -> Mapping[str, str]:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
            if self.away:
                raise StorageError("the bucket is away")
            return dict(self.facts)

    def changed(self) -> None:
        self.changes += 1

    def wait(self, looks: int) -> None:
        with self.looked:
            assert self.looked.wait_for(lambda: self.looks >= looks, 30), self.looks


async def following(events: AsyncIterator[str]) -> str:
    """Return the next event that is not a comment."""
    async with asyncio.timeout(30):
        async for event in events:
            if event.startswith("event:"):
                return event
    return "the end"


async def joined(live: Live) -> AsyncIterator[str]:
    events = live.events()
    assert ": hello" in await anext(events)
    return events


def test_all_viewers_are_told_what_changed_and_one_reader_looks() -> None:
    eyes = Eyes()
    live = Live(eyes.look, 0.01, eyes.changed)

    async def play() -> None:
        before = threading.active_count()
        viewers = [await joined(live) for _ in range(20)]
        waits = [asyncio.ensure_future(following(it)) for it in viewers]
        await asyncio.to_thread(eyes.wait, eyes.looks + 2)
        eyes.facts |= {"status": "2", "mode": "1"}
        told = await asyncio.gather(*waits)
        assert set(told) == {"event: changed\ndata: mode status\n\n"}
        assert eyes.changes == 1
        assert threading.active_count() < before + 20
        live.close()
        assert {await following(it) for it in viewers} == {"the end"}

    asyncio.run(play())


def test_nobody_looks_while_nobody_watches() -> None:
    eyes = Eyes()
    live = Live(eyes.look, 0.01, eyes.changed)

    async def play() -> None:
        assert eyes.looks == 0
        viewer = await joined(live)
        wait = asyncio.ensure_future(following(viewer))
        await asyncio.to_thread(eyes.wait, 3)
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        await viewer.aclose()  # type: ignore[attr-defined]
        looks = eyes.looks
        await asyncio.sleep(0.3)
        assert eyes.looks <= looks + 1  # one may have been under way
        again = await joined(live)
        waiting = asyncio.ensure_future(following(again))
        await asyncio.to_thread(eyes.wait, eyes.looks + 2)
        live.close()
        assert await waiting == "the end"

    asyncio.run(play())


def test_a_bucket_that_goes_away_is_reported_and_that_it_is_back() -> None:
    eyes = Eyes()
    live = Live(eyes.look, 0.01, eyes.changed)

    async def play() -> None:
        viewer = await joined(live)
        wait = asyncio.ensure_future(following(viewer))
        await asyncio.to_thread(eyes.wait, 2)
        eyes.away = True
        assert await wait == "event: changed\ndata: bucket\n\n"
        wait = asyncio.ensure_future(following(viewer))
        eyes.away = False
        assert await wait == "event: changed\ndata: bucket\n\n"
        live.close()
        assert await following(viewer) == "the end"

    asyncio.run(play())


def test_a_bug_in_reading_anew_does_not_end_the_looking() -> None:
    eyes = Eyes()

    def broken() -> None:
        eyes.changed()
        if eyes.changes == 1:
            raise ZeroDivisionError

    live = Live(eyes.look, 0.01, broken)

    async def play() -> None:
        viewer = await joined(live)
        wait = asyncio.ensure_future(following(viewer))
        await asyncio.to_thread(eyes.wait, 2)
        eyes.facts["status"] = "2"
        assert await wait == "event: changed\ndata: status\n\n"
        live.close()

    asyncio.run(play())


def test_a_viewer_is_told_now_and_then_that_it_is_still_connected(monkeypatch: object) -> None:
    eyes = Eyes()
    live = Live(eyes.look, 0.01, eyes.changed)
    module.COMMENT_S, usual = 0.02, module.COMMENT_S

    async def play() -> None:
        viewer = await joined(live)
        assert await anext(viewer) == ": still here\n\n"
        live.close()
        assert await following(viewer) == "the end"

    try:
        asyncio.run(play())
    finally:
        module.COMMENT_S = usual


def test_a_viewer_that_does_not_read_costs_nothing_but_old_events() -> None:
    eyes = Eyes()
    live = Live(eyes.look, 0.001, eyes.changed)

    async def play() -> None:
        slow = await joined(live)
        for number in range(30):
            eyes.facts["status"] = f"new {number}"
            await asyncio.to_thread(eyes.wait, eyes.looks + 2)
        assert max(it.qsize() for it in live._viewers) <= 8
        live.close()
        await slow.aclose()  # type: ignore[attr-defined]

    asyncio.run(play())


def seen(world: World) -> Mapping[str, str]:
    operations = Board(world).context.operations
    return fingerprint(operations, status_report(operations, None))


@pytest.mark.parametrize(("key", "name"), [("alerts/state.json", "alerts"), ("mode/state.json", "mode")])
def test_an_invalid_document_is_a_change_and_hides_no_other(key: str, name: str) -> None:
    world = World()
    before = seen(world)
    world.put(key, b"{")
    broken = seen(world)
    assert broken[name] != before[name]
    world.put("breakers/runway.json", b"{")
    assert seen(world)["breakers"] != broken["breakers"]


def test_an_alert_that_recurs_is_a_change() -> None:
    world, at = World(), "2026-01-01T00:00:00Z"
    alert = Alert("a-1", "key", "step_failing", "warning", "upscale fails", 2, {"story": at}, at, at)
    store = BoardStore(world.bucket, world.clock)
    store.change(lambda board: (board._replace(alerts={alert.key: alert}), None))
    before = seen(world)
    store.change(lambda board: (board._replace(alerts={alert.key: alert._replace(occurrences=3)}), None))
    assert seen(world)["alerts"] != before["alerts"]


@pytest.mark.parametrize("in_bucket", [True, False])
def test_each_change_of_a_run_of_a_worker_is_a_change_of_the_runs(tmp_path: Path, in_bucket: bool) -> None:
    world = World()
    if not in_bucket:
        storage = world.settings.storage._replace(ledger=f"sqlite:{tmp_path / 'runs.db'}")
        world.settings = world.settings._replace(storage=storage, channels=("north", "south"))
    ledger = open_ledger(world.settings.storage.ledger, world.bucket, world.clock)
    times = [seen(world)["runs"]]
    run = ledger.create_for_task("aurora", "posters/aurora", actor="shop", pipeline="posters")
    times.append(seen(world)["runs"])
    for trigger in (Trigger.WORKER_CLAIM, Trigger.RETRYABLE_ERROR, Trigger.RETRY_DUE):
        world.clock.sleep(1)
        due = world.clock.now() if trigger is Trigger.RETRYABLE_ERROR else None
        worker = None if trigger is Trigger.RETRYABLE_ERROR else "w"
        run = ledger.move(run, trigger, actor="worker", worker=worker, next_retry_at=due)
        times.append(seen(world)["runs"])
    assert len({*times}) == 5


@pytest.mark.parametrize(
    ("page", "read"),
    [
        ("web.md", lambda it: fingerprint(it, status_report(it, None))),
        ("kpi.md", lambda it: KpiReader(it, read_only=True).metrics()),
    ],
)
def test_a_poll_of_b2_makes_the_calls_that_are_documented(
    page: str, read: Callable[[Operations], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def calls(number: int) -> int:
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as stack:
            world = FarChannels("b2", number, monkeypatch, folder, stack)
            world.fill(world.waiting)
            world.settle()
            before = world.listings
            read(open_operations(world.settings, world.clock, bucket=world.open()))
            return world.listings - before

    text = (Path(__file__).parents[2] / "docs" / page).read_text("utf-8")
    told = re.search(r"some (\d+) calls of class C for one pipeline,\s+and\s+some (\d+) for each", text)
    assert told
    assert (calls(1), (calls(5) - calls(2)) / 3) == (int(told[1]), int(told[2]))
