"""The read-only pages: the same documents as the console's, what people see of them, and what no page does."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from dashboard import TOKEN, Board, busy_world, in_directory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading_world import ask
from story_world import World
from test_console_ledgers import with_channels

from retake.alerts.board import Alert
from retake.alerts.store import BoardStore
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.console import alerts, breaker, dead_letters, kpi, mode, rollback, runs, show, spend, status
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.states import Trigger
from retake.story.settings import LEASE

PATHS = (
    *("/", "/runs", "/dead-letters", "/spend", "/kpi", "/alerts", "/mode", "/breakers"),
    *("/runs/20260101-0000", "/runs/20260101-0002", "/runs/20260101-0003"),
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
HOSTILE = "<script>alert(1)</script>\"' onload=x \u202e{{7*7}}"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    world = busy_world()
    folder = tmp_path_factory.mktemp("dashboard")
    with Board(world, in_directory(world, folder)).serving() as it:
        yield it


class Elements(HTMLParser):
    """The elements of a page with their attributes, and those still open at its end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def buttons(text: str) -> set[str]:
    return set(re.findall(r"<button[^>]*>([^<]*)</button>", text)) - {"Sign out", "Show", "Search"}


# --- for programs -----------------------------------------------------------------------------------------------------


def test_each_page_answers_programs_with_the_document_of_the_consoles_command(board: Board) -> None:
    at = {"page": 1, "pages": 1}
    assert board.json("/") == board.console(status.command)
    assert board.json("/runs") == {
        **board.console(runs.command, statuses=(), limit=50, pipeline=None),
        **at,
        "total": 4,
    }
    for run in board.json("/runs")["runs"]:
        for name in (run["run_id"], run["task_id"]):
            assert board.json(f"/runs/{name}") == board.console(show.command, run=name)
    letters = board.console(dead_letters.list_letters, limit=50)
    assert board.json("/dead-letters") == {**letters, **at, "total": 1}
    assert board.json("/spend") == board.console(spend.command)
    assert board.json("/spend?days=1") == board.console(spend.command, days=1)
    assert board.json("/kpi") == board.console(kpi.command)
    assert board.json("/kpi?window=2h") == board.console(kpi.command, window=7200.0)
    assert board.json("/alerts") == board.console(alerts.list_alerts, ended=False)
    assert board.json("/mode") == board.console(mode.show_mode)
    assert board.json("/breakers") == board.console(breaker.show_breakers, name=None)


def test_an_alert_matches_the_console() -> None:
    world = World()
    raised(world, "it is wrong")
    with Board(world).serving() as board:
        assert board.json("/alerts") == board.console(alerts.list_alerts, ended=False)
        assert board.json("/alerts/a1") == board.console(alerts.show_alert, alert_id="a1")
        assert buttons(board.page("/alerts/a1").text) == {"Acknowledge", "Close"}
        assert buttons(board.page("/alerts").text) == {"Acknowledge", "Close"}


def raised(world: World, title: str) -> None:
    alert = Alert(
        "a1", "key", "code", "error", title, 2, {"story": "x"}, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"
    )
    alert = alert._replace(message=title, generation_id="20260101-0000")
    store = BoardStore(world.bucket, world.clock)
    store.change(lambda found: (found._replace(alerts={"key": alert}), None))


