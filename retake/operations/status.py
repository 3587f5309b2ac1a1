"""The status of each pipeline, from a few reads however full the bucket is, without leases or writes."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from retake.alerts.board import Alert
from retake.alerts.conditions import ONLY_A_TICK_KNOWS, UNREADABLE
from retake.alerts.store import BoardStore
from retake.bucket import Holder
from retake.bucket.scanning import is_there
from retake.clock import stamp
from retake.errors import RetakeError, StateError
from retake.operations.breakers import BreakerStates, breaker_states, open_breakers, vendor_off
from retake.operations.modes import mode_notes
from retake.operations.pipelines import Operations
from retake.operations.port import OperatedPipeline, PipelineState
from retake.operations.words import one_line
from retake.paid.caps import Today
from retake.paid.day_book import Sums
from retake.retrying.dead_letters import DeadLetters
from retake.runs.ledger import OldTables
from retake.runs.run import Run
from retake.runs.states import FINAL, RunStatus

MAX_ENDED = 5
"""Number of the last ended runs that are shown."""


class PipelineStatus(NamedTuple):
    """The status of a pipeline: its own state, and what the lease, the dead letters and the ledger add to it."""

    channel: str | None
    pipeline: str | None  # its name, if it is not a channel and is shown beside others or was named
    leased: bool  # whether it takes a lease and proceeds with each tick
    state: PipelineState
    holder: Holder | None
    dead_letters: int
    counts: Mapping[RunStatus, int]
    ended: tuple[Run, ...]
    next_tick: str
    needs: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def label(self) -> str | None:
        """Its name beside other pipelines."""
        return self.channel or self.pipeline

    @property
    def today(self) -> Today | None:
        return self.state.today

    @property
    def sums(self) -> Sums | None:
        """What the pipeline has spent today, or None if its document is unreadable: it may have calls that the book
        lacks."""
        return self.today.sums if self.today and self.state.readable else None


class StatusReport(NamedTuple):
    """The status of all pipelines."""

    at: datetime
    pipelines: list[PipelineStatus]
    breakers: list[dict[str, Any]]  # those that are not closed
    cap_usd: float | None  # the daily cap of the pipelines that share the day's book

    @property
    def healthy(self) -> bool:
        """True if no person is needed."""
        return not any(it.needs for it in self.pipelines)

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "at": stamp(self.at),
            "healthy": self.healthy,
            "pipelines": [as_document(it, self.cap_usd) for it in self.pipelines],
            "breakers": self.breakers,
            "caps": caps_document(self.pipelines),
        }


def status_report(operations: Operations, cap_usd: float | None) -> StatusReport:
    """Return the status of all pipelines. `cap_usd` is the daily cap. Raises SettingsError, StorageError."""
    breakers = breaker_states(operations)
    seen = statuses(operations, breakers)
    now = operations.clock.now()
    return StatusReport(now, seen, open_breakers(breakers, now), cap_usd)


def told_by_all(each: Sequence[Sequence[str]]) -> list[str]:
    """Return the texts that several pipelines all have, which are shown once, in the order of the first one."""
    return [text for text in dict.fromkeys(each[0]) if all(text in it for it in each)] if len(each) > 1 else []


def statuses(operations: Operations, breakers: BreakerStates) -> list[PipelineStatus]:
    """Return the status of each pipeline. Raises SettingsError, StorageError."""
    today = _today(operations)
    off = vendor_off(operations, breakers)
    ended = MAX_ENDED if len(operations.pipelines) == 1 else 0
    (mode, invalid), (alerts, silent) = _mode(operations), _open_alerts(operations)
    shared = [*_absence(operations), *filter(None, [operations.terms.left_behind()]), *mode]
    for pipeline in operations.writers():
        if operations.ledger_url(pipeline):
            _runs(operations, pipeline, 0)  # opens a shared ledger once, here, rather than in each thread
    found = operations.each(lambda pipeline: _status(operations, pipeline, today, off, ended, shared))
    return [
        _with_alerts(it._replace(needs=(*it.needs, *invalid, *silent)), own)
        for it, pipeline in zip(found, operations.pipelines, strict=True)
        for own in [[alert for alert in alerts if pipeline.name in alert.pipelines]]
    ]


def _today(operations: Operations) -> Today | StateError:
    try:
        return operations.caps.today("")
    except StateError as error:
        return error


def _absence(operations: Operations) -> list[str]:
    """Return a note if there is no bucket yet, which looks like an empty one."""
    if is_there(operations.bucket):
        return []
    return [
        f"{operations.bucket.url} does not exist, and the next tick makes it. If there was one: is its disk there, and "
        "does STORAGE.url or RETAKE_STORAGE_URL name the bucket of the ticks?"
    ]


def _mode(operations: Operations) -> tuple[list[str], list[str]]:
    """Return notes about the mode, and what a person has to fix before anything is paid for."""
    try:
        return mode_notes(operations), []
    except StateError as error:
        return [], [str(error)]


def _open_alerts(operations: Operations) -> tuple[list[Alert], list[str]]:
    """Return the open alerts, and what a person has to fix before any is raised or sent again."""
    try:
        board = BoardStore(operations.bucket, operations.clock).read()
    except StateError as error:
        return [], [f"no alert is raised or sent: {error}"]
    return [it for it in board.alerts.values() if it.active], []


def _with_alerts(seen: PipelineStatus, alerts: Sequence[Alert]) -> PipelineStatus:
    """Return the status with the pipeline's alerts: a need for each that only a tick can find, unless it is about an
    invalid document and a known need names that better; a note for each of the others."""
    needing = [it for it in alerts if it.key in ONLY_A_TICK_KNOWS and not (seen.needs and it.key == UNREADABLE)]
    needs = [f"{': '.join(filter(None, (it.title, one_line(it.message, 200))))}; alerts show {it.id}" for it in needing]
    notes = [f"alert {it.id} is {it.state} ({it.level}): {it.title}" for it in alerts if it not in needing]
    return seen._replace(needs=(*seen.needs, *needs), notes=(*seen.notes, *notes))


def _status(
    operations: Operations,
    pipeline: OperatedPipeline,
    today: Today | StateError,
    off: Callable[[str], str],
    ended: int,
    shared: list[str],
) -> PipelineStatus:
    state = pipeline.state(today, off)
    holder = pipeline.bucket.holder(pipeline.lease_name) if pipeline.lease_name else None
    letters = DeadLetters(pipeline.bucket, operations.clock, counted=True).count(reported=True)
    counts, last, faults, notes = _runs(operations, pipeline, ended)
    next_tick = state.next_tick
    if holder:
        next_tick = f"leaves it to {holder.owner}, who is at work; after that, as things stand, {next_tick}"
    return PipelineStatus(
        pipeline.channel,
        operations.label(pipeline),
        pipeline.lease_name is not None,
        state,
        holder,
        letters,
        counts,
        last,
        next_tick,
        tuple(_needs(state, faults, today)),
        (*shared, *notes, *_notes(state, holder, operations)),
    )


def _runs(
    operations: Operations, pipeline: OperatedPipeline, ended: int
) -> tuple[Mapping[RunStatus, int], tuple[Run, ...], list[str], list[str]]:
    """Return the number of runs in each state, the last ended runs, why the ledger, or an unfinished run, cannot be
    read, and what is worth knowing about the ledger."""
    try:
        ledger = operations.ledger(pipeline)
        counts = ledger.counts(pipeline=pipeline.name)
        faults = [*ledger.unreadable]  # those of ended runs, which follow, need nobody
        last = tuple(ledger.runs(status=FINAL, pipeline=pipeline.name, limit=ended)) if ended else ()
    except OldTables as error:
        return {}, (), [], [str(error)]
    except RetakeError as error:
        return {}, (), [f"the ledger cannot be read: {error}"], []
    return counts, last, faults, []


def _needs(state: PipelineState, ledger_faults: list[str], today: Today | StateError) -> list[str]:
    own = list(state.needs)
    at = 0 if state.readable else 1  # an invalid document comes first
    return [*own[:at], *ledger_faults, *own[at:], *([str(today)] if isinstance(today, StateError) else [])]


def _notes(state: PipelineState, holder: Holder | None, operations: Operations) -> list[str]:
    notes, now = [], operations.clock.now()
    if holder and holder.since and now - holder.since > timedelta(seconds=operations.terms.patience_s):
        notes.append(f"the lease has been held for long: check whether {holder.owner} is still at work")
    if state.interrupted and not holder:
        notes.append("the last tick did not finish; the next one continues from what is on record")
    notes += state.notes
    notes += [
        f"no alert reaches the channel {name}: {env} is not set" for name, env in operations.terms.missing_secrets
    ]
    if state.today and state.today.doubt:
        notes.append(f"today's spending is {state.today.doubt}")
    return notes


# --- as data ----------------------------------------------------------------------------------------------------------


def as_document(it: PipelineStatus, cap_usd: float | None) -> dict[str, Any]:
    """Return the JSON document of a status. `cap_usd` is the daily cap of the pipelines that share the day's book."""
    state, sums = it.state, it.sums
    if state.own_book:
        cap_usd = state.today.limits.bucket_usd if state.today else None
    return {
        "channel": it.channel,
        **({"pipeline": it.pipeline} if it.pipeline else {}),
        "needs": list(it.needs),
        "notes": list(it.notes),
        "generation_id": state.item_id,
        "step": state.step.step if state.step else None,
        "status": state.status,
        "status_in_words": state.words,
        "attempt": state.step.number if state.step else None,
        "max_attempts": state.step.max_attempts if state.step else None,
        "next_retry_at": stamped(state.next_retry_at),
        "waiting_for": state.waiting
        and {"whom": state.waiting.party, "what": state.waiting.what, "since": stamped(state.waiting.since)},
        "last_error": state.error.raw or None,
        "lease": it.holder
        and {"owner": it.holder.owner, "since": stamped(it.holder.since), "until": stamped(it.holder.until)},
        "next_tick": it.next_tick,
        "next_act": state.next_act,
        "dead_letters": it.dead_letters,
        "failed_in_a_row": state.failed_in_a_row,
        "spend_today": {
            "settled_usd": sums.settled if sums else None,
            "reserved_usd": sums.reserved if sums else None,
            "cap_usd": cap_usd,
        },
        "runs": {status.value: n for status, n in it.counts.items()},
        "last_ended": [run_document(run) for run in it.ended],
    }


def caps_document(seen: Sequence[PipelineStatus]) -> dict[str, Any] | None:
    """Return the JSON document of the day's book, or None if it cannot be read."""
    today = day_of(seen)
    return today and {
        "day": today.day,
        "clock_day": today.clock_day,
        "spent_usd": today.book.spent,
        "cap_usd": today.limits.bucket_usd,
        "channel_cap_usd": today.limits.pipeline_usd,
    }


def day_of(seen: Sequence[PipelineStatus]) -> Today | None:
    """Return the day as seen by a pipeline that shares its book or, if there is none, by the first pipeline."""
    shared = [it for it in seen if not it.state.own_book]
    return next((it.today for it in shared or seen if it.today), None)


def run_document(run: Run) -> dict[str, Any]:
    """Return the JSON document of a run."""
    return {field: stamp(it) if isinstance(it, datetime) else it for field, it in run._asdict().items()}


def stamped(moment: datetime | None) -> str | None:
    """Return the stamp of a moment, or None."""
    return stamp(moment) if moment else None
