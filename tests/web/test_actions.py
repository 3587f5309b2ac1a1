"""Buttons: each order is carried out, refused in the console's words, and denied to those who may not give it."""

import json
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from acting import PAGE, dashboard, done, serving, told
from acting_world import ID, PUBLIC, STATES, World, failed_run, runs
from schemas import check_answer
from test_console_breaker import breaker, closed, opened
from test_console_ledgers import of, with_channels
from test_console_unlock import claimed

sys.path.append(str(Path(__file__).parents[1] / "music"))

from rows_world import Rows

from retake.alerts.board import Alert
from retake.alerts.store import BoardStore
from retake.bucket import ABSENT
from retake.bucket.directory import DirectoryBucket
from retake.clock import stamp
from retake.runs.bucket_ledger import BucketLedger

ALERT = "a-1"


def alerted() -> World:
    world = STATES["no generation"]()
    at = stamp(world.clock.now())
    alert = Alert(ALERT, "story.key", "key_refused", "critical", "A key is refused", 1, {"story": at}, at, at)
    BoardStore(world.bucket, world.clock).change(lambda board: (board._replace(alerts={alert.key: alert}), None))
    return world


def letters(*ids: str) -> World:
    world = STATES["no generation"]()
    for name in ids:
        report = {"generation_id": name, "failed_at_utc": "2026-01-01T00:00:00Z", "failed_step": "upscale"}
        world.put(f"dead_letters/{name}/report.json", report)
        world.put(f"dead_letters/{name}/{name}.json", {"x": 1})
    return world


def held() -> World:
    world = STATES["pictures failed"]()
    world.bucket.lease("story", "host-a:17")
    return world


class Case:
    """An order: where it is given, what is then shown, where it is refused, and how."""

    def __init__(
        self,
        verb: str,
        target: str,
        world: Callable[[], World],
        what: str,
        refused: Callable[[], World],
        why: str,
        *,
        command: str = "",
        back: str = "/",
        asks: str = "",
    ) -> None:
        self.verb, self.target, self.world, self.what = verb, target, world, what
        self.refused, self.why, self.command, self.back, self.asks = refused, why, command or verb, back, asks


