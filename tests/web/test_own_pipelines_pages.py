"""The dashboard, with a pipeline of your own that PIPELINES names beside the story."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from acting import Site, done, serving, told
from dashboard import World  # type: ignore[attr-defined]
from hanging_calls import Hanging
from own_poems import NAMED, POEM, Poems

from retake.bucket import ANY
from retake.errors import StateError
from retake.operations.attempts import StepAttempt
from retake.operations.port import (
    Evidence,
    ItemOrder,
    OrderPlan,
    OrderResult,
    PaidWork,
    PipelineState,
    Present,
    Verb,
    Waiting,
)
from retake.paid.caps import Today
from retake.paid.day_book import Known
from retake.retrying.dead_letters import DeadLetters
from retake.retrying.time_limit import abandoned
from retake.runs import open_ledger

PICTURE = b"\x89PNG of a poem"


@pytest.fixture
def world() -> World:
    world = World()
    day = f"caps/{world.clock.now():%Y-%m-%d}.json"
    world.put(day, {"pipelines": {"story": {"settled_usd": 0.1}, "poems": {"settled_usd": 0.25}}})
    part = world.bucket.part("poems/")
    part.write("poem.json", b'{"stuck": true}', ANY)
    part.write(f"{POEM}.png", PICTURE, ANY)
    ledger = open_ledger(None, part, world.clock)
    ledger.create_for_task(POEM, f"{POEM}#1", actor="cron", pipeline="poems", worker="w")
    return world


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    with serving(world.bucket, world.settings._replace(pipelines=NAMED), world.clock) as found:
        yield found


def page(site: Site, path: str) -> str:
    found = site.browser.get(path)
    assert found.status_code == 200, (path, found.text)
    return found.text


def test_each_page_that_tells_of_pipelines_has_it(site: Site) -> None:
    overview = page(site, "/")
    assert "<strong>poems</strong>" in overview
    assert "the muse is silent: retry poem-1" in overview
    assert POEM in page(site, "/runs?pipeline=poems")
    run = page(site, f"/runs/{POEM}")
    assert f'src="/media/poems/{POEM}.png"' in run
    spend = page(site, "/spend")
    assert ['<th scope="row">story</th>' in spend, '<th scope="row">poems</th>' in spend] == [True, True]
    for path in ("/kpi", "/dead-letters", "/alerts", "/mode", "/breakers"):
        page(site, path)


def test_its_media_are_under_its_name_and_not_under_that_of_the_story(site: Site) -> None:
    assert site.program.get(f"/media/poems/{POEM}.png").content == PICTURE
    assert site.program.get(f"/media/-/{POEM}.png").status_code == 404


def test_it_takes_orders(site: Site) -> None:
    assert "the muse sings again" in done(site.press("retry", id=POEM, channel="poems"))
    assert "the poem is not stuck" in told(site.press("retry", id=POEM))
    assert "takes no order to cancel" in told(site.press("cancel", id=POEM))
    assert "is none of the CHANNELS and PIPELINES (poems)" in told(site.press("retry", id=POEM, channel="poem"))


def test_its_dead_letters_are_named_with_it_and_dropped(world: World, site: Site) -> None:
    DeadLetters(world.bucket.part("poems/"), world.clock).put("poem-0", "poem", {}, {"message": "no rhyme"})
    listed = page(site, "/dead-letters")
    assert ['value="poems/poem-0"' in listed, 'href="/runs/poem-0"' in listed] == [True, True]
    asked = site.press("drop", id="poems/poem-0")
    assert "the dead letter poem-0 is dropped" in done(site.confirm(asked))


def test_the_button_that_breaks_its_lease_names_it(world: World, site: Site) -> None:
    world.bucket.part("poems/").lease("poems", "elsewhere:1")
    assert '<input type="hidden" name="id" value="poems">' in page(site, "/")
    assert "the lease of poems is broken" in done(site.press("unlock", id="poems"))


def test_the_bugs_of_one_are_told_on_the_pages_and_not_as_a_failure_of_the_dashboard(world: World) -> None:
    named = world.settings._replace(pipelines={"poems": "own_poems:Draft"})
    with serving(world.bucket, named, world.clock) as site:
        assert "Draft.describe failed: KeyError: &#39;verse&#39;" in page(site, "/")
        assert "Draft.paid_since failed" in page(site, "/spend")
        for path in ("/runs?pipeline=poems", "/kpi", "/dead-letters", "/alerts", "/mode", "/breakers"):
            page(site, path)
        run = site.browser.get(f"/runs/{POEM}")
        assert (run.status_code, "Draft.evidence failed" in run.text) == (409, True)
        assert "Draft.plan failed" in told(site.press("retry", id=POEM, channel="poems"))


def test_its_orders_need_the_form_of_the_session_and_a_dashboard_that_is_not_read_only(world: World) -> None:
    settings = world.settings._replace(pipelines=NAMED)
    with serving(world.bucket, settings, world.clock) as site:
        foreign = site.press("retry", id=POEM, channel="poems", csrf="another session's")
        assert (foreign.status_code, "older than your sign-in" in told(foreign)) == (403, True)
    with serving(world.bucket, settings, world.clock, read_only=True) as site:
        assert "/actions/retry" not in page(site, f"/runs/{POEM}")
        for answer in (site.press("retry", id=POEM, channel="poems"), site.order("retry", id=POEM, channel="poems")):
            assert (answer.status_code, "read-only" in answer.text) == (403, True)
    assert world.bucket.read("poems/poem.json")[0] == b'{"stuck": true}'


def test_an_order_that_it_can_carry_out_in_part_is_told_id_by_id(world: World, site: Site) -> None:
    letters = DeadLetters(world.bucket.part("poems/"), world.clock)
    letters.put("poem-0", "poem", {}, {"message": "no rhyme"})
    found = site.press("requeue", id=["poems/poem-0", "poems/poem-9"])
    assert "poem-0: poem-0: poems takes no order to requeue" in told(found)
    assert "poem-9: there is no dead letter" in told(found)
    dropped = site.confirm(site.press("drop", id=["poems/poem-0", "poems/poem-9"]))
    assert (dropped.status_code, "1 of 2 done" in told(dropped)) == (409, True)
    assert letters.count() == 0


ODD = {
    "html": "<script>alert(1)</script>\"'&",
    "right to left": "\u202eevil\u2066",
    "control": "a\x00b\x1b[31mred\x07\r\nnext\x85line",
    "long": "w" * 1_000_000,
    "lone surrogate": "bad \ud800 text",
}


class OddPoems(Poems):
    """One whose texts come from a vendor without manners."""

    text = ""

    def describe(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        it, step = self.text, StepAttempt(self.text, 1, 3)
        since = datetime(2026, 1, 1, tzinfo=UTC)
        return PipelineState(it, True, it, step, it, waiting=Waiting(it, it, since), next_tick=it, needs=(it,))

    def present(self) -> list[Present]:
        return [Present(it, StepAttempt(self.text, 1, 3)) for it in (self.text, POEM)]

    def evidence(self, item_id: str) -> Evidence:
        return Evidence([], [], StepAttempt(self.text, 1, 3), held=self.text)

    def paid_since(self, day: str) -> PaidWork:
        return PaidWork(
            [it._replace(item_id=self.text, outcome=self.text) for it in super().paid_since(day).bills], Known()
        )

    def plan(self, order: ItemOrder) -> OrderPlan:
        return OrderPlan(order, lost=self.text if order.verb is Verb.CANCEL else "")

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        assert agreed in ("", self.text)
        return OrderResult(order, self.text, self.text, self.text, self.text)


@pytest.mark.parametrize("text", ODD.values(), ids=list(ODD))
def test_whatever_its_texts_hold_each_page_is_shown_and_each_order_is_carried_out(
    world: World, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(OddPoems, "text", text)
    settings = world.settings._replace(pipelines={"poems": f"{__name__}:OddPoems"})
    with serving(world.bucket, settings, world.clock) as site:
        for path in ("/", "/runs", f"/runs/{POEM}", "/spend", "/dead-letters", "/kpi", "/alerts"):
            found = page(site, path)
            assert "<script>alert" not in found, path
            assert found.replace("\n", "").isprintable(), path
            assert len(found) < 200_000, path
            assert site.program.get(path, headers={"Accept": "application/json"}).status_code == 200, path
        for verb in ("retry", "skip"):
            done(site.press(verb, id=POEM, channel="poems"))
        done(site.confirm(site.press("cancel", id=POEM, channel="poems")))


class DeadDatabase(Poems):
    """One whose database does not answer for a while."""

    hanging = Hanging()

    def describe(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        self.hanging.here()
        return super().describe(today, vendor_off)


def test_one_that_hangs_holds_up_one_thread_and_the_others_are_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeadDatabase.hanging.begin(monkeypatch)
    settings = world.settings._replace(pipelines={"poems": f"{__name__}:DeadDatabase"})
    try:
        with serving(world.bucket, settings, world.clock) as site:
            assert "DeadDatabase.state has not returned within 0.05 s (line" in page(site, "/")
            for _ in range(20):
                overview = page(site, "/")
                assert "an earlier call has not returned yet (line" in overview
                assert '<th scope="row">story<' in overview
            assert "DeadDatabase.plan was not called" in told(site.press("retry", id=POEM, channel="poems"))
            assert abandoned() == 1
            DeadDatabase.hanging.end()
            assert "the muse is silent: retry poem-1" in page(site, "/")
    finally:
        DeadDatabase.hanging.end()
