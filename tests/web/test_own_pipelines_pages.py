"""The dashboard, with a pipeline of your own that PIPELINES names beside the story."""

from collections.abc import Iterator

import pytest
from acting import Site, done, serving, told
from dashboard import World  # type: ignore[attr-defined]
from own_poems import NAMED, POEM

from retake.bucket import ANY
from retake.retrying.dead_letters import DeadLetters
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
