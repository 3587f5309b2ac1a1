"""Runs ticks of one story pipeline, or says what a tick would do."""

from collections.abc import Callable, Collection, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING

from retake.alerts.conditions import PipelineFacts
from retake.bucket import Bucket, Lease
from retake.bucket.contract import Sight, lease_and_look, offers_looks
from retake.clock import Clock
from retake.degraded.mode import Mode
from retake.keys import Keys
from retake.logs import diagnosing
from retake.story.decision import (
    PAYS,
    Act,
    Action,
    begin_held,
    decide_in,
    picture_unsaved,
    under_mode,
    vendor_of,
    vendor_of_step,
)
from retake.story.documents import Documents, Step
from retake.story.generation import TakenIds, new_id
from retake.story.pipeline import Observer, StoryPipeline
from retake.story.settings import LEASE, Settings, pipeline_of
from retake.story.spending import CapWatch, story_spending
from retake.story.store import DocumentStore, aside_prefix
from retake.story.tidy import tidy_plan
from retake.ticking.tick import NO_ORDERS, Ledgers, Orders, Scripts, Tick, TickRunner
from retake.ticking.watch import AfterWork, TickWatch

if TYPE_CHECKING:
    from retake.story.run_mirror import RunMirror
    from retake.ticking.rest import IdleLook
    from retake.ticking.vendor_breakers import VendorBreakers


def unobserved(documents: Documents, action: Action) -> None:
    """Ignore the decision."""


class StoryRunner:
    """Runs ticks of one story pipeline, whose runs are called `pipeline` on the ledger ("story", "story/CHANNEL").

    `whole` is the whole bucket, if `bucket` is a channel's part. With `one_generation`, all ticks are about the
    generation of the first one, and begin no other. For `observe`, `unflagged` and `confirmed_mode` (default: `mode`)
    see `StoryPipeline`.
    """

    def __init__(
        self,
        settings: Settings,
        bucket: Bucket,
        scripts: Scripts,
        keys: Keys,
        clock: Clock,
        *,
        owner: str,
        pipeline: str = "story",
        whole: Bucket | None = None,
        ledgers: Ledgers | None = None,
        observe: Observer = unobserved,
        unflagged: Container[Act] = (),
        mode: Callable[[], Mode] = Mode,
        confirmed_mode: Callable[[], Mode] | None = None,
        found_interrupted: Callable[[str], None] = lambda at: None,
        one_generation: bool = False,
    ) -> None:
        self._settings = settings
        self._bucket = bucket
        self._scripts = scripts
        self._keys = keys
        self._clock = clock
        self._owner = owner
        self._pipeline = pipeline
        self._ledgers = ledgers or Ledgers(settings.storage.ledger, clock)
        self._breakers = story_breakers(settings, whole or bucket, clock, owner)
        self._spending = story_spending(settings, whole or bucket, clock, pipeline)
        self._observe = observe
        self._unflagged = unflagged
        self._mode = mode
        self._confirmed_mode = confirmed_mode or mode
        self._found_interrupted = found_interrupted
        self._one_generation = one_generation
        self._only: str | None = None
        self._opened: StoryPipeline | None = None
        self._store: DocumentStore | None = None
        self._seen: Sight | None = None

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        """Run one tick. Raises StateError, StorageError, LeaseLost, SettingsError; the lease is then free again."""
        self._opened = None
        tick = TickRunner(self._bucket, LEASE, self._owner, self._open, self._breakers, self._take).tick(orders)
        if self._one_generation:
            self._only = self._only or tick.generation_id
        return tick

    def preparing(self) -> AbstractContextManager[None]:
        """Prepare, during the block, for the next tick to take the lease. Writes nothing."""
        if not offers_looks(self._bucket):
            return nullcontext()
        from retake.bucket.side_by_side import lease_prepared

        return lease_prepared(self._bucket, LEASE)

    def facts(self) -> PipelineFacts | None:
        """Return the facts for alerts after the last tick, or None if another process held the lease or the state could
        not be read."""
        return self._opened.facts() if self._opened else None

    @property
    def worked(self) -> bool:
        """Whether the last tick did anything."""
        return self._opened is not None and self._opened.worked

    @property
    def documents(self) -> Documents | None:
        """The documents at the end of the last tick, or None if it did not get the lease."""
        return self._store.documents if self._opened and self._store else None

    def _take(self, name: str, owner: str) -> Lease:
        paths = self._settings.paths
        prefixes = (aside_prefix(paths), *paths.folders.staged)
        lease, self._seen = lease_and_look(self._bucket, name, owner, paths.documents, prefixes)
        return lease

    def _open(self, lease: Lease) -> StoryPipeline:
        self._store = DocumentStore(self._bucket, self._settings.paths, lease, self._clock, self._seen)
        self._opened = StoryPipeline(
            self._settings,
            self._store,
            lease,
            scripts=self._scripts,
            keys=self._keys,
            clock=self._clock,
            spending=self._spending,
            open_mirror=lambda: self._mirror(lease),
            observe=self._observe,
            unflagged=self._unflagged,
            mode=self._mode(),
            confirmed_mode=self._confirmed_mode,
            found_interrupted=self._found_interrupted,
            only=self._only,
        )
        return self._opened

    def _mirror(self, lease: Lease) -> "RunMirror":
        from retake.operations.events import CRON
        from retake.story.run_mirror import RunMirror

        ledger = self._ledgers.of(self._bucket, lease)
        external = self._ledgers.external
        return RunMirror(ledger, self._pipeline, self._clock, actor=CRON, worker=self._owner, external=external)

    def dry_run(self, orders: Orders = NO_ORDERS) -> list[str]:
        """Return what a tick would do, in words. Changes nothing. Raises StateError, StorageError."""
        store, limits = DocumentStore(self._bucket, self._settings.paths, None, self._clock), self._settings.workflow
        store.read()
        if orders != NO_ORDERS:
            from retake.story.orders import check, documents_after

            check(orders, store, limits)
            store.documents = documents_after(orders, store, limits, self._clock.now())
        documents = store.documents
        mode, mock = self._mode(), self._settings.modes.video_mock
        over = CapWatch(self._spending, store)
        due, action = decide_in(mode, documents, limits, self._clock.now(), over, video_mock=mock)
        if action.act in PAYS:
            mode = self._confirmed_mode()
            action = under_mode(due, mode, video_mock=mock)
        if diagnosing():
            from retake.story.diagnosis import log_decision

            log_decision(documents, action, mode.mode)
        if off := self._vendor_off(vendor_of(action)):
            action = Action(Act.WAIT, action.step, off)
        about = documents.gen.generation_id or "no generation"
        lines = [f"{about}: would {action.act} ({action.why})"]
        if action.act is Act.BEGIN or action.tidies:
            plan = tidy_plan(store)
            lines += [f"would move {move.source} to {move.target}" for moves in plan.moves for move in moves]
        if action.act is Act.WAIT and picture_unsaved(action, documents, mode.mode):
            lines.append("would save the picture, before the link to it expires")
        if action.act is Act.BEGIN:
            why = (begin_held(self._confirmed_mode(), video_mock=mock) or over(Step.CONTENT)) if plan.room else ""
            first = f"would begin {new_id(self._clock.now(), TakenIds(store, plan.staged))}"
            off = self._vendor_off(vendor_of_step(Step.CONTENT))
            first = f"would begin nothing: {why}" if why else f"{first}, then wait ({off})" if off else first
            lines.append(first if plan.room else f"{store.paths.folder_666} holds a ready group: would begin nothing")
        return lines

    def _vendor_off(self, vendor: str | None) -> str:
        return self._breakers.off(vendor) if self._breakers else ""