def test_metrics_are_those_that_the_console_writes(board: Board, tmp_path: Path) -> None:
    found = board.program("/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    board.console(kpi.command, prometheus=str(tmp_path / "metrics"))
    assert found.text == (tmp_path / "metrics").read_text()


def test_runs_are_filtered_and_searched(board: Board) -> None:
    every = board.json("/runs")["runs"]
    for path, fits in {
        "/runs?status=succeeded": lambda it: it["status"] == "succeeded",
        "/runs?status=failed&status=retry_scheduled": lambda it: it["status"] in ("failed", "retry_scheduled"),
        "/runs?status=&q=&pipeline=": lambda it: True,
        "/runs?pipeline=story&status=failed": lambda it: it["status"] == "failed",
        "/runs?pipeline=music": lambda it: False,
        "/runs?q=0101-0002": lambda it: it["task_id"] == "20260101-0002",
        "/runs?q=20260101&status=succeeded": lambda it: it["status"] == "succeeded",
        f"/runs?q={every[1]['run_id'][:12]}": lambda it: it["run_id"] == every[1]["run_id"],
        "/runs?q=%25": lambda it: False,
    }.items():
        found = board.json(path)
        assert found["runs"] == [it for it in every if fits(it)], path
        assert found["total"] == len(found["runs"])


# --- for people -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_whole_and_named(board: Board, path: str) -> None:
    found = board.page(path)
    assert found.status_code == 200
    elements = Elements(found.text)
    assert elements.open == []
    assert elements.of("html")[0]["lang"] == "en"
    assert len(elements.of("h1")) == 1
    assert len(elements.of("main")) == 1
    assert all(it["datetime"] and str(it["datetime"]).endswith("Z") for it in elements.of("time"))
    assert not [name for _, attributes in elements.found for name in attributes if name == "style" or name[:2] == "on"]
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len({*ids})
    assert len(found.content) < 100_000


def test_the_page_of_a_run_tells_all_that_happened(board: Board) -> None:
    text = board.page("/runs/20260101-0003").text
    assert "failed, to be tried again" in text
    assert "UNAVAILABLE" in text
    assert buttons(text) == {"Retry", "Skip", "Cancel"}
    (image,) = Elements(board.page("/runs/20260101-0000").text).of("img")
    assert image["src"] == "/media/-/20260101-0000.png"
    topic = json.loads(board.context.bucket.read("444/20260101-0000.json")[0])["topic"]
    assert image["alt"] == topic
    (video,) = Elements(board.page("/runs/20260101-0000").text).of("video")
    assert video["src"] == "/media/-/20260101-0000.mp4"
    assert video["preload"] == "none"
    assert "controls" in video


@pytest.mark.parametrize(("suffix", "tag", "other"), [("png", "img", "video"), ("mp4", "video", "img")])
def test_the_page_of_a_run_whose_picture_or_video_alone_is_there_shows_that(suffix: str, tag: str, other: str) -> None:
    world = busy_world()
    world.put(f"666/20260101-0003.{suffix}", b"media")
    with Board(world).serving() as board:
        page = Elements(board.page("/runs/20260101-0003").text)
    assert [it["src"] for it in page.of(tag)] == [f"/media/-/20260101-0003.{suffix}"]
    assert [*page.of(other)] == []


def test_buttons_are_those_that_make_sense(board: Board) -> None:
    assert buttons(board.page("/runs/20260101-0000").text) == set()
    assert buttons(board.page("/runs/20260101-0002").text) == set(), "another generation is under way"
    assert buttons(board.page("/dead-letters").text) == {"Requeue", "Drop"}
    (choice,) = [it for it in Elements(board.page("/dead-letters").text).of("input") if it.get("name") == "id"]
    assert choice["value"] == "20260101-0002"
    assert buttons(board.page("/mode").text) == {"Set"}
    modes = [it for it in Elements(board.page("/mode").text).of("input") if it["name"] == "id"]
    assert [it["value"] for it in modes] == [*"0123", "auto"]
    assert [it["value"] for it in modes if "checked" in it] == ["auto"]


def test_what_failed_for_good_can_be_retried_once_nothing_is_under_way() -> None:
    world = World()
    world.vendors.plan("write", "rejected")
    world.tick()
    with Board(world).serving() as board:
        assert buttons(board.page("/runs/20260101-0000").text) == {"Retry"}


def test_read_only_shows_no_button() -> None:
    world = busy_world()
    with Board(world, read_only=True).serving() as board:
        assert {path: buttons(board.page(path).text) for path in PATHS} == {path: set() for path in PATHS}


def test_a_lease_that_is_held_can_be_unlocked() -> None:
    world = World()
    lease = world.bucket.lease(LEASE, "host:1")
    with Board(world).serving() as board:
        assert buttons(board.page("/").text) == {"Unlock"}
        lease.release()
        assert buttons(board.page("/").text) == set()


def test_each_dead_letter_leads_to_the_runs_of_its_work_if_there_are_any() -> None:
    world = busy_world()
    ask(rollback.command, world, run="20260101-0003", step="imagine", yes=True)
    world.put("dead_letters/before-20260101-0001/config_midjourney.json", {})
    with Board(world).serving() as board:
        found = board.page("/dead-letters").text
        links = re.findall(r'<th scope="row"><a href="(/runs/[^"]*)"', found)
        assert links == ["/runs/20260101-0003", "/runs/20260101-0002"]
        assert [board.page(it).status_code for it in links] == [200, 200]
    assert '<th scope="row">before-20260101-0001</th>' in found


def test_a_page_beyond_the_last_is_the_last(board: Board) -> None:
    for path in ("/runs", "/dead-letters"):
        assert board.json(f"{path}?page=99") == board.json(path)
        assert board.json(f"{path}?page=9{'0' * 30}") == board.json(path)


def test_long_lists_have_pages() -> None:
    world = World()
    ledger = BucketLedger(world.bucket, world.clock)
    for n in range(120):
        run = ledger.create_for_task(f"task-{n:03}", f"key-{n}", actor="cron", pipeline="music")
        if n % 40:
            ledger.move(run, Trigger.CANCEL_COMMAND, actor="operator")
        world.later(seconds=60)
        world.put(f"dead_letters/letter-{n:03}/report.json", {"failed_at_utc": "2026-01-01T00:00:00Z"})
    with Board(world).serving() as board:
        pages = [board.json(f"/runs?page={page}") for page in (1, 2, 3)]
        assert [(it["page"], it["pages"], it["total"], len(it["runs"])) for it in pages] == [
            (n, 3, 120, size) for n, size in ((1, 50), (2, 50), (3, 20))
        ]
        whole = board.console(runs.command, statuses=(), limit=200, pipeline=None)["runs"]
        assert [run for page in pages for run in page["runs"]] == whole
        letters = [board.json(f"/dead-letters?page={page}") for page in (1, 2, 3)]
        assert len({it["id"] for page in letters for it in page["dead_letters"]}) == 120
        text = board.page("/runs?page=2&status=cancelled").text
        assert 'href="/runs?status=cancelled&amp;page=1"' in text
        assert 'hx-get="/runs?page=2&amp;status=cancelled"' in text


# --- odd values -------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_not_found(board: Board) -> None:
    for path in (
        "/runs/nope",
        "/runs/run-0000000000000000",
        "/alerts/nope",
        "/nope",
        "/runs/..%2f..%2fetc",
        "/runs/%00",
    ):
        assert board.page(path).status_code == 404, path
        assert board.program(path).status_code == 404, path
        assert [*board.program(path).json()] == ["error"]


def test_nonsense_is_refused(board: Board) -> None:
    for path in (
        *(
            "/runs?page=0",
            "/runs?page=x",
            "/runs?page=-1",
            "/runs?page=1.5",
            "/runs?status=nope",
            "/dead-letters?page=x",
        ),
        *(
            "/spend?days=0",
            "/spend?days=x",
            "/spend?days=99999",
            "/kpi?window=x",
            "/kpi?window=0h",
            "/kpi?window=9999999d",
        ),
        *(f"/runs?q={'x' * 400}", f"/runs?pipeline={'x' * 400}", f"/runs?page={'9' * 5000}"),
    ):
        assert board.page(path).status_code in (400, 422), path
        assert board.program(path).status_code in (400, 422), path


def test_what_is_refused_is_named_with_what_is_allowed(board: Board) -> None:
    assert board.program("/runs?page=0").json() == {"error": "page: Input should be greater than or equal to 1"}
    assert "days: Input should be a valid integer" in board.program("/spend?days=x").json()["error"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/", "/runs", "/dead-letters", "/spend", "/kpi", "/alerts", "/mode", "/breakers"])
    | st.tuples(st.sampled_from(["/runs/", "/alerts/"]), TEXT).map(lambda it: it[0] + quote(it[1], safe="")),
    query=st.dictionaries(
        st.sampled_from(["page", "status", "pipeline", "q", "days", "window", "x"]),
        TEXT | st.integers().map(str) | st.sampled_from(["run-", "2026", "failed", "24h", "\x00"]),
        max_size=4,
    ),
)
def test_whatever_is_asked_for_nothing_breaks(board: Board, path: str, query: dict[str, str]) -> None:
    for get in (board.page, board.program):
        assert get(path, params=query).status_code in (200, 400, 404, 409, 422)


def test_texts_from_outside_are_shown_and_never_obeyed() -> None:
    world = busy_world()
    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task(HOSTILE, HOSTILE, actor=HOSTILE, pipeline=HOSTILE)
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker=HOSTILE)
    ledger.note(run, HOSTILE, {"text": HOSTILE}, actor=HOSTILE)
    error = {"error_code": HOSTILE, "message": HOSTILE, "robot_id": HOSTILE}
    ledger.move(run, Trigger.NON_RETRYABLE_ERROR, actor="worker", error=error, error_code=HOSTILE)
    report = {"failed_at_utc": "2026-01-01T00:00:00Z", "failed_step": HOSTILE, "last_error": error, "cancelled": True}
    world.put("dead_letters/letter <b>/report.json", report)
    paid = {"step": HOSTILE, "outcome": HOSTILE, "task_id": HOSTILE, "price_usd": 1, "requested_at_utc": "2026-01-01"}
    world.put("spend/20260101-0001.json", {**world.json("spend/20260101-0001.json"), "paid_calls": [paid]})
    document = next(key for key in world.keys_of() if key.endswith("20260101-0001.json") and key[0] in "456")
    world.put(document, {**world.json(document), "topic": HOSTILE})
    raised(world, HOSTILE)
    with Board(world).serving() as board:
        for path in (
            *PATHS,
            "/runs/20260101-0001",
            f"/runs/{run.run_id}",
            "/alerts/a1",
            "/runs?q=%3Cscript%3E",
            "/metrics",
        ):
            found = board.page(path)
            assert found.status_code == 200, path
            assert path == "/metrics" or "<script>alert" not in found.text, path
            assert not {name for _, it in Elements(found.text).found for name in it if name == "onload"}, path
            assert "\u202e" not in found.text, path
            assert len(found.content) < 100_000