NOTHING = STATES["no generation"]
DEAD = STATES["dead_lettered"]
CASES = [
    Case("retry", ID, STATES["pictures failed"], "retried", STATES["pictures there"], "nothing of it has failed"),
    Case("skip", ID, STATES["pictures failed"], "a mock takes its place", STATES["text failed"], "without"),
    Case("cancel", ID, STATES["text next"], f"{ID} is cancelled", STATES["failed for good"], "failed for good"),
    Case("cancel", ID, STATES["pictures failed"], f"{ID} is cancelled", STATES["failed for good"], "failed for good",
         asks=f"Cancelling {ID} gives up 2 paid calls (0.055 USD)."),
    Case("requeue", ID, DEAD, f"{ID} is requeued", NOTHING, "there is no dead letter",
         command="dead-letters requeue", back="/dead-letters"),
    Case("drop", ID, DEAD, f"the dead letter {ID} is dropped", NOTHING, f"there is no dead letter {ID!r}",
         command="dead-letters drop", back="/dead-letters", asks=f"Dropping {ID} loses for good:"),
    Case("acknowledge", ALERT, alerted, f"the alert {ALERT} is acknowledged by web", NOTHING,
         f"there is no alert {ALERT!r}", command="alerts ack", back="/alerts"),
    Case("close", ALERT, alerted, f"the alert {ALERT} is closed", NOTHING, f"there is no alert {ALERT!r}",
         command="alerts close", back="/alerts"),
    Case("probe", "midjourney", opened, "one call is let through", closed, "there is nothing to probe",
         command="breaker probe", back="/breakers"),
    Case("reset", "midjourney", opened, "the breaker midjourney is closed", NOTHING, "there is no breaker",
         command="breaker reset", back="/breakers"),
]  # fmt: skip
IDS = [f"{it.verb}{' asks' * bool(it.asks)}" for it in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_button_does_what_the_command_does(case: Case) -> None:
    with dashboard(case.world()) as site:
        answer = site.press(case.verb, id=case.target)
        if case.asks:
            assert answer.status_code == 200
            assert case.asks in answer.text
            answer = site.confirm(answer)
        assert case.what in done(answer)
        assert answer.headers["location"] == case.back


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_program_gets_the_document_of_the_command(case: Case) -> None:
    with dashboard(case.world()) as site:
        answer = site.order(case.verb, id=case.target, **({"agreed": "1"} if case.asks else {}))
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert case.what in answer.json()["what"]
        check_answer(case.command, answer.json())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_does_not_fit_is_refused_in_the_words_of_the_console_and_changes_nothing(case: Case) -> None:
    world = case.refused()
    before = world.everything()
    with dashboard(world) as site:
        page, document = site.press(case.verb, id=case.target), site.order(case.verb, id=case.target, agreed="1")
    assert (page.status_code, document.status_code) == (409, 409)
    assert case.why in told(page)
    assert case.why in document.json()["error"]
    assert told(page) == document.json()["error"]
    assert world.everything() == before


@pytest.mark.parametrize("verb", ["retry", "skip", "requeue"])
def test_while_somebody_is_at_work_nothing_is_done(verb: str) -> None:
    world = DEAD() if verb == "requeue" else STATES["pictures failed"]()
    world.bucket.lease("story", "host-a:17")
    before = world.everything()
    with dashboard(world) as site:
        page, document = site.press(verb, id=ID), site.order(verb, id=ID)
    assert (page.status_code, document.status_code) == (423, 423)
    assert "host-a:17" in told(page)
    assert "host-a:17" in document.json()["error"]
    assert world.everything() == before


def test_the_mode_is_set_once_however_often_it_is_tapped() -> None:
    world = STATES["no generation"]()
    with dashboard(world) as site:
        assert done(site.press("mode", id="2")) == "mode 2 is in force: nothing is begun or paid for"
        first = world.json("mode/state.json")
        world.later(seconds=5)
        document = site.order("mode", id="2").json()
        assert world.json("mode/state.json") == first
        assert (document["done"], document["mode"], document["by"]) == ("set", 2, "operator")
        check_answer("mode set", document)
        assert site.order("mode", id="auto").json()["mode"] == 0
        assert [site.order("mode", id=it).status_code for it in ("4", "-1", "x", "2.0")] == [422] * 4


@pytest.mark.parametrize("accept", ["application/json", "Application/JSON"])
def test_a_session_that_asks_for_json_gets_the_document(accept: str) -> None:
    with dashboard(STATES["no generation"]()) as site:
        assert site.press("mode", {"Accept": accept}, id="2").json()["mode"] == 2


def test_an_unlock_says_whose_lease_it_breaks_first() -> None:
    world = claimed()
    world.bucket.lease("story", "host-a:17")
    with dashboard(world) as site:
        assert site.order("unlock").status_code == 409
        page = site.press("unlock")
        assert "This breaks the lease of story, held by host-a:17" in page.text
        world.later(seconds=90)  # the text about its last sign of life has changed by now
        assert "the lease of story is broken" in done(site.confirm(page))


def test_an_unlock_that_was_agreed_to_breaks_no_other_holders_lease() -> None:
    world = claimed()
    lease = world.bucket.lease("story", "host-a:17")
    with dashboard(world) as site:
        page = site.press("unlock")
        lease.release()
        other = world.bucket.lease("story", "host-b:4")
        again = site.confirm(page)
        assert (again.status_code, "held by host-b:4" in again.text) == (200, True)
    other.check()


def test_a_flag_that_a_crash_left_is_lowered_without_asking() -> None:
    world = STATES["video awaited"]()
    world.vendors.plan("poll", "running")
    world.tick()
    world.put(PUBLIC, {"processing_lock": True, "generation_id": ["x"]})
    with dashboard(world) as site:
        assert "processing_lock" in done(site.press("unlock"))
        refused = site.press("unlock")
    assert (refused.status_code, "there is nothing to unlock" in told(refused)) == (409, True)


def test_the_actor_on_record_is_web() -> None:
    world = STATES["pictures failed"]()
    with dashboard(world) as site:
        done(site.press("cancel", id=ID, agreed="yes"))
    events = world.bucket.read(f"runs/{runs(world)[-1].run_id}.json")[0].decode()
    assert '"web"' in events
    assert '"operator"' not in events
    assert world.json(f"dead_letters/{ID}/report.json")["cancelled"]["by"] == "web"


def test_what_was_done_on_the_dashboard_reads_as_done_by_a_person() -> None:
    world = STATES["pictures failed and wait"]()
    with dashboard(world) as site:
        done(site.press("retry", id=ID))
        told = site.program.get(f"/runs/{ID}", headers={"Accept": "application/json"}).json()["timeline"]
    by_web = [it["what"] for it in told if it["actor"] == "web"]
    assert any("handed over" in it or "by hand" in it or "retried" in it for it in by_web), told


def test_a_run_of_a_worker_is_queued_again_by_web() -> None:
    world = STATES["no generation"]()
    run = failed_run(world)
    with dashboard(world) as site:
        assert "is queued again" in done(site.press("retry", id=run.run_id))
    again = world.bucket.read(f"runs/{runs(world, 'cover-7')[-1].run_id}.json")[0]
    assert b'"web"' in again


# --- several at once ---------------------------------------------------------------------------------------------


def test_several_letters_are_dropped_at_once_after_one_question() -> None:
    world = letters("a", "b", "c")
    with dashboard(world) as site:
        page = site.press("drop", id=["a", "b"], back="/dead-letters?page=2")
        assert page.text.count("loses for good") == 2
        answer = site.confirm(page)
        assert done(answer) == "2 of 2 done"
        assert answer.headers["location"] == "/dead-letters?page=2"
    assert {key.split("/")[1] for key in world.keys_of("dead_letters/")} == {"c"}


def test_the_page_that_asks_about_very_many_stays_short() -> None:
    ids = [f"letter-{number}" for number in range(250)]
    world = letters(*ids)
    with dashboard(world) as site:
        page = site.press("drop", id=ids)
        assert (page.text.count("loses for good"), "And 150 more like these." in page.text) == (100, True)
        assert done(site.confirm(page)) == "250 of 250 done"
    assert world.keys_of("dead_letters/") == []


def test_a_refused_one_of_several_does_not_stop_the_others() -> None:
    with dashboard(letters("a", "b")) as site:
        page = site.press("drop", id=["a", "gone"], agreed="yes")
        document = site.order("drop", id=["b", "gone"], agreed="yes")
        none = site.order("drop", id=["gone", "lost"], agreed="yes")
    assert page.status_code == 409
    assert told(page).startswith("1 of 2 done. Not done: gone: there is no dead letter 'gone'")
    assert (document.status_code, none.status_code) == (200, 409)
    check_answer("dead-letters drop", document.json())
    found = document.json()
    assert (found["done"], found["exit_code"], [it["exit_code"] for it in found["results"]]) == (1, 65, [0, 65])


def test_a_program_that_does_not_agree_is_told_what_would_be_lost() -> None:
    world = letters("a", "b")
    before = world.everything()
    with dashboard(world) as site:
        one, two = site.order("drop", id="a"), site.order("drop", id=["a", "b"])
    assert one.status_code == two.status_code == 409
    assert (
        one.json()["error"]
        == "dropping a loses for good: a.json. Send the field agreed to confirm. Nothing was changed"
    )
    assert [it["exit_code"] for it in two.json()["results"]] == [65, 65]
    assert world.everything() == before


def test_an_agreement_holds_for_what_was_shown_alone() -> None:
    world = letters("a", "b")
    with dashboard(world) as site:
        page = site.press("drop", id="a")
        world.put("dead_letters/a/a.png", b"a picture")
        again = site.confirm(page)
        assert (again.status_code, "a.json, a.png" in again.text) == (200, True)
        agreed = re.search(r'name="agreed" value="(\w+)"', again.text)
        assert agreed
        other = site.press("drop", id="b", agreed=agreed[1])
        assert (other.status_code, "Confirm</button>" in other.text) == (200, True)
        assert "is dropped" in done(site.confirm(again))


def test_letters_of_several_channels_come_in_one_form() -> None:
    world = STATES["no generation"]()
    for channel in ("cats", "dogs"):
        world.put(f"{channel}/dead_letters/x/report.json", {"generation_id": "x", "failed_step": "upscale"})
        world.put(f"{channel}/dead_letters/x/x.json", {})
    with dashboard(world, channels=("cats", "dogs")) as site:
        assert "of several channels: cats, dogs" in told(site.press("drop", id="x", agreed="yes"))
        assert site.order("drop", id="x", channel="birds", agreed="yes").status_code == 409
        assert done(site.press("drop", id=["cats/x", "dogs/x"], agreed="yes")) == "2 of 2 done"
        assert "CHANNELS (cats, dogs)" in site.order("unlock").json()["error"]
        assert "nothing to unlock" in site.order("unlock", channel="cats").json()["error"]
    assert world.keys_of("cats/dead_letters/") == world.keys_of("dogs/dead_letters/") == []


def test_a_generation_of_one_of_several_channels_is_found_from_the_overview_and_its_alert() -> None:
    world = with_channels("cats", "dogs")
    for channel in ("cats", "dogs"):
        ledger = BucketLedger(of(world, channel).bucket, world.clock)
        ledger.create_for_task(f"{channel}/{ID}", "key", actor="cron", pipeline=f"story/{channel}")
    at = stamp(world.clock.now())
    alert = Alert(ALERT, "key", "step_failing", "error", "x", 1, {"story/dogs": at}, at, at, generation_id=ID)
    BoardStore(world.bucket, world.clock).change(lambda board: (board._replace(alerts={alert.key: alert}), None))
    with dashboard(world, channels=("cats", "dogs")) as site:
        pages = [site.browser.get(path, headers=PAGE).text for path in ("/", f"/alerts/{ALERT}")]
        links = [found for page in pages for found in re.findall(rf'href="(/runs/[^"]*{ID})"', page)]
        assert [it.split("/")[2] for it in links] == ["cats", "dogs", "dogs"]
        assert [site.browser.get(it, headers=PAGE).status_code for it in links] == [200] * 3


@pytest.mark.parametrize("channels", [(), ("cats", "dogs")], ids=["one pipeline", "at the root beside channels"])
def test_the_run_of_a_worker_that_names_no_pipeline_has_the_button_that_cancels_it(channels: Sequence[str]) -> None:
    world = with_channels(*channels) if channels else World()
    run = BucketLedger(world.bucket, world.clock).create_for_task("cover-7", "cover-7#1", actor="worker")
    with dashboard(world, channels=channels) as site:
        page = site.browser.get(f"/runs/{run.run_id}", headers=PAGE).text
        assert re.findall(r'action="/actions/(\w+)"', page.partition("<main")[2]) == ["cancel"]
        assert "is cancelled" in done(site.press("cancel", id=run.run_id, agreed="yes"))


# --- two taps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "directory"])
@pytest.mark.parametrize("case", [it for it in CASES if it.verb != "skip"], ids=lambda it: it.verb)
def test_two_taps_at_once_act_once(case: Case, in_memory: bool, tmp_path: Any) -> None:
    world = case.world()
    if not in_memory:
        bucket = DirectoryBucket(str(tmp_path), clock=world.clock)
        for key, data in world.everything().items():
            bucket.write(key, data, ABSENT)
    answers: list[Any] = []
    with dashboard(world, bucket=None if in_memory else bucket) as site:
        begin = threading.Barrier(4)

        def tap() -> None:
            begin.wait()
            answers.append(site.order(case.verb, id=case.target, agreed="1"))

        threads = [threading.Thread(target=tap) for _ in range(4)]
        for it in threads:
            it.start()
        for it in threads:
            it.join()
    statuses = sorted(it.status_code for it in answers)
    twice = case.verb in ("acknowledge", "close")  # repeated, they change nothing
    assert statuses[0] == 200
    assert set(statuses) <= {200, 409}
    assert statuses.count(200) == 1 or twice or len({it.text for it in answers if it.status_code == 200}) == 1


def test_a_worker_run_that_is_retried_twice_at_once_is_queued_once() -> None:
    world = STATES["no generation"]()
    run = failed_run(world)
    with dashboard(world) as site:
        threads = [threading.Thread(target=lambda: site.order("retry", id=run.run_id)) for _ in range(4)]
        for it in threads:
            it.start()
        for it in threads:
            it.join()
    assert len(runs(world, "cover-7")) == 2


def test_what_was_done_is_reported_once() -> None:
    with dashboard(STATES["pictures failed"]()) as site:
        what = done(site.press("retry", id=ID))
        other_tab = site.browser.get("/", headers={**PAGE, "HX-Request": "true"})  # it updates its parts
        assert "Done:" not in other_tab.text
        assert f"Done: {what}" in site.browser.get("/", headers=PAGE).text
        assert "Done:" not in site.browser.get("/", headers=PAGE).text


def test_an_alert_that_is_acknowledged_twice_is_reported_once() -> None:
    world = alerted()
    with dashboard(world) as site:
        first = site.order("acknowledge", id=ALERT).json()
        board = world.json("alerts/state.json")
        assert site.order("acknowledge", id=ALERT).json() == first
        assert world.json("alerts/state.json")["alerts"] == board["alerts"]
    assert json.dumps(board).count('"acknowledged_by": "web"') == 1


def test_a_probe_of_a_breaker_lets_one_call_through() -> None:
    world = opened()
    with dashboard(world) as site:
        done(site.press("probe", id="midjourney"))
    assert breaker(world).allow().probing


def test_pipelines_of_music_are_acted_on_beside_the_story(tmp_path: Path) -> None:
    rows = Rows(f"sqlite:{tmp_path}/music.db", daily_cap_usd=5.0)
    rows.create("one")
    rows.fail("no", "ERR_BUSINESS_REJECTED")
    world = STATES["pictures failed"]()
    try:
        with serving(world.bucket, world.settings, rows.clock, music=rows.settings) as site:
            assert "music-1 does cover again" in done(site.press("retry", id="music-1", channel="music"))
            refused = site.press("retry", id="music-1", channel="music")
            assert (refused.status_code, "only a failed pipeline" in told(refused)) == (409, True)
            assert "music-1 is cancelled" in done(site.press("cancel", id="music-1"))
            assert "takes no lease" in told(site.press("unlock", channel="music"))
            assert done(site.press("retry", id=ID))
            assert site.program.get("/media/music/music-1.png").status_code == 404
    finally:
        rows.database.close()


def test_the_spend_of_the_story_is_shown_beside_that_of_music(tmp_path: Path) -> None:
    rows = Rows(f"sqlite:{tmp_path}/music.db", daily_cap_usd=5.0)
    rows.create("one")
    world = STATES["pictures failed"]()
    world.put(f"caps/{world.clock.now():%Y-%m-%d}.json", {"pipelines": {"story": {"settled_usd": 0.1}}})
    try:
        with serving(world.bucket, world.settings, world.clock, music=rows.settings) as site:
            page = site.browser.get("/spend")
    finally:
        rows.database.close()
    assert page.status_code == 200
    assert [it in page.text for it in ('<th scope="row">story</th>', '<th scope="row">music</th>')] == [True, True]
