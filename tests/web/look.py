"""python tests/web/look.py FOLDER: pictures of each page of the dashboard, on a phone and a desktop, light and dark.

They are for people: look at them. Three channels have worked for two weeks, well and badly; one needs a person now.
"""

import random
import re
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

from browsing import DESKTOP, PATHS, PHONE, chromium, serving, signed_in
from dashboard import in_directory
from story_world import Channel, World

from retake.alerts.board import Alert
from retake.alerts.store import BoardStore
from retake.clock import stamp
from retake.degraded.mode import Auto, Hand
from retake.degraded.store import ModeStore
from retake.media.picture import Size
from retake.media.placeholder import placeholder
from retake.retrying.breaker import BreakerState, encoded

CHANNELS = ("north", "south", "west")
CAP_USD = 80.0
FAILURES = {"write": 0.02, "imagine": 0.04, "upscale": 0.08, "create": 0.04}
"""How often a call fails."""


def rich_world() -> World:
    """Return two weeks of three channels, up to now; then a slow picture, a refused key, an open breaker, alerts and a
    degraded mode."""
    now, chance, shared = datetime.now(UTC).replace(microsecond=0), random.Random(7), World()
    shared.clock.moment = now - timedelta(days=14)

    def outcome(kind: str) -> str:
        if kind == "write" and chance.random() < 0.05:
            return "rejected"  # a dead letter
        return "refused" if chance.random() < FAILURES.get(kind, 0) else "ok"

    channels = [Channel(name, shared, daily_cap_usd=CAP_USD) for name in CHANNELS]
    for channel in channels:
        channel.interval_s = 0.0
        channel.vendors.choose_next = outcome
    while shared.clock.now() < now:
        for channel in channels:
            if chance.random() < 0.7:
                channel.tick()
                _publish(channel)
        shared.later(minutes=20 if shared.clock.now() > now - timedelta(hours=24) else 50)
    shared.clock.moment = now
    channels[0].vendors.choose_next = lambda kind: "running" if kind == "fetch" else "ok"
    channels[0].ticks(3)
    channels[2].vendors.choose_next = lambda kind: "key"
    channels[2].ticks(12)
    shared.clock.moment = now
    picture = placeholder("A lighthouse that nobody lit", Size(768, 1344))
    for key in [it for it in shared.keys_of() if it.endswith(".png")]:
        shared.put(key, picture)
    _troubles(shared, now)
    return shared


def _publish(channel: Channel) -> None:
    """Publish what is ready, as a publisher does; the next tick archives it."""
    ready = {key.partition("/")[2].partition(".")[0] for key in channel.keys_of("444/")}
    if ready:
        key = channel.settings.paths.config_public
        channel.put(key, {**channel.json(key), "generation_id": sorted(ready)})


def _troubles(shared: World, now: datetime) -> None:
    first, last = stamp(now - timedelta(minutes=50)), stamp(now - timedelta(minutes=4))
    key = Alert(
        "a-71c2", "key", "key_refused", "critical", "OpenAI refuses the key", 3, {"story/west": last}, first, last
    )
    slow = Alert(
        "a-20be", "slow", "step_failed", "warning", "upscale fails often", 12, {"story/north": last}, first, last
    )
    slow = slow._replace(state="acknowledged", acknowledged_by="web", message="12 of the last 60 tries failed")
    over = Alert("a-0f3d", "over", "cap", "error", "The day's money is spent", 1, {}, first, last, state="resolved")
    alerts = {it.key: it for it in (key, slow, over._replace(closed_at=last, had=("story/south",)))}
    BoardStore(shared.bucket, shared.clock).change(lambda board: (board._replace(alerts=alerts), None))
    ModeStore(shared.bucket, shared.clock).change(
        lambda state: state._replace(hand=Hand(1, "Runway is slow today", first), auto=Auto(1, first, 0.21, 84))
    )
    opened = now - timedelta(minutes=6)
    breaker = BreakerState((), now + timedelta(minutes=9), opened, "ERR_TEMPORARY_UNAVAILABLE")
    shared.put("breakers/runway.json", encoded(breaker))
    shared.put("breakers/openai.json", encoded(BreakerState((opened,), code="ERR_TEMPORARY_TIMEOUT")))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="retake-look-") as scratch:
        in_directory(rich_world(), Path(scratch, "bucket"))
        workflow = {"daily_cap_usd": CAP_USD}
        with serving(Path(scratch), CHANNELS=[*CHANNELS], WORKFLOW=workflow) as board, chromium() as browser:
            for (place, viewport), scheme in product((("phone", PHONE), ("desk", DESKTOP)), ("light", "dark")):
                context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
                page = signed_in(context.new_page(), board, "/runs?status=succeeded")
                run = page.locator("#parts table a").first.get_attribute("href") or "/runs"
                for path in ("/login", *PATHS, "/alerts/a-71c2", run):
                    page.goto(f"{board.url}{path}")
                    name = "run" if path == run else re.sub(r"\W+", "-", path).strip("-") or "overview"
                    page.screenshot(path=folder / f"{name}-{place}-{scheme}.png", full_page=True)
                context.close()
    print(f"Look at {folder}/*.png")  # noqa: T201


if __name__ == "__main__":
    main()