@pytest.mark.parametrize("price", [10**400, 1e308, float("nan"), -1, True, "x"], ids=str)
def test_an_invalid_price_ends_no_page(price: object) -> None:
    world = busy_world()
    record = world.json("spend/20260101-0001.json")
    record["paid_calls"] = [{**call, "price_usd": price} for call in record["paid_calls"]]
    world.put("spend/20260101-0001.json", json.dumps(record).encode())
    with Board(world).serving() as board:
        for path in ("/runs/20260101-0001", "/spend"):
            assert (board.page(path).status_code, board.program(path).status_code) == (200, 200), path


def test_a_day_of_alerts_without_sense_hides_no_open_alert() -> None:
    world = busy_world()
    raised(world, "imagine fails")
    world.put(f"alerts/{world.clock.now():%Y-%m-%d}.json", b"{")
    with Board(world).serving() as board:
        page = board.page("/alerts")
    assert (page.status_code, "imagine fails" in page.text) == (200, True)
    assert "Acknowledge" in buttons(page.text)


def test_a_monitor_may_ask_for_the_head_of_a_page_alone() -> None:
    with Board(busy_world()).serving() as board:
        headers = {"Accept": "text/html", "Authorization": f"Bearer {TOKEN}"}
        for path in (*PATHS, "/runs/20260101-0001", "/healthz", "/metrics"):
            head = board.http.head(path, headers=headers)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == board.http.get(path, headers=headers).headers["content-type"]
        assert board.http.head("/healthz").status_code == 200
        assert board.http.head("/events", headers=headers).status_code == 405


