"""A world whose ticks are wrapped in mode and alerts, like those of a process."""

from collections.abc import Mapping
from typing import Any

from story_world import World

from retake.alerts.board import Alert
from retake.alerts.settings import ALERTS
from retake.alerts.store import BoardStore
from retake.degraded.settings import MODES
from retake.operations.modes import ModePanel
from retake.settings.schema import Schema, read_table
from retake.story.operations import open_operations
from retake.story.runner import StoryRunner, story_watch
from retake.ticking.tick import NO_ORDERS, Orders, Tick
from retake.ticking.watch import TickWatch


def section(schema: Schema, given: Mapping[str, Any], name: str) -> Any:
    """Return a section of the settings, as the reader creates it."""
    faults: list[str] = []
    found = read_table(schema, given, name, faults)
    assert not faults, faults
    return found


class WatchedWorld(World):
    """`modes` and `alerts` are sections of the settings, `environ` has the channels' secrets."""

    def __init__(
        self,
        *,
        modes: Mapping[str, Any] | None = None,
        alerts: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        bucket: Any = None,
        **workflow: Any,
    ) -> None:
        super().__init__(bucket, **workflow)
        own = {"modes": section(MODES, modes or {}, "MODES"), "alerts": section(ALERTS, alerts or {}, "ALERTS")}
        self.settings = self.settings._replace(**own)
        self.environ = dict(environ or {})
        self.watch: TickWatch = self.new_watch()

    def new_watch(self) -> TickWatch:
        return story_watch(self.settings, self.bucket, self.clock, self.environ)

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        self.watch = self.new_watch()  # one per process
        try:
            tick = self.watch.tick("story", self.manager(), orders)
            self.after_tick()
        finally:
            self.clock.sleep(self.interval_s)
        if tick.ended:
            self.ended.append(tick.ended)
        return tick

    def manager(self, **given: Any) -> StoryRunner:
        told = {
            "mode": lambda: self.watch.mode,
            "confirmed_mode": lambda: self.watch.confirmed_mode(),
            "found_interrupted": lambda at: self.watch.interrupted("story", at),
        }
        return super().manager(**told, **given)

    @property
    def panel(self) -> ModePanel:
        return ModePanel(open_operations(self.settings, self.clock, bucket=self.bucket))

    def mode(self) -> dict[str, Any]:
        """Return the answer of `mode show --json`."""
        return self.panel.document(self.panel.state())

    def alerts(self) -> dict[str, Alert]:
        """Return the open alerts by code."""
        board = BoardStore(self.bucket, self.clock).read()
        return {it.code: it for it in board.alerts.values() if it.active}


def run_to_end(world: WatchedWorld, ticks: int = 30) -> None:
    while not world.ended:
        ticks -= 1
        assert ticks, world.doc
        world.tick()
