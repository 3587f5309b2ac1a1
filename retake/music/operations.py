"""The music pipeline behind the port of `retake.operations`: everything that the console needs from it."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from retake.bucket import Bucket
from retake.clock import Clock, stamp
from retake.errors import RetakeError, StateError
from retake.music import states
from retake.music.actions import PipelineActions, last_failed_step
from retake.music.calls import CallBook, counted_days
from retake.music.context import FOLDER
from retake.music.database import SETTING, MusicDatabase, open_music_database
from retake.music.operator_checks import checks
from retake.music.rows import PaidCall, PipelineRow, pipeline_of_task
from retake.music.settings import SECTIONS, MusicSettings, ServiceSettings
from retake.music.states import STEPS, MusicStep, resolve_command, retry_command
from retake.music.store import NAME, PipelineStore, UnknownPipeline, read_pipeline
from retake.music.survey import Survey, Trouble, calls_of, calls_since, survey, under_way
from retake.operations.attempts import StepAttempt
from retake.operations.finding import Finding
from retake.operations.pipelines import Operations, OwnLedger, Terms
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
from retake.operations.words import one_line, usd
from retake.paid.caps import Caps, Today
from retake.paid.day_book import DayBook, Known, Limits, Sums
from retake.plural import count
from retake.strict_json import parse

if TYPE_CHECKING:
    from retake.checking import Examination

NEEDS_SHOWN = 10
"""Maximum number of pipelines listed that wait for a person."""


def open_operations(settings: MusicSettings, clock: Clock, bucket: Bucket) -> Operations:
    """Return the operator's view of music only. `bucket` is the whole bucket."""
    pipeline = MusicOperations(settings, bucket, clock)
    terms = with_music(
        Terms(
            ledger_url=None,
            breaker=settings.breaker,
            script_timeout_s=settings.workflow.script_timeout_seconds,
            concurrency=1,
            patience_s=2 * settings.workflow.script_timeout_seconds,
            alerts=settings.alerts,
            modes=settings.modes,
            missing_secrets=settings.missing_secrets,
            kpi=settings.kpi,
        ),
        settings,
    )
    caps = Caps(bucket, clock, Limits())
    return Operations([pipeline], bucket, clock, caps=caps, terms=terms, named=True)


def with_music(terms: Terms, settings: MusicSettings) -> Terms:
    """Return the terms for operations that include the music pipeline."""
    return terms._replace(own_ledgers={**terms.own_ledgers, NAME: OwnLedger(settings.music.database, SETTING)})


