"""Alerts and the degraded mode around the ticks of a process.

One document is read before the work: `alerts/state.json`, which has a copy of the mode. If nothing is wrong, nothing
else is imported, read or written. The mode itself is read before something is paid for, since the copy may be outdated
or removed (`TickWatch.confirmed_mode`).
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from retake.alerts.conditions import (
    OF_A_PIPELINE,
    OF_ALL,
    Findings,
    PipelineFacts,
    TickEnd,
    degraded,
    interrupted,
    look,
)
from retake.alerts.settings import AlertSettings
from retake.bucket import Bucket, NotFound
from retake.clock import Clock, parse_stamp, stamp
from retake.degraded.mode import FULL, Mode, ModeState, decoded, may_change_at, mode_at
from retake.degraded.settings import ModeSettings
from retake.errors import (
    LeaseHeld,
    LedgerUnavailable,
    RetakeError,
    SettingsError,
    StateError,
    naming_thread_shortage,
    redact,
)
from retake.exit_codes import ExitCode
from retake.ticking.tick import NO_ORDERS, Orders, Tick

if TYPE_CHECKING:
    from retake.alerts.delivery import Sender
    from retake.ticking.rest import IdleLook

_log = getLogger(__name__)

KEY = "alerts/state.json"
"""The document that each tick reads for alerts and mode."""


class AfterWork(NamedTuple):
    """The result of looking at what all pipelines share, after a round of ticks in which something was done."""

    found: tuple[Findings, ...] = ()
    finish: Callable[[], None] = lambda: None  # called once alerts are up to date


class BoardDocument:
    """The alerts' document, read without importing `retake.alerts.board`, which decodes all of it."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    @classmethod
    def read(cls, bucket: Bucket) -> "BoardDocument":
        """Return the document in `bucket`, or an empty one. Raises StateError, StorageError."""
        try:
            value = json.loads(bucket.read(KEY)[0])
        except NotFound:
            value = {}
        except (ValueError, RecursionError) as error:
            raise StateError(f"{KEY}: not JSON ({error}). Fix it or remove it") from error
        if not isinstance(value, dict):
            raise StateError(f"{KEY}: the whole document is not an object. Fix it or remove it")
        return cls(value)

    @property
    def wants_a_look(self) -> bool:
        """Whether it has alerts, open or lately ended, or messages that wait to be sent."""
        waiting = any(it.get("queue") for it in self._channels())
        return bool(self.raw.get("alerts") or self.raw.get("ended") or waiting)

    @property
    def shared_alerts(self) -> bool:
        """Whether there is an open alert that only a look at what all pipelines share (AfterWork) can close."""
        # str(), since a damaged code may be unhashable
        opened = (it for it in self._alerts() if str(it.get("code")) in OF_ALL and not it.get("closed_at"))
        return any(isinstance(seen := it.get("seen"), dict) and "" in seen for it in opened)

    @property
    def pipelines(self) -> set[str]:
        """The pipelines that have an alert."""
        seen = (it.get("seen") for it in self._alerts())
        return {name for names in seen if isinstance(names, dict) for name in names}

    @property
    def reports(self) -> Mapping[str, Any]:
        """For each kind of report, the time for which the last one was made."""
        reports = self.raw.get("reports")
        return reports if isinstance(reports, dict) else {}

    def _alerts(self) -> list[Mapping[str, Any]]:
        alerts = self.raw.get("alerts")
        return [it for it in alerts if isinstance(it, dict)] if isinstance(alerts, list) else []

    def due(self, now: datetime) -> bool:
        """Return whether a waiting message may be sent now."""
        return any(_due(it, now) for it in self._channels())

    def times(self, settings: AlertSettings) -> list[datetime]:
        """Return the times at which an alert is due to be told, told again, or filed. Waiting messages are not
        included: each tick looks at them. Raises ValueError, TypeError, OverflowError."""
        # An open alert has no "state": that is the default, which is not written.
        repeat, group = timedelta(seconds=settings.repeat_seconds), timedelta(seconds=settings.group_seconds)
        found = []
        for it in self._alerts():
            found += [parse_stamp(it["tell_at"])] if it.get("tell_at") else []
            found += [parse_stamp(it["told_at"]) + repeat] if it.get("told_at") and "state" not in it else []
            found += [parse_stamp(it["closed_at"]) + group] if it.get("closed_at") and not it.get("seen") else []
        return found

    def _channels(self) -> list[Mapping[str, Any]]:
        channels = self.raw.get("channels")
        found = channels.values() if isinstance(channels, dict) else ()
        return [it for it in found if isinstance(it, dict)]