def test_a_text_without_end_makes_no_page_without_end() -> None:
    world = busy_world()
    ledger = BucketLedger(world.bucket, world.clock)
    run = ledger.create_for_task("long", "long", actor="worker", pipeline="music")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="worker", worker="w")
    for n in range(1200):
        ledger.note(run, "run.note", {"text": f"{n} " + "x" * 5000}, actor="worker")
    world.put("dead_letters/x/report.json", {"last_error": {"error_code": "E" * 10_000, "message": "m" * 100_000}})
    with Board(world).serving() as board:
        for path in ("/runs/long", "/dead-letters", "/runs"):
            assert len(board.page(path).content) < 300_000, path


def test_no_secret_is_on_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    world = busy_world()
    environ = {"RETAKE_WEB_TOKEN": "a-token-of-the-tests", "OPENAI_API_KEY": "openai-secret-1234"}
    with Board(world, environ=environ).serving() as board:
        for path in (*PATHS, "/metrics"):
            for get in (board.page, board.program):
                text = get(path).text
                assert not [
                    value for value in (*environ.values(), *map(str, world.keys)) if len(value) > 3 and value in text
                ]


# --- the cost of a page, and what it never does -----------------------------------------------------------------------


def test_looking_changes_nothing() -> None:
    world = busy_world()
    before = world.everything()
    with Board(world).serving() as board:
        for path in (*PATHS, "/metrics", "/kpi?window=30d", "/runs?q=2026"):
            assert board.page(path).status_code == 200
            assert board.program(path).status_code == 200
    assert world.everything() == before


