"""The story's implementation of the port of `retake.operations`, which the console uses. Modules that check and act are
imported where they are used, since most commands only look."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from retake.bucket import Bucket, Entry
from retake.bucket.contract import scan
from retake.clock import Clock
from retake.degraded.mode import Mode
from retake.errors import RetakeError, StateError
from retake.operations.events import OPERATOR
from retake.operations.finding import Finding
from retake.operations.letters import letter_of
from retake.operations.pipelines import Operations, Terms
from retake.operations.port import (
    Bill,
    Evidence,
    ItemOrder,
    OrderPlan,
    OrderResult,
    PaidWork,
    PipelineState,
    Present,
    Refusal,
    Verb,
)
from retake.paid.bills import calls_of
from retake.paid.caps import Today
from retake.paid.spending import Spending
from retake.plural import count
from retake.runs.run import Run
from retake.runs.states import RunStatus
from retake.story.decision import PAYS, begin_held, decide_in, next_step, uncapped
from retake.story.documents import UNKNOWN, Documents, Step, safe_id
from retake.story.generation import DEAD_LETTERS, SPEND, after_requeue, nobodys_calls, recorded_calls
from retake.story.kept_bills import ended_bills, may_count, read_bill
from retake.story.operator_rules import why
from retake.story.operator_view import breaker_ahead, held_call, next_tick, step_attempt, story_state
from retake.story.settings import LEASE, SECTIONS, FilePaths, Settings, open_storage, part_of, pipeline_of, prefix_of
from retake.story.spending import known, price_of, story_spending
from retake.story.store import DocumentStore

if TYPE_CHECKING:
    from retake.checking import Examination
    from retake.story.operator_actions import OperatorActions

_PICTURE = frozenset({Step.IMAGINE, Step.UPSCALE, Step.RUNWAY})
_RECOVERED_BY: Mapping[str, frozenset[str]] = {
    Step.CONTENT: frozenset({Step.CONTENT, *_PICTURE, Step.MOCK}),
    Step.IMAGINE: _PICTURE,
    Step.FETCH: _PICTURE,
    Step.UPSCALE: frozenset({Step.UPSCALE, Step.RUNWAY}),
    Step.RUNWAY: frozenset({Step.RUNWAY}),
    Step.RUNWAY_POLL: frozenset({Step.RUNWAY}),
}
"""For each step that failed, the steps whose later result shows that it works again."""

_BY_MIDJOURNEY: tuple[str, ...] = (Step.IMAGINE, Step.UPSCALE, Step.FETCH)
_VENDORS: Mapping[str, str] = {Step.CONTENT: "chat API", Step.RUNWAY: "runway", Step.RUNWAY_POLL: "runway"}


def open_operations(
    settings: Settings,
    clock: Clock,
    *,
    channel: str | None = None,
    named: bool = False,
    bucket: Bucket | None = None,
    actor: str = OPERATOR,
) -> Operations:
    """Return the operations on the pipeline of `channel`, or, if that is None, on those of all CHANNELS.

    `named` is whether the operator named the channel. `bucket` replaces the one that the settings name. `actor` is
    recorded as the one who acts. If it is the operator, the kernel ends this process when its lease expires; otherwise
    only the work under that lease is lost.

    Raises StorageError, and SettingsError for a channel that is not one of the CHANNELS.
    """
    whole = bucket or open_storage(settings)

    def leasable() -> Bucket:
        return bucket or open_storage(settings, dead_mans_switch=actor == OPERATOR)

    workflow = settings.workflow
    terms = Terms(
        ledger_url=settings.storage.ledger,
        breaker=settings.breaker,
        script_timeout_s=workflow.script_timeout_seconds,
        concurrency=workflow.channel_concurrency,
        patience_s=2 * workflow.script_timeout_seconds,
        alerts=settings.alerts,
        modes=settings.modes,
        missing_secrets=settings.missing_secrets,
        kpi=settings.kpi,
        own_pipelines=[*settings.pipelines],
        left_behind=lambda: _left_at_root(settings, whole) if settings.channels and channel is None else "",
    )
    channels: list[str | None] = [channel] if channel or not settings.channels else [*settings.channels]
    caps = story_spending(settings, whole, clock).caps()
    part_of(whole, settings, channels[0])
    pipelines = [StoryOperations(settings, whole, clock, it, leasable, actor) for it in channels]
    return Operations(pipelines, whole, clock, caps=caps, terms=terms, named=named, actor=actor)


def _left_at_root(settings: Settings, whole: Bucket) -> str:
    """Return a message about the pipeline that was at the root of the bucket before there were CHANNELS, or "" if there
    is none. Raises StorageError."""
    document = settings.paths.config_midjourney
    if not whole.find(document, [""]):
        return ""
    return (
        f"{document} at the root of the bucket is of the pipeline from before there were CHANNELS, which no tick works "
        'on: docs/running.md, "From one pipeline to channels", says how to move it'
    )


class _StoryPlace:
    """The location of one channel's pipeline, and its settings. There may be 10,000 of these, so each holds little: the
    part of the bucket is opened anew each time."""

    lease_name: str | None = LEASE
    recovered_by = _RECOVERED_BY

    def __init__(
        self,
        settings: Settings,
        whole: Bucket,
        clock: Clock,
        channel: str | None,
        leasable: Callable[[], Bucket],
        actor: str,
    ) -> None:
        self.name = pipeline_of(channel)
        self.channel = channel
        self._settings, self._whole, self._clock = settings, whole, clock
        self._leasable, self._actor = leasable, actor

    @property
    def bucket(self) -> Bucket:
        return part_of(self._whole, self._settings, self.channel)

    @property
    def prefix(self) -> str:
        return prefix_of(self.channel)

    @property
    def vendors(self) -> Mapping[str, str]:
        return {**dict.fromkeys(_BY_MIDJOURNEY, self._settings.midjourney.provider), **_VENDORS}

    @property
    def holds_unknown(self) -> bool:
        return self._settings.workflow.on_unknown_outcome == "hold"

    def leasable(self) -> Bucket:
        return part_of(self._leasable(), self._settings, self.channel)

    @property
    def _spending(self) -> Spending:
        return story_spending(self._settings, self._whole, self._clock, self.name)

    def has_setting(self, name: str) -> bool:
        section, _, field = name.rpartition(".")
        return section in SECTIONS and field in SECTIONS[section].fields


class StoryOperations(_StoryPlace):
    """The pipeline of one channel for an operator (`retake.operations.port.OperatedPipeline`). `whole` is the whole
    bucket. `leasable` opens it for a process that takes the lease."""

    # --- queries ---

    def store(self) -> DocumentStore:
        """Return its documents, for reading."""
        return DocumentStore(self.bucket, self._settings.paths, None, self._clock)

    def state(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        return story_state(self.name, self.store(), self._settings, today, vendor_off, self._mode())

    def present(self) -> list[Present]:
        documents = self.store().read()
        name = documents.gen.generation_id
        return [Present(name, step_attempt(documents.midjourney, self._settings.workflow))] if name else []

    def evidence(self, item_id: str) -> Evidence:
        if not safe_id(item_id):
            return Evidence([], [])
        store = self.store()
        try:
            documents = store.read()
        except StateError:
            documents = None
        files = [*_files(self.bucket, self._settings.paths, item_id)]
        if documents is None or documents.gen.generation_id != item_id:
            return Evidence(files, recorded_calls(store, f"{SPEND}{item_id}.json") or nobodys_calls(store, item_id))
        doc = documents.midjourney
        step = step_attempt(doc, self._settings.workflow)
        return Evidence(files, doc.paid_calls, step, held_call(documents, self._settings.workflow, self.channel))

    def paid_since(self, day: str) -> PaidWork:
        documents = self.store().read()
        doc, present = documents.midjourney, documents.gen.generation_id
        under_way = [present] if present and doc.paid_calls else []
        ended, months = ended_bills(self.bucket, self._clock, day, not_summed=under_way)
        bills = {it.item_id: it for it in [*ended, *_nobodys(self.bucket, day)]}
        for name in under_way:  # the document of a requeued generation also has its old calls
            bills[name] = Bill(name, "under way", doc.paid_calls)
        return PaidWork([*bills.values()], known(doc), months=months)

    def check(self) -> Iterator[Finding]:
        from retake.story.operator_checks import document_checks

        yield from document_checks(self.store(), self.channel)

    def examinations(self) -> "list[Examination]":
        from retake.story.examinations import examinations

        return examinations(self.prefix, self._settings, self._clock)

    # --- orders ---

    @cached_property
    def _actions(self) -> "OperatorActions":
        from retake.bucket import this_process
        from retake.story.operator_actions import OperatorActions
        from retake.ticking.tick import Ledgers

        ledgers = Ledgers(self._settings.storage.ledger, self._clock)
        return OperatorActions(
            self._settings,
            self.leasable(),
            self._clock,
            owner=this_process(),
            pipeline=self.name,
            ledgers=ledgers,
            actor=self._actor,
            spending=self._spending,
        )

    def plan(self, order: ItemOrder) -> OrderPlan:
        verb, name, run, step = order
        store = self.store()
        documents = store.read()
        if verb is Verb.REQUEUE:
            kept = self._actions.requeuable(name, store)
            return OrderPlan(order, then=self._next_tick(after_requeue(store, name, kept)))
        if documents.gen.generation_id == name:
            try:
                return OrderPlan(order, self._actions.planned(verb, name, step).lost)
            except Refusal as refused:
                ahead = breaker_ahead(documents, self._settings.workflow, self._clock.now(), self._vendor_off)
                raise Refusal(f"{refused}{ahead}") from None
        letter = letter_of(self.bucket, self._clock, name) is not None
        cancelled = run is not None and run.status is RunStatus.CANCELLED
        if verb is Verb.RETRY and letter and not cancelled:
            self._actions.requeuable(name, store)
            return OrderPlan(order._replace(verb=Verb.REQUEUE))
        raise _has_ended(order, documents, letter=letter)

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        verb, name, _, step = order
        if verb is Verb.DROP:
            letter = self._actions.drop(name, agreed)
            files = len(letter.files) + (not letter.fault)
            return OrderResult(order, f"the dead letter {name} is dropped, {count(files, 'file')}")
        if verb is Verb.REQUEUE:
            after = self._actions.requeue(name)
            what, warning = f"{name} is requeued from its dead letter", _paid_again(after)
        else:
            done, after = self._actions.carry_out(verb, name, agreed, step)
            what, warning = done.done, done.warning or (f"given up: {done.lost}" if done.lost else "")
        return OrderResult(order, what, self._next_tick(after), warning, after.midjourney.status)

    def lower_flag(self) -> bool:
        return self._actions.lower_flag()

    def _next_tick(self, documents: Documents) -> str:
        """Return what the next tick does, as a sentence. The caps are ignored if the day's book cannot be read."""
        spending = self._spending
        try:
            today = spending.today(known(documents.midjourney)) if spending.capped else None
        except RetakeError:
            today = None
        over = (lambda step: today.over(price_of(self._settings, step))) if today else uncapped
        mode, mock, store = self._mode(), self._settings.modes.video_mock, self.store()
        _, coming = decide_in(mode, documents, self._settings.workflow, self._clock.now(), over, video_mock=mock)
        held = begin_held(mode, video_mock=mock) or over(Step.CONTENT)
        store.documents = documents
        try:
            told = next_tick(store, coming, held, self._vendor_off)
        except RetakeError:
            told = f"{coming.act} ({why(coming)})"
        return f"the next tick {told}" if told.startswith("waits") else f"the next tick: {told}"

    def _vendor_off(self, vendor: str) -> str:
        """Return why the vendor's breaker lets no call through now, or ""."""
        from retake.story.runner import story_breakers

        breakers = story_breakers(self._settings, self._whole, self._clock, self._actor)
        try:
            return breakers.off(vendor) if breakers else ""
        except StateError as error:
            return str(error)

    def _mode(self) -> Mode:
        """Return the degraded mode in force, or the full mode if it cannot be read."""
        from retake.degraded.store import ModeStore

        try:
            return ModeStore(self._whole, self._clock).mode(self._settings.modes, self._settings.alerts.timezone)
        except RetakeError:
            return Mode()