class MusicOperations:
    """The operator's view of the music pipelines (`retake.operations.port.OperatedPipeline`).

    `whole` is the whole bucket. The database is opened when first needed: read-only, and for writing to carry out an
    order.
    """

    name = NAME
    channel: str | None = None
    lease_name: str | None = None
    recovered_by: Mapping[str, frozenset[str]] = {step.value: frozenset({step.value}) for step in STEPS}

    def __init__(self, settings: MusicSettings, whole: Bucket, clock: Clock) -> None:
        self.bucket, self.prefix = whole.part(FOLDER), FOLDER
        self.leasable = lambda: self.bucket
        self.vendors: Mapping[str, str] = vendors_of(settings)
        self.holds_unknown = settings.workflow.on_unknown_outcome == "hold"
        self._settings, self._clock = settings, clock

    def has_setting(self, name: str) -> bool:
        section, _, field = name.rpartition(".")
        return section in SECTIONS and field in SECTIONS[section].fields

    # --- queries ---

    @cached_property
    def database(self) -> MusicDatabase:
        """The database, read-only; empty if there is none. Raises SettingsError, StateError, StorageError."""
        return open_music_database(self._settings.music.database, self._clock, read_only=True)

    def state(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        try:
            with self.database.reading() as cursor:
                found = survey(cursor)
            own = self._today() if today is not None else None
        except RetakeError as error:
            words = "its database cannot be read"
            return PipelineState(words, readable=False, needs=(f"{words}: {error}",), own_book=True)
        off = [f"{vendor}: {why}" for vendor in dict.fromkeys(self.vendors.values()) if (why := vendor_off(vendor))]
        notes = [f"{it.item_id}: {it.error}" for it in found.capped[:1]]
        return PipelineState(
            _words(found),
            waiting=None,
            next_tick="the service continues it (retake music serve)" if found.running else "waits",
            idle=not found.running,
            today=own,
            own_book=True,
            needs=tuple(self._needs(found)),
            notes=(*notes, *off),
        )

    def examinations(self) -> "list[Examination]":
        from retake.music.examinations import examinations  # no tick needs it

        return examinations(self._settings, self._clock)

    def present(self) -> list[Present]:
        with self.database.reading() as cursor:
            return under_way(cursor, attempts_of(self._settings.music))

    def evidence(self, item_id: str) -> Evidence:
        pipeline_id = pipeline_of_task(item_id)
        if pipeline_id is None:
            return Evidence([], [])
        files = [*self.bucket.list(f"{pipeline_id}/")]
        try:
            with self.database.reading() as cursor:
                row, calls = read_pipeline(cursor, pipeline_id), calls_of(cursor, pipeline_id)
                jobs = PipelineStore(self.database).jobs(pipeline_id)
        except UnknownPipeline:
            return Evidence(files, [])
        step = None
        if row.step and row.state == states.running(row.step):
            number = jobs[-1].attempt if jobs and jobs[-1].run_number == row.run_number else 1
            step = StepAttempt(row.step.value, number, attempts_of(self._settings.music)[row.step])
        held = ""
        if row.state == states.AWAITING_MANUAL:
            reason = row.failed_reason or "nobody can tell what became of a call"
            held = f"{reason}; {resolve_command(row.id, reason.partition(':')[0])}"
        return Evidence(files, call_documents(calls), step, held)

    def paid_since(self, day: str) -> PaidWork:
        with self.database.reading() as cursor:
            found = calls_since(cursor, day)
        of: dict[int, list[tuple[PaidCall, int]]] = {}
        for call, _, attempt in found:
            of.setdefault(call.pipeline_id, []).append((call, attempt))
        outcomes = {call.pipeline_id: _OUTCOMES.get(state, "under way") for call, state, _ in found}
        bills = [Bill(f"{NAME}-{it}", outcomes[it], call_documents(calls)) for it, calls in of.items()]
        return PaidWork(bills, Known(), self._today())

    def check(self) -> Iterator[Finding]:
        yield from checks(self._settings, self._clock)

    def _today(self) -> Today:
        """Return the spending that counts today, from the table of paid calls, with music's own cap."""
        day, last = counted_days(self._clock.now().date())
        with self.database.reading() as cursor:
            calls = [call for call, _, _ in calls_since(cursor, day) if call.day <= last]
        pending = {str(call.id): call.price_usd for call in calls if call.outcome == "pending"}
        settled = round(sum(call.price_usd for call in calls if call.outcome != "pending"), 6)
        book = DayBook(day, {NAME: Sums(settled, pending)})
        return Today(book, day, False, NAME, Limits(self._settings.music.daily_cap_usd))

    def _needs(self, found: Survey) -> Iterator[str]:
        """Yield what a person has to do: a line for each pipeline that waits for one, the newest first."""
        waiting = [f"{it.item_id} waits for your decision: {_told(it)}; {resolve_command(it.pipeline_id, it.step)}"
                   for it in found.awaiting]  # fmt: skip
        waiting += [f"{it.item_id} failed{_at(it)}: {_told(it)}; {retry_command(it.pipeline_id, it.step)}"
                    for it in found.failed]  # fmt: skip
        if found.pending:
            store, wanted = PipelineStore(self.database), [states.pending(step) for step in STEPS]
            for row in store.listing(wanted, limit=NEEDS_SHOWN):
                waiting.append(f"{row.task_id} waits for your yes to its {row.step}")
        yield from waiting[:NEEDS_SHOWN]
        number = found.pending + found.number(states.FAILED, states.AWAITING_MANUAL)
        if number > NEEDS_SHOWN:
            yield f"{number - NEEDS_SHOWN} more wait for you: retake music list"

    # --- orders ---

    def plan(self, order: ItemOrder) -> OrderPlan:
        pipeline_id = self._id_of(order)
        with self.database.reading() as cursor:
            row = read_pipeline(cursor, pipeline_id)
            standing = row.standing(last_failed_step(cursor, pipeline_id))
        match order.verb:
            case Verb.RETRY:
                states.retried(standing)
            case Verb.CANCEL:
                states.cancellable(standing)
            case _:
                raise Refusal(
                    f"{order.item_id} is a pipeline of music: it can be retried or cancelled, and no more (see `music`)"
                )
        return OrderPlan(order)

    def carry_out(self, order: ItemOrder, agreed: str = "") -> OrderResult:
        self.plan(order)
        pipeline_id, store = self._id_of(order), open_actions(self._settings, self._clock)
        if order.verb is Verb.RETRY:
            row = store.retry(pipeline_id)
            return OrderResult(
                order, f"{row.task_id} does {row.step} again", "the music service continues it", status=row.state
            )
        row = store.cancel(pipeline_id)
        return OrderResult(order, f"{row.task_id} is cancelled", after_cancel(store, row), status=row.state)

    def lower_flag(self) -> bool:
        return False

    def _id_of(self, order: ItemOrder) -> int:
        pipeline_id = pipeline_of_task(order.item_id)
        if pipeline_id is None:
            raise UnknownPipeline(f"{order.item_id} is not a pipeline of music: they are called music-7")
        return pipeline_id


def open_actions(settings: MusicSettings, clock: Clock) -> PipelineActions:
    """Open the pipelines for writing. Raises SettingsError, StateError, StorageError."""
    music = settings.music
    database = open_music_database(music.database, clock)
    return PipelineActions(database, uploads_per_day=music.uploads_per_day, telling=music.telegram != "off")


def after_cancel(store: PipelineStore, row: PipelineRow) -> str:
    """Return what follows for a pipeline that has just been cancelled, in words: nothing more is paid for, except
    perhaps a call whose result was not fetched."""
    follows, jobs = "nothing more is paid for", store.jobs(row.id)
    calls = [it for it in CallBook(store.database).of_pipeline(row.id) if it.take == row.take]
    if not calls or calls[-1].outcome in ("refused", "wasted") or (jobs and jobs[-1].status == "succeeded"):
        return follows
    last = calls[-1]
    what, task = f"the {last.step} call ({usd(last.price_usd)})", _task(last.answer)
    if last.outcome == "accepted":
        which = f"task {task} of {what}" if task else what
        return f"{follows}; {which} is paid for, and its result is not fetched"
    return f"{follows}, unless {what} was carried out: its outcome is not known"


def attempts_of(music: ServiceSettings) -> dict[MusicStep, int]:
    """Return the maximum number of attempts of each step."""
    return {step: 1 if step is MusicStep.PUBLISH else music.step_max_retries + 1 for step in STEPS}


def vendors_of(settings: MusicSettings) -> dict[str, str]:
    """Return the name, for people, of the vendor that each step calls."""
    pictures = settings.midjourney.provider
    by_step = {
        MusicStep.COVER: pictures,
        MusicStep.META: "chat API",
        MusicStep.REVIEW: "chat API",
        MusicStep.PUBLISH: "YouTube",
    }
    return {step.value: vendor for step, vendor in by_step.items()}


def call_documents(calls: list[tuple[PaidCall, int]]) -> list[dict[str, Any]]:
    """Return paid calls as documents for bills: docs/documents.md, "Paid call". A refused call is not billed."""
    later = {(call.pipeline_id, call.step): call.id for call, _ in calls}  # the last one wins
    return [_document(call, attempt, later[call.pipeline_id, call.step]) for call, attempt in calls]


def _document(call: PaidCall, attempt: int, last: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "step": call.step,
        "attempt": attempt,
        "requested_at_utc": stamp(call.requested_at),
        "price_usd": call.price_usd,
        "outcome": {"lost": "unknown", "held": "unknown"}.get(call.outcome, call.outcome),
    }
    if call.day and call.day != document["requested_at_utc"][:10]:
        document["counted_on"] = call.day
    if call.step == MusicStep.COVER and (task_id := _task(call.answer)):
        document["task_id"] = task_id
    if call.outcome in ("lost", "held") and call.id != last:
        document["possible_duplicate"] = True
    return document


def _task(answer: str | None) -> str | None:
    try:
        found = parse(answer) if answer else None
    except ValueError:
        return None
    return found if isinstance(found, str) else None


_OUTCOMES = {states.PUBLISHED: "done", states.FAILED: "failed", states.CANCELLED: "cancelled"}


def _words(found: Survey) -> str:
    wait = "waits" if found.pending == 1 else "wait"
    parts = [
        (found.running, f"{found.running} at work"),
        (found.pending, f"{found.pending} {wait} for your yes"),
        (found.number(states.AWAITING_MANUAL), f"{count(found.number(states.AWAITING_MANUAL), 'decision')} to make"),
        (found.number(states.FAILED), f"{found.number(states.FAILED)} failed"),
    ]
    return ", ".join(words for number, words in parts if number) or "nothing under way"


def _told(it: Trouble) -> str:
    return one_line(it.error, 120) or "no reason is on record"


def _at(it: Trouble) -> str:
    return f" at {it.step}" if it.step else ""