def story_breakers(settings: Settings, bucket: Bucket, clock: Clock, owner: str) -> "VendorBreakers | None":
    """Return the vendors' breakers, or None if the settings turn them off. `bucket` is the whole bucket, not a
    channel's part."""
    if settings.breaker.failures is None:
        return None
    from retake.ticking.vendor_breakers import VendorBreakers

    return VendorBreakers(settings.breaker, bucket, clock, owner, settings.workflow.script_timeout_seconds)


def story_watch(
    settings: Settings, bucket: Bucket, clock: Clock, environ: Mapping[str, str], look: "IdleLook | None" = None
) -> TickWatch:
    """Return the watch (alerts and mode) for ticks of stories. `bucket` is the whole bucket, not a channel's part."""

    def after_work(mode: Mode, worked: Collection[str]) -> AfterWork:
        from retake.operations.after_work import after_work
        from retake.story.operations import open_operations

        unchanged = pipelines.difference(worked) if settings.channels else None
        return after_work(open_operations(settings, clock, bucket=bucket), mode, unchanged)

    def report(kind: str, now: datetime) -> None:
        from retake.operations.reports import send_report
        from retake.story.operations import open_operations

        send_report(open_operations(settings, clock, bucket=bucket), kind, now)

    pipelines = {pipeline_of(it) for it in settings.channels or (None,)}

    def is_gone(pipeline: str) -> bool:
        return pipeline.partition("/")[0] == "story" and pipeline not in pipelines

    return TickWatch(
        settings.alerts,
        settings.modes,
        bucket,
        clock,
        environ,
        after_work=after_work,
        report=report,
        is_gone=is_gone,
        look=look,
    )