def test_an_empty_bucket_has_empty_pages() -> None:
    with Board(World()).serving() as board:
        for path in (*PATHS[:8], "/metrics"):
            assert board.page(path).status_code == 200, path
        assert board.json("/runs") == {"runs": [], "unreadable": [], "page": 1, "pages": 1, "total": 0}
        assert board.json("/dead-letters") == {"dead_letters": [], "page": 1, "pages": 1, "total": 0}


@pytest.mark.parametrize(
    "key", ["config/config_midjourney.json", "caps/2026-01-01.json", "alerts/state.json", "modes.json"]
)
def test_an_invalid_document_breaks_no_page(key: str) -> None:
    world = busy_world()
    world.put(key, b"{")
    with Board(world).serving() as board:
        found: dict[str, Any] = {path: board.page(path).status_code for path in PATHS}
    assert set(found.values()) <= {200, 409, 503}, found
    assert found["/"] == found["/runs"] == 200


def test_what_all_channels_need_is_shown_once_and_they_stay_in_the_table() -> None:
    world = with_channels("north", "south")
    world.put("mode/state.json", b"{")
    world.put("south/config/config_gen.json", b"{")
    with Board(world).serving() as board:
        above, table = board.page("/").text.split('<h2 id="pipelines">')
    assert above.count("mode/state.json: not JSON") == 1
    assert "config/config_gen.json: " in above
    assert ("north</th>" in table, "south</th>" in table) == (True, False)
    assert "needs a person" in table


def test_an_invalid_run_is_named_beside_the_others() -> None:
    world = busy_world()
    first, *others = BucketLedger(world.bucket, world.clock).runs()
    world.put(f"runs/{first.run_id}.json", b"{<b>")
    with Board(world).serving() as board:
        page, document = board.page("/runs").text, board.json("/runs")
    assert [run["run_id"] for run in document["runs"]] == [run.run_id for run in others]
    [told] = document["unreadable"]
    assert told.startswith(f"runs/{first.run_id}.json: ")
    assert f"<li>runs/{first.run_id}.json: the whole document: not JSON" in page
    assert all(run.run_id in page for run in others)


def test_without_the_bucket_each_page_says_so() -> None:
    world = busy_world()
    away = FailingBucket(
        MemoryBucket(), *(Fault(operation=it, number=1, times=10**6) for it in ("read", "list", "find"))
    )
    with Board(world, away).serving() as board:
        for path in PATHS:
            found = board.page(path)
            assert found.status_code == 503, path
            assert 'role="alert"' in found.text
            assert found.elapsed.total_seconds() < 5
            assert [*board.program(path).json()] == ["error"]
