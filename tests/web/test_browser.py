"""The dashboard in a real browser: accessible, on phone and desktop, without scripts, live, and acting."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsing import DESKTOP, PATHS, PHONE, ROOT, TOKEN, Dashboard, chromium, serving, signed_in
from dashboard import busy_world, in_directory
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SMALLEST = 44  # pixels of a tap target
WITHIN_MS = 30_000

expect.set_options(timeout=WITHIN_MS)  # its own is 5 s


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        started.contexts  # noqa: B018  it answers
        yield started


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Dashboard]:
    in_directory(busy_world(), tmp_path / "bucket")
    with serving(tmp_path) as served:
        yield served


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    made.set_default_timeout(WITHIN_MS)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def paths(page: Page, board: Dashboard) -> list[str]:
    """Return every kind of page, with a run and everything else that can be opened."""
    page.goto(f"{board.url}/runs")
    run = page.locator("#parts table a").first.get_attribute("href")
    assert run
    return [*PATHS, run, "/nothing"]


def test_every_page_is_for_everybody(browser: Browser, board: Dashboard) -> None:
    """axe finds nothing, nothing scrolls sideways, every tap target is large enough, and no policy is violated."""
    for viewport, scheme in ((PHONE, "dark"), (DESKTOP, "light")):
        with ExitStack() as stack:
            context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
            stack.callback(context.close)
            page, told = context.new_page(), Complaints()
            page.on("console", told.hear)
            page.goto(f"{board.url}/login")
            look(page, "/login")
            signed_in(page, board)
            for path in paths(page, board):
                page.goto(f"{board.url}{path}")
                look(page, path)
            assert [it for it in told.texts if "404" not in it] == []


class Complaints:
    """Collects the browser's complaints, such as policy violations."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.texts.append(message.text)


TAPPED = (
    "button:visible, nav a:visible, label:has(input):visible, "
    "input:not([type=hidden], [type=checkbox], [type=radio]):visible"
)


LATEST_IN_SIGHT = """it => {
    const right = it.querySelector(".chart").getBoundingClientRect().right;
    return right <= it.getBoundingClientRect().right + 1;
}"""


def look(page: Page, path: str) -> None:
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": RULES}})
    assert found.violations_count == 0, f"{path}: {found.generate_report()}"
    assert page.locator("h1").count() == 1, path
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    for it in page.locator(".scroll:has(.stacked)").all():
        assert page.viewport_size != PHONE or it.evaluate("it => it.scrollWidth <= it.clientWidth"), path
    for it in page.locator("figure .scroll").all():
        assert it.evaluate(LATEST_IN_SIGHT), path
    for it in page.locator(TAPPED).all():
        box = it.bounding_box()
        assert box, path
        assert min(box["height"], box["width"]) >= SMALLEST - 0.5, f"{path}: {it.inner_text()} {box}"


def test_the_first_page_is_light(page: Page, board: Dashboard) -> None:
    signed_in(page, board)
    sizes: list[int] = []
    page.on("requestfinished", lambda it: sizes.append(len(it.response().body()) if "/events" not in it.url else 0))
    with page.expect_response(lambda it: "/events" in it.url):
        page.goto(f"{board.url}/")
    assert len(sizes) <= 10
    assert sum(sizes) <= 100_000


def test_without_scripts_everything_can_be_seen_and_done(browser: Browser, board: Dashboard) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=PHONE)  # type: ignore[arg-type]
    page = signed_in(context.new_page(), board, "/dead-letters")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Dead letters")
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Drop").first.click()
    expect(page.get_by_role("button", name="Confirm")).to_be_visible()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("status")).to_contain_text("Done:")
    context.close()


def test_a_change_shows_without_loading_the_page_anew(page: Page, board: Dashboard) -> None:
    signed_in(page, board, "/mode")
    page.evaluate("window.same = true")
    command(board, "mode", "set", "2", "--why", "a test of the dashboard")
    expect(page.locator("#parts")).to_contain_text("a test of the dashboard")
    assert page.evaluate("window.same") is True