def _paid_again(documents: Documents) -> str:
    """Return a warning if the next paid call of a requeued generation may have been carried out before, else ""."""
    step, calls = PAYS.get(next_step(documents).act), documents.midjourney.paid_calls
    if step is None or not calls or (calls[-1].get("step"), calls[-1].get("outcome")) != (step, UNKNOWN):
        return ""
    return f"the {step} call of unknown outcome is made again: if it was carried out, it is paid for twice"


def _has_ended(order: ItemOrder, documents: Documents, *, letter: bool) -> Refusal:
    """Return why nothing can be done about a generation that is not under way, and what can be done instead."""
    name, run, present = order.item_id, order.run, documents.gen.generation_id
    if letter:
        way = f"it is among the dead letters: dead-letters requeue {name} resumes it"
        way += ", and then it can be rolled back" if order.verb is Verb.ROLLBACK else ""
    elif run and run.status is RunStatus.SUCCEEDED:
        way = "there is nothing to do"
    elif run and not run.ended:
        way = "its documents say that it has ended, and the next tick brings the ledger in line"
    else:
        way = "its dead letter was dropped and cannot be requeued; the next tick begins a new one"
    under_way = f"; under way is {present}" if present else ""
    return Refusal(f"{name} cannot be {_PAST[order.verb]}: it {_how_it_ended(run)}, and {way}{under_way}")


_PAST = {Verb.RETRY: "retried", Verb.SKIP: "skipped", Verb.CANCEL: "cancelled", Verb.ROLLBACK: "rolled back"}


def _how_it_ended(run: Run | None) -> str:
    if run is None or not run.ended:
        return "is not under way"
    return {RunStatus.SUCCEEDED: "has succeeded", RunStatus.CANCELLED: "was cancelled"}.get(run.status, "has failed")


def _files(bucket: Bucket, paths: FilePaths, name: str) -> Iterator[Entry]:
    for folder in paths.folders:
        yield from bucket.list(f"{folder}{name}.")
    yield from bucket.list(f"{DEAD_LETTERS}{name}/")
    yield from bucket.list(f"{SPEND}{name}.json")


def _nobodys(bucket: Bucket, day: str) -> Iterator[Bill]:
    """Yield the bills of work that belonged to no generation."""
    for entry in sorted(scan(bucket, f"{DEAD_LETTERS}before-", f"{DEAD_LETTERS}before")):
        name = entry.key.removeprefix(DEAD_LETTERS).partition("/")[0]
        if may_count(name, entry.modified, day) and entry.key.endswith(".json"):
            yield Bill(name, "nobody's", calls_of(read_bill(bucket, entry.key)))