def _due(channel: Mapping[str, Any], now: datetime) -> bool:
    if not channel.get("queue"):
        return False
    try:
        times = [parse_stamp(channel[name]) for name in ("sending_until", "next_at") if channel.get(name)]
    except (ValueError, TypeError):
        return True
    return all(now >= it for it in times)


class WatchedRunner(Protocol):
    """Runs ticks of one pipeline, and says what the last one found."""

    def preparing(self) -> AbstractContextManager[None]: ...
    def tick(self, orders: Orders) -> Tick: ...
    def facts(self) -> PipelineFacts | None: ...
    @property
    def worked(self) -> bool: ...


class TickWatch:
    """Alerts and mode around the ticks of one process. Thread safe, since channels tick in parallel.

    `bucket` is the whole bucket. `environ` holds the secrets of the alert channels. `after_work` is called at the end
    of a round of ticks in which something was done, with the mode and the pipelines that did something, `report` if a
    report is due. `is_gone(pipeline)` returns whether the settings no longer have that pipeline. `look` is told whether
    there was anything to do, and when something is due next.
    """

    def __init__(
        self,
        settings: AlertSettings,
        modes: ModeSettings,
        bucket: Bucket,
        clock: Clock,
        environ: Mapping[str, str],
        *,
        after_work: Callable[[Mode, Collection[str]], AfterWork] = lambda mode, worked: AfterWork(),
        report: Callable[[str, datetime], None] | None = None,
        is_gone: Callable[[str], bool] = lambda pipeline: False,
        look: "IdleLook | None" = None,
    ) -> None:
        self._settings, self._modes, self._bucket, self._clock = settings, modes, bucket, clock
        self._environ, self._after_work, self._report = environ, after_work, report
        self._is_gone, self._look = is_gone, look
        self._lock = Lock()
        self._looks: list[Findings] = []
        self._wrong: set[str] = set()  # the pipelines that have an alert, or in which something was found
        self._worked: set[str] = set()  # the pipelines that did something
        self._document = BoardDocument({})
        self._state, self._began = ModeState(), clock.now()
        self._confirmed = self._outdated = False  # whether the mode itself was read, and differs from its copy
        self._failures: list[str] = []
        self._sender: Sender | None = None

    @property
    def mode(self) -> Mode:
        """The mode that is in force since `begin`."""
        return mode_at(self._state, self._modes, self._settings.timezone, self._began)

    def confirmed_mode(self) -> Mode:
        """Return the mode that is in force, as it is stored, for payments. It is read once in a round of ticks, and an
        outdated copy is updated at the end of the round. Raises StateError, StorageError."""
        with self._lock:
            if not self._confirmed:
                stored = _stored_mode(self._bucket, self._clock)
                self._outdated, self._state, self._confirmed = stored != self._state, stored, True
        return self.mode

    def begin(self, *, send: bool = True) -> None:
        """Begin a round of ticks: read the document and, with `send`, start sending the messages that wait.

        Raises StorageError, and StateError if the mode cannot be read, since it limits what may be paid for.
        """
        self._looks, self._worked, self._failures = [], set(), []
        self._confirmed, self._outdated, self._began = False, False, self._clock.now()
        try:
            self._document = BoardDocument.read(self._bucket)
            self._state = decoded(self._document.raw.get("mode"))
        except StateError as error:
            _log.critical("no alert is raised or sent: %s", error)
            self._failures.append("the document")
            self._document = BoardDocument({})
            self._state, self._confirmed = _stored_mode(self._bucket, self._clock), True
        except ValueError as error:
            _log.warning("%s: the copy of the mode is invalid (%s); mode/state.json applies", KEY, error)
            self._failures.append("the mode")
            self._state, self._confirmed = _stored_mode(self._bucket, self._clock), True
        if self.mode.mode != FULL:  # do not hold ticks back because of an outdated copy
            with suppress(StateError):
                self.confirmed_mode()
        self._wrong = self._document.pipelines
        if send and self._document.due(self._clock.now()):
            with _logging_errors("waiting messages could not be sent", self._failures):
                self._send()

    def tick(self, pipeline: str, runner: WatchedRunner, orders: Orders = NO_ORDERS) -> Tick:
        """Run a round of one tick, from `begin` to `end`. Raises what the tick raises."""
        with runner.preparing():
            self.begin()
        try:
            return self.observed(pipeline, runner, orders)
        finally:
            self.end()

    def observed(self, pipeline: str, runner: WatchedRunner, orders: Orders = NO_ORDERS) -> Tick:
        """Run one tick of a pipeline, between `begin` and `end`. Raises what the tick raises."""
        exit_code, why = int(ExitCode.BUG), ""
        usable = True  # whether the settings are valid, which figures depend on
        ledger = ""  # why the ledger could not be used
        try:
            with naming_thread_shortage():
                tick = runner.tick(orders)
            exit_code = tick.exit_code
            if self._look:
                self._look.ticked(tick, worked=runner.worked)
        except RetakeError as error:
            usable = not isinstance(error, SettingsError)
            ledger = redact(str(error)) if isinstance(error, LedgerUnavailable) else ""
            # Not an alert: the state does not allow the order, or somebody else is at work.
            of_the_order = isinstance(error, (StateError, LeaseHeld)) and orders != NO_ORDERS
            exit_code, why = ExitCode.OK if of_the_order else error.exit_code, _without_quotes(str(error))
            raise
        except KeyboardInterrupt:
            exit_code = ExitCode.INTERRUPTED
            raise
        except BaseException as error:
            why = type(error).__name__  # its message may contain anything
            raise
        else:
            return tick
        finally:
            worked = runner.worked and usable
            self.saw(pipeline, exit_code, _facts(runner), worked=worked, why=why, ledger=ledger)

    def is_quiet(self, pipeline: str, *, unopened: bool = False) -> bool:
        """Return whether the pipeline has no alert, and nothing was found wrong with it since `begin`.

        Then a tick of it that changes nothing cannot change alerts either. `unopened` says that a quiet pipeline will
        not be opened in this round.
        """
        if unopened and self._look:
            self._look.changed()  # what that pipeline depends on was not looked at
        return pipeline not in self._wrong

    def interrupted(self, pipeline: str, at: str) -> None:
        """Raise the alert that a previous tick died. `at` is when this tick found that out."""
        with _logging_errors("the alert about an interrupted tick could not be raised", self._failures):
            self._evaluate([Findings(pipeline, frozenset({"interrupted"}), (interrupted(at),))])

    def saw(
        self,
        pipeline: str,
        exit_code: int,
        facts: PipelineFacts | None,
        *,
        worked: bool,
        why: str = "",
        ledger: str = "",
    ) -> None:
        """Note how the tick of a pipeline ended. `facts` is None if its state is not known. `worked` is whether the
        tick changed anything, `why` the message of the error that it ended with, and `ledger` the same without quotes
        removed, if that was an unusable ledger."""
        if self._look and (facts is None or exit_code != ExitCode.OK):
            self._look.changed()
        if facts is None and exit_code == ExitCode.OK:
            return  # somebody else is at work
        end = TickEnd(exit_code, stamp(self._clock.now()), why, ledger)
        self.found(look(pipeline, end, facts, self._settings.failures_before_warning), worked=worked)

    def found(self, findings: Findings, *, worked: bool = False) -> None:
        """Note what is wrong, or no longer wrong, between `begin` and `end`. `worked` is as in `saw`."""
        with self._lock:
            self._looks.append(findings)
            if findings.found:
                self._wrong.add(findings.pipeline)
            if worked:
                self._worked.add(findings.pipeline)

    def end(self) -> None:
        """End a round of ticks: raise and close alerts, and send new messages for at most `tick_wait_seconds`.

        Never raises. The next tick will find again what could not be saved.
        """
        work, failures, after = AfterWork(), self._failures, True
        with _logging_errors("the state that all pipelines share could not be read", failures):
            degraded_by_itself = self._modes.auto and self.mode.mode > 0
            after = bool(self._worked) or degraded_by_itself or self._outdated or self._document.shared_alerts
            if after:
                work = self._after_work(self.mode, self._worked)
        with _logging_errors("a report could not be made", failures):
            self._make_reports()
        with _logging_errors("alerts could not be brought up to date", failures):
            looks = [*self._looks, *work.found, _degraded_findings(self.mode), *self._for_removed_pipelines()]
            if self._document.wants_a_look or any(it.found for it in looks):
                self._evaluate(looks)
        with _logging_errors("the metrics could not be written", failures):
            work.finish()
        with _logging_errors("what the channels were sent could not be saved", failures):
            if self._sender:
                self._sender.wait(self._settings.tick_wait_seconds)
        with _logging_errors("what this tick saw could not be remembered", failures):
            if self._look:
                try:
                    due = _times(self._document, self._state, self._modes, self._settings, self._clock.now())
                except (ValueError, TypeError, OverflowError):  # an invalid time, or one at the end of the calendar
                    due, after = [], True
                if after or failures or self._sender or self._document.raw.get("ended"):
                    self._look.changed()
                self._look.end(due)

    def _evaluate(self, looks: Sequence[Findings]) -> None:
        from retake.alerts.board import Board
        from retake.alerts.evaluation import evaluated
        from retake.alerts.store import BoardStore

        now = self._clock.now()

        def step(board: Board) -> tuple[Board, bool]:
            new = evaluated(board, looks, self._settings, now)
            return new, any(it.queue for it in new.channels.values())

        if BoardStore(self._bucket, self._clock).change(step):
            self._send()

    def _send(self) -> None:
        from retake.alerts.delivery import Sender
        from retake.alerts.store import BoardStore

        with self._lock:
            if self._sender is None:
                store = BoardStore(self._bucket, self._clock)
                self._sender = Sender(store, self._settings, self._environ, self._clock)
        self._sender.start()

    def _for_removed_pipelines(self) -> list[Findings]:
        """Return findings that close the alerts of pipelines that the settings no longer have."""
        return [Findings(it, OF_A_PIPELINE) for it in sorted(self._document.pipelines) if self._is_gone(it)]

    def _make_reports(self) -> None:
        wanted = {it for channel in self._settings.channels for it in channel.reports}
        if not wanted or not self._report:
            return
        from retake.alerts.reports import due_reports

        now = self._clock.now()
        for kind in due_reports(wanted, self._document.reports, self._settings, now):
            self._report(kind, now)
            self._document = BoardDocument.read(self._bucket)