SEEN = """seen => {
  Object.defineProperty(document, "hidden", {value: !seen, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_page_out_of_sight_does_not_watch_and_catches_up(page: Page, board: Dashboard) -> None:
    page.add_init_script("""
      window.sources = [];
      window.EventSource = class extends EventSource { constructor(url) { super(url); window.sources.push(this); } };
    """)
    signed_in(page, board, "/mode")
    open_ones = "window.sources.filter(it => it.readyState !== EventSource.CLOSED).length"
    assert page.evaluate(open_ones) == 1
    page.evaluate(SEEN, False)
    assert page.evaluate(open_ones) == 0
    command(board, "mode", "set", "2", "--why", "a test of the dashboard")
    page.evaluate("dispatchEvent(new Event('online'))")
    assert page.evaluate(open_ones) == 0
    page.evaluate(SEEN, True)
    expect(page.locator("#parts")).to_contain_text("a test of the dashboard")
    assert page.evaluate(open_ones) == 1


def test_what_is_being_filled_in_is_kept_and_the_page_catches_up(page: Page, board: Dashboard) -> None:
    signed_in(page, board, "/mode")
    page.get_by_role("radio").nth(3).check()
    page.locator("h1").click()  # nothing has the focus
    command(board, "mode", "set", "2", "--why", "a test of the dashboard")
    expect(page.locator("#live")).to_contain_text("something has changed")
    expect(page.get_by_role("radio").nth(3)).to_be_checked()
    page.get_by_role("radio", name="auto").check()  # as it was
    page.locator("h1").click()
    expect(page.locator("#parts")).to_contain_text("a test of the dashboard")
    expect(page.locator("#live")).to_be_empty()


def test_a_page_that_asks_or_refuses_is_not_fetched_again(page: Page, board: Dashboard) -> None:
    """A GET of an action is refused, which used to count as a lost connection."""
    signed_in(page, board, "/dead-letters")
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Drop").click()
    expect(page.get_by_role("button", name="Confirm")).to_be_visible()
    assert not fetched_again(page)
    page.goto(f"{board.url}/runs/nothing")
    assert not fetched_again(page)
    page.goto(f"{board.url}/runs")
    assert fetched_again(page)


def fetched_again(page: Page) -> bool:
    """Return whether the page is fetched again after the news that something has changed."""
    asked: list[str] = []
    page.on("request", lambda it: asked.append(it.url))
    page.evaluate("document.body.dispatchEvent(new CustomEvent('changed'))")
    page.evaluate("fetch('/healthz').then((it) => it.status)")  # requests are reported in their order
    return page.url in asked


def test_a_page_without_a_bucket_shows_all_of_itself_once_the_bucket_is_back(page: Page, tmp_path: Path) -> None:
    """This holds even if no look for changes has seen it away."""
    in_directory(busy_world(), tmp_path / "bucket")
    bucket, away = tmp_path / "bucket", tmp_path / "away"
    with serving(tmp_path, WEB={"look_seconds": 3600}) as board:
        signed_in(page, board)
        bucket.rename(away)
        bucket.write_text("not a folder")
        page.goto(f"{board.url}/runs")
        expect(page.locator("h1")).to_have_text("Not now")
        with page.expect_response(f"{board.url}/runs"):
            pass  # it asks again, in vain
        expect(page.locator("h1")).to_have_text("Not now")
        expect(page.locator("#live")).not_to_contain_text("connection lost")
        bucket.unlink()
        away.rename(bucket)
        expect(page.locator("h1")).to_have_text("Runs")


def test_a_page_tells_that_its_document_is_invalid_and_shows_it_once_that_is_fixed(
    page: Page, board: Dashboard
) -> None:
    signed_in(page, board, "/alerts")
    with page.expect_response(f"{board.url}/alerts"):  # the page hears of changes
        command(board, "mode", "set", "1", "--why", "a test of the dashboard")
    document = board.folder / "bucket" / "alerts" / "state.json"
    valid = document.read_bytes()
    document.write_bytes(b"{")
    expect(page.locator("#parts")).to_contain_text("alerts/state.json: not JSON")
    expect(page.locator("#live")).to_be_empty()
    document.write_bytes(valid)
    expect(page.locator("h1")).to_have_text("Alerts")
    expect(page.locator("#parts")).not_to_contain_text("not JSON")


def test_a_dashboard_that_is_gone_is_reported_and_one_that_is_back_too(
    context: BrowserContext, page: Page, board: Dashboard
) -> None:
    signed_in(page, board)
    expect(page.locator(".fresh")).to_contain_text("Up to date at")
    context.set_offline(True)
    board.process.send_signal(19)  # SIGSTOP: nothing answers
    page.evaluate("document.body.dispatchEvent(new CustomEvent('changed'))")
    expect(page.locator("#live")).to_contain_text("connection lost")
    board.process.send_signal(18)
    context.set_offline(False)
    expect(page.locator("#live")).not_to_contain_text("connection lost")


def test_a_mode_is_set_by_a_button_and_told(page: Page, board: Dashboard) -> None:
    signed_in(page, board, "/mode")
    form = page.locator("form[action='/actions/mode']").first
    form.locator("[name=id]").first.wait_for(state="attached")
    chosen = form.locator("[name=id]").first
    if chosen.evaluate("it => it.tagName") == "SELECT":
        chosen.select_option("1")
    else:
        form.locator("[name=id][value='1']").check()
    form.get_by_role("button", name="Set").click()
    expect(page.get_by_role("status")).to_contain_text("Done: mode 1")
    assert '"mode": 1' in command(board, "--json", "mode", "show")


def test_a_run_shows_its_picture_and_its_video(page: Page, board: Dashboard) -> None:
    signed_in(page, board, "/runs")
    shown = ""
    for link in [it.get_attribute("href") for it in page.locator("#parts table a").all()]:
        page.goto(f"{board.url}{link}")
        if page.locator("video").count():
            shown = str(link)
            break
    assert shown, "no run has a video"
    assert page.locator("video").get_attribute("preload") == "none"
    picture = page.locator("#parts img").first
    assert picture.get_attribute("alt")
    media = page.request.get(board.url + str(picture.get_attribute("src")))
    assert (media.status, media.headers["content-type"]) == (200, "image/png")
    expect(picture).to_have_js_property("complete", True)


def test_it_ends_at_once_though_somebody_watches(page: Page, board: Dashboard) -> None:
    signed_in(page, board)
    with page.expect_response(lambda it: "/events" in it.url):
        page.reload()
    began = time.monotonic()
    board.process.terminate()
    assert board.process.wait(30) == 0
    assert time.monotonic() - began < 25  # 2 s on a quiet machine


@pytest.mark.parametrize(("token", "told"), [("", "is not set"), ("short", "cannot be used")])
def test_without_a_good_token_it_does_not_start(tmp_path: Path, token: str, told: str) -> None:
    environ = {"PATH": "/usr/bin", "PYTHONPATH": str(ROOT), "RETAKE_WEB_TOKEN": token}
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "retake", "web", "--port", "0"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 78
    assert f"RETAKE_WEB_TOKEN {told}" in done.stderr
    assert TOKEN not in done.stderr


def command(board: Dashboard, *arguments: str) -> str:
    """Return what the console's command prints beside the dashboard."""
    return subprocess.run(
        [sys.executable, "-m", "retake", *arguments],
        cwd=board.folder, env=board.environ, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
