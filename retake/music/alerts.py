"""Alerts of the music pipelines: what is wrong according to their rows, and what raises, closes and sends the alerts.

code                 raised for                                              closed when
──────────────────   ─────────────────────────────────────────────────────   ────────────────────────────────────
generation_failed    failed pipelines, one alert for each failing step       all are retried or cancelled
refused              those of them that a vendor refused: a key, credit      the same
outcome_unknown      a call that waits for a person's decision; as a         it is decided; the step has a result
                     warning, a call of unknown outcome that is repeated
cap_reached          steps that the daily cap holds back                     the next day, or the cap is raised
ledger_unavailable   the database, if it cannot be read or written           it can be again
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from logging import getLogger

from retake.alerts.conditions import OF_A_PIPELINE, Condition, Findings
from retake.bucket import Bucket
from retake.clock import Clock, stamp
from retake.errors import ErrorClass, RetakeError, StorageError, class_of
from retake.music.database import MusicDatabase
from retake.music.leases import take_lease
from retake.music.operations import open_operations, vendors_of
from retake.music.settings import MusicSettings
from retake.music.states import resolve_command, retry_command
from retake.music.store import NAME
from retake.music.survey import Survey, Trouble, survey
from retake.operations.after_work import rates
from retake.operations.kpi import KpiReader
from retake.plural import count
from retake.ticking.watch import TickWatch

EVERY_S = 5.0
"""Seconds between two checks of the rows."""

BOARD_EVERY_S = 60.0
"""Seconds after which the board is checked even if nothing has changed: an alert may be due for repetition."""

_log = getLogger(__name__)


def findings(found: Survey, vendors: Mapping[str, str], now: datetime) -> Findings:
    """Return what is wrong with the music pipelines. `vendors` maps each step to the vendor that it calls."""
    capped = [it for it in found.capped if it.at.date() == now.date()]  # those of earlier days are being retried
    wrong = [
        *(_failed(step, several) for step, several in _by_step(found.failed).items()),
        *(_refused(vendor, several) for vendor, several in _refusals(found.failed, vendors).items()),
        *(_undecided(step, several) for step, several in _by_step(found.awaiting).items()),
        *_made_again(found),
        *([_capped(capped, now)] if capped else []),
    ]
    return Findings(NAME, OF_A_PIPELINE, tuple(wrong))


def unavailable(error: StorageError) -> Findings:
    """Return that the database cannot be read: what is wrong with the pipelines is not known, and stays as it is."""
    found = _unusable("read", error)
    return Findings(NAME, frozenset({found.code}), (found,))


def _unusable(verb: str, error: StorageError) -> Condition:
    return Condition(
        "ledger_unavailable",
        "error",
        f"ledger_unavailable/{NAME}",
        f"The database of {NAME} cannot be {verb}",
        NAME,
        message=str(error),
        follows=f"Nothing new is begun or paid for until the service can {verb} it again.",
        command=f"python -m retake doctor --channel {NAME}",
        lasting=True,
    )


def _by_step(troubles: Sequence[Trouble]) -> dict[str, list[Trouble]]:
    found: dict[str, list[Trouble]] = {}
    for it in troubles:
        found.setdefault(it.step, []).append(it)
    return found


def _refusals(troubles: Sequence[Trouble], vendors: Mapping[str, str]) -> dict[str, list[Trouble]]:
    """Return the class C failures, by the vendor that refused or by step."""
    found: dict[str, list[Trouble]] = {}
    for it in troubles:
        if _class(it.code) is ErrorClass.CRITICAL:
            found.setdefault(vendors.get(it.step, it.step), []).append(it)
    return found


def _failed(step: str, several: Sequence[Trouble]) -> Condition:
    last, at = several[0], f" at {step}" if step else ""
    return _about(
        Condition(
            "generation_failed",
            "error",
            f"generation_failed/{step or 'unknown'}",
            f"A pipeline failed{at}",
            last.occurrence,
            follows=f"Everything before it is kept. {_number(several, 'wait', 'for a retry')}",
            command=f"python -m {retry_command(last.pipeline_id, step)}",
        ),
        last,
    )


def _refused(by: str, several: Sequence[Trouble]) -> Condition:
    last = several[0]
    return _about(
        Condition(
            "refused",
            "critical",
            f"refused/{by or 'unknown'}",
            f"{by or 'Something'} needs a person: fix the cause, then retry",
            last.occurrence,
            follows=f"Each such step fails until the cause is fixed. {_number(several, 'failed', 'by it')}",
            command=f"python -m {retry_command(last.pipeline_id, last.step)}",
        ),
        last,
    )


def _undecided(step: str, several: Sequence[Trouble]) -> Condition:
    last = several[0]
    what = "an upload was completed" if step in ("", "publish") else f"a paid call for {step} was carried out"
    return _about(
        Condition(
            "outcome_unknown",
            "error",
            f"outcome_unknown/{step or 'publish'}",
            f"Nobody can tell whether {what}",
            last.occurrence,
            follows=f"Nothing is sent or paid for until a person decides. {_number(several, 'wait', 'for that')}",
            command=f"python -m {resolve_command(last.pipeline_id, step)}",
        ),
        last,
    )


def _made_again(found: Survey) -> list[Condition]:
    """Return the calls of unknown outcome that are repeated, unless the step has one that waits for a person."""
    held = {it.step for it in found.awaiting}
    return [
        _about(
            Condition(
                "outcome_unknown",
                "warning",
                f"outcome_unknown/{step}",
                f"Nobody can tell whether a paid call for {step} was carried out",
                several[0].occurrence,
                follows="It is made again, and may then be paid for twice.",
                command=f"python -m retake music show {several[0].pipeline_id}",
            ),
            several[0],
        )
        for step, several in _by_step(found.lost).items()
        if step not in held
    ]


def _capped(several: Sequence[Trouble], now: datetime) -> Condition:
    last = several[0]
    return Condition(
        "cap_reached",
        "warning",
        f"cap_reached/{NAME}",
        "The daily cap of music holds a paid call back",
        stamp(now)[:10],
        message=last.error,
        follows=f"The call is made on the next day, or when the cap is raised. {_number(several, 'wait', 'for that')}",
        command="python -m retake spend",
        generation_id=last.item_id,
        step=last.step,
    )


def _about(condition: Condition, it: Trouble) -> Condition:
    found = _class(it.code)
    return condition._replace(
        message=it.error,
        generation_id=it.item_id,
        step=it.step or None,
        error_class=found.value if found else None,
        error_code=it.code,
        since=stamp(it.at),
    )


def _class(code: str | None) -> ErrorClass | None:
    try:
        return class_of(code or "")
    except ValueError:
        return None


def _number(several: Sequence[Trouble], verb: str, what: str) -> str:
    number = len(several)
    verb = f"{verb}s" if verb == "wait" and number == 1 else verb
    return f"{count(number, 'pipeline')} {verb} {what}."


def tell_unavailable(
    settings: MusicSettings, bucket: Bucket, clock: Clock, environ: Mapping[str, str], error: StorageError
) -> None:
    """Raise the alert that a service could not start without its database. Parameters as for `MusicWatch`."""
    watch = TickWatch(settings.alerts, settings.modes, bucket, clock, environ)
    try:
        watch.begin()
    except RetakeError as trouble:
        _log.warning("no alert about the database could be raised: %s", trouble)
    else:
        watch.found(unavailable(error))
        watch.end()


class MusicWatch:
    """Raises, closes and sends the alerts of the music pipelines.

    Every process of the service may have one: the board is changed by compare-and-set, and an alert raised twice is one
    alert. `bucket` is the whole bucket; `environ` holds the channels' secrets.
    """

    def __init__(
        self,
        settings: MusicSettings,
        database: MusicDatabase,
        bucket: Bucket,
        clock: Clock,
        environ: Mapping[str, str],
    ) -> None:
        self._database, self._clock = database, clock
        self._vendors = vendors_of(settings)
        self._kpi = KpiReader(open_operations(settings, clock, bucket))
        self._watch = TickWatch(settings.alerts, settings.modes, bucket, clock, environ)
        self._known: Findings | None = None
        self._board_at: datetime | None = None
        self._unwritable: StorageError | None = None

    def look(self) -> bool:
        """Check once; return whether the board was checked, because something has changed or it was due.

        Raises StateError, and StorageError for the bucket; a database that cannot be read or written is an alert.
        """
        now = self._clock.now()
        try:
            with self._database.reading() as cursor:
                found = findings(survey(cursor), self._vendors, now)
        except StorageError as error:
            found = unavailable(error)
        else:
            if self._unwritable or self._due(now):
                self._unwritable = self._write()
            if self._unwritable:
                found = found._replace(found=(*found.found, _unusable("written", self._unwritable)))
        if found == self._known and not self._due(now):
            return False
        self._watch.begin()
        self._watch.found(found)
        if self._due(now):
            self._count()
        self._watch.end()
        self._known, self._board_at = found, now
        return True

    def _write(self) -> StorageError | None:
        """Return why the database cannot be written, as on a full disk: it may stay readable for hours."""
        try:
            take_lease(self._database, "test of writing", "", 0)
        except StorageError as error:
            return error
        return None

    def _due(self, now: datetime) -> bool:
        return self._board_at is None or abs((now - self._board_at).total_seconds()) >= BOARD_EVERY_S

    def _count(self) -> None:
        """Check whether success or retry rates are bad, and take a snapshot of the metrics if one is due.

        Metrics that cannot be computed do not hold back other alerts.
        """
        try:
            pipelines = self._kpi.report().figures.pipelines
        except RetakeError as error:
            _log.warning("the metrics could not be computed; next attempt in %g s: %s", BOARD_EVERY_S, error)
        else:
            self._watch.found(rates(pipelines)._replace(pipeline=NAME))