def _degraded_findings(mode: Mode) -> Findings:
    wrong = (degraded(mode.mode, mode.words, mode.why, mode.since or ""),) if mode.mode else ()
    return Findings("", frozenset({"degraded"}), wrong)


def _stored_mode(bucket: Bucket, clock: Clock) -> ModeState:
    from retake.degraded.store import ModeStore

    return ModeStore(bucket, clock).read()


def _times(
    document: BoardDocument, state: ModeState, modes: ModeSettings, settings: AlertSettings, now: datetime
) -> list[datetime]:
    """Return the times at which alerts, reports or the mode may give a tick something to do even if nothing changes.
    Raises ValueError, TypeError, OverflowError."""
    times = document.times(settings) + may_change_at(state, modes, settings.timezone, now)
    if wanted := {it for channel in settings.channels for it in channel.reports}:
        from retake.alerts.reports import due_reports, next_due_at

        late = due_reports(wanted, document.reports, settings, now)
        times.append(now if late else next_due_at(settings, now))
    return times


def _without_quotes(text: str) -> str:
    """Return an error's message without quotes from documents, which may be prompts."""
    return re.sub(r'"[^"]{24,}"?', '"…"', redact(text))


def _facts(runner: WatchedRunner) -> PipelineFacts | None:
    try:
        return runner.facts()
    except Exception:  # noqa: BLE001  a bug here must not replace what the tick raised
        _log.exception("the findings of this tick could not be determined: this is a bug in Retake")
        return None


@contextmanager
def _logging_errors(what: str, failures: list[str]) -> Iterator[None]:
    """Log an error and note it in `failures`: trouble with alerts or figures must not change how a tick ends."""
    try:
        with naming_thread_shortage():
            yield
    except RetakeError as error:
        failures.append(what)
        _log.error("%s; the next tick does so: %s", what, error)
    except Exception:  # noqa: BLE001  a bug here must not fail a tick
        failures.append(what)
        _log.exception("%s: this is a bug in Retake", what)
