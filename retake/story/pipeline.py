"""The story during one tick: carries out each action of the decision under the lease.

Nothing is decided here (see decision.py), and no vendor is called: that is done by the scripts, which run one at a
time. The writes of an action are ordered so that a crash in between does no harm.

`ScriptRun`, below the pipeline, runs scripts and interprets how they end. The operator's orders are in orders.py.
"""

from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from datetime import datetime
from logging import getLogger
from typing import TYPE_CHECKING, Any

from retake.alerts.conditions import PipelineFacts
from retake.bucket import Lease
from retake.clock import Clock, stamp
from retake.degraded.mode import Mode
from retake.errors import Code, ErrorRecord, PollFailed, RetakeError
from retake.exit_codes import ExitCode
from retake.keys import Keys, missing_keys
from retake.logs import alert, diagnosing
from retake.paid.spending import Spending
from retake.settings.shared import Workflow
from retake.story import transitions
from retake.story.decision import (
    ASK_TO_RESOLVE,
    FETCH_SCRIPT,
    MEDIA_SCRIPT,
    PAYS,
    PICTURE_ONLY,
    Act,
    Action,
    begin_held,
    capped,
    decide,
    decide_in,
    held_until,
    picture_unsaved,
    script_of,
    under_mode,
    vendor_of,
)
from retake.story.documents import FAILED_STEP, FAILURE_STATUS, Documents, GenDocument, MidjourneyDocument, Status, Step
from retake.story.facts import story_facts, tellable
from retake.story.generation import TakenIds, begin, dead_letter, finish, new_id, prepare
from retake.story.settings import Settings
from retake.story.spending import CapWatch, known
from retake.story.store import DocumentStore, ProcessingFlag
from retake.story.tidy import tidy, tidy_plan
from retake.ticking.tick import Orders, ScriptResult, Scripts, Tick

if TYPE_CHECKING:
    from retake.paid.day_book import Known
    from retake.story.run_mirror import RunMirror
    from retake.ticking.vendor_breakers import VendorOff

_log = getLogger(__name__)


Observer = Callable[[Documents, Action], None]


_GIVEN_UP: dict[Act, Callable[[MidjourneyDocument], MidjourneyDocument]] = {
    Act.FAIL: transitions.exhausted,
    Act.SUBSTITUTE: transitions.mock_instead,
    Act.MOCK_VIDEO: transitions.video_mocked,
}


class StoryPipeline:
    """The `retake.ticking.tick.Pipeline` of one story.

    `observe` is called with each decision before it is carried out. `unflagged` are the actions for which
    `processing_lock` is not raised: it tells people and other programs that something is being changed, which polls of
    a thousand channels do not do. `confirmed_mode()` reads the mode again before something is begun or paid for.
    `only`, if given, is the only generation that the tick may be about.
    """

    def __init__(
        self,
        settings: Settings,
        store: DocumentStore,
        lease: Lease,
        *,
        scripts: Scripts,
        keys: Keys,
        clock: Clock,
        spending: Spending,
        open_mirror: "Callable[[], RunMirror]",
        observe: Observer,
        unflagged: Container[Act],
        mode: Mode,
        confirmed_mode: Callable[[], Mode],
        found_interrupted: Callable[[str], None],
        only: str | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._keys = keys
        self._clock = clock
        self._spending = spending
        self._open_mirror = open_mirror
        self._observe = observe
        self._unflagged = unflagged
        self._flag = ProcessingFlag(store)
        self._scripts = ScriptRun(settings, store, lease, scripts, clock, spending)
        self._mirror: RunMirror | None = None  # opened once a generation is under way
        self.worked = False  # whether anything was done
        self._mode, self._confirmed_mode = mode, confirmed_mode
        self._found_interrupted = found_interrupted
        self._only = only
        self._was_read = self._interrupted = False
        self._interrupted_at = ""
        self._over = CapWatch(spending, store)
        self._finished = 0
        self._due: Action | None = None  # the decision, without regard to the mode

    def read(self) -> None:
        self._store.read()
        self._was_read = True
        self._interrupted = self._flag.was_up = self._store.documents.public.processing_lock
        self._interrupted_at = stamp(self._clock.now()) if self._interrupted else ""
        if self._interrupted:
            _log.warning("the last tick did not finish; this one continues from what is on record")
            self._found_interrupted(self._interrupted_at)  # at once, since the flag is the only trace of it
            self._spending.heal(known(self._store.documents.midjourney))

    def decide(self) -> Action:
        documents, limits, mock = self._store.documents, self._settings.workflow, self._settings.modes.video_mock
        self._due, action = decide_in(self._mode, documents, limits, self._clock.now(), self._over, video_mock=mock)
        if action.act in PAYS:
            self._mode = self._confirmed_mode()
            action = under_mode(self._due, self._mode, video_mock=mock)
        if diagnosing():
            from retake.story.diagnosis import log_decision

            log_decision(documents, action, self._mode.mode)
        return action

    def log_fields(self, action: Action) -> dict[str, str | None]:
        documents = self._store.documents
        return {
            "generation_id": documents.gen.generation_id,
            "step": action.step.value,
            "status": documents.midjourney.status,
        }

    def prepare(self, action: Action) -> Tick | None:
        gen = self._store.documents.gen
        if self._only and gen.generation_id != self._only:
            return _ended_elsewhere(self._only, gen)
        self._observe(self._store.documents, action)
        if action.act is not Act.WAIT:
            _check_keys(self._keys, vendor_of(action))
        self._sync(self._due)  # a mode that holds back a step does not change the state of its run
        if action.act is not Act.WAIT:
            return None
        if action.tidies:
            self.worked = bool(tidy(self._store, self._flag, tidy_plan(self._store)).moves) or self.worked
        self.worked = self._scripts.save_picture(action, self._mode, self._flag) or self.worked
        return _until_given_up(_waiting(action), action, self._store.documents.midjourney, self._settings.workflow)

    vendor = staticmethod(vendor_of)

    def off(self, action: Action, breaker: "VendorOff") -> Tick:
        self.worked = self._scripts.save_picture(action, self._mode, self._flag) or self.worked
        return _waiting(Action(Act.WAIT, action.step, breaker.why, ExitCode.TRY_LATER, breaker.until))

    def act(self, action: Action) -> Tick | None:
        if action.act is Act.BEGIN:
            return self._begin()
        self.worked = self.worked or action.act is not Act.FETCH
        if action.act not in self._unflagged:
            self._flag.raise_()
        doc, store = self._store.documents.midjourney, self._store
        match action.act:
            case Act.RETRY:
                _log.warning("%s", action.why, extra={"attempt": doc.retries_of(action.step) + 1})
                store.save_midjourney(transitions.retried(doc))
                return Tick(ExitCode.OK, action.why)
            case Act.FINISH:
                finish(store, self._clock.now())
                self._finished += 1
                _log.info("the generation is finished")
                if self._finished == self._settings.workflow.max_tasks_per_run:
                    return Tick(ExitCode.OK, "the generation is finished", "done")
                store.read()
            case Act.DEAD_LETTER:
                limit, told = self._settings.workflow.max_failed_in_a_row, tellable(store, self._settings)
                return _dead_letter(store, self._clock.now(), limit, told)
            case Act.FAIL | Act.SUBSTITUTE | Act.MOCK_VIDEO:
                _log.error("%s: %s", action.act, action.why)
                store.save_midjourney(_GIVEN_UP[action.act](doc))
            case Act.LOWER_FLAG | Act.RAISE_FLAG:
                _log.warning("%s: %s", action.act, action.why)
                lowered = action.act is Act.LOWER_FLAG
                store.save_midjourney(transitions.flag_lowered(doc) if lowered else transitions.picture_next(doc))
            case _:
                tick = self._scripts.run(action)
                self.worked = self.worked or store.documents.midjourney != doc  # a task still running is not work
                return tick
        return None

    @property
    def error(self) -> ErrorRecord:
        return self._store.documents.midjourney.error

    def new_failure(self, action: Action, before: ErrorRecord) -> ErrorRecord:
        """Return the failure that this tick has recorded. The failure of a call that began earlier says nothing about
        the vendor now."""
        new = self.error.id != before.id and action.act is not Act.RECONCILE
        return self.error if new else ErrorRecord()

    def record(self) -> None:
        self._store.save_midjourney(self._store.documents.midjourney)
        self._scripts.settle()
        self._sync()
        if self._mirror:
            self._mirror.flush()

    def close(self) -> None:
        self._scripts.settle_after_error()
        self._flag.lower()

    def facts(self) -> PipelineFacts | None:
        """Return the facts for alerts, or None if the documents could not be read."""
        if not self._was_read:
            return None
        documents, limits, now = self._store.documents, self._settings.workflow, self._clock.now()
        error = tellable(self._store, self._settings)
        facts = story_facts(documents, limits, now, error, capped=self._over.said, interrupted=self._interrupted_at)
        return facts._replace(picture_unsaved=self._scripts.picture_unsaved)

    def obey(self, orders: Orders) -> None:
        """Carry out the orders. From the first one on, the ledger names the operator as the actor of this tick."""
        from retake.story.orders import carry_out, check

        limits, now = self._settings.workflow, self._clock.now()
        check(orders, self._store, limits)
        self._sync()
        for code, text in carry_out(orders, self._store, self._flag, limits, now):
            _log.info("%s", text)
            if code == "resolve":
                self._spending.settle(known(self._store.documents.midjourney))
            if self._mirror is None:
                self._sync(actor="operator")
            if self._mirror:
                self._mirror.remark(code, text)
                self._sync(actor="operator")

    def _sync(self, action: Action | None = None, actor: str | None = None) -> None:
        """Bring the run on the ledger in line with the documents and the decision on them."""
        documents = self._store.documents
        if documents.gen.generation_id is None:
            return
        self._mirror = self._mirror or self._open_mirror()
        self._mirror.actor = actor or self._mirror.actor
        action = action or decide(documents, self._settings.workflow, self._clock.now())
        self._mirror.sync(documents, action, interrupted=self._interrupted)
        self._interrupted = False

    def _begin(self) -> Tick | None:
        """Tidy up and begin a generation. Return the tick's result if there is no room, or no money, for one."""
        store, found = self._store, tidy_plan(self._store)
        if found.room:
            self._mode = self._confirmed_mode()
        held = begin_held(self._mode, video_mock=self._settings.modes.video_mock)
        if found.room and not held:
            _check_keys(self._keys, "midjourney", "runway", "openai")
            prepare(store)
        found = tidy(store, self._flag, found)
        self.worked = bool(found.moves)
        if not found.room:
            _log.info("nothing to do: %s holds a ready group", store.paths.folder_666)
            return Tick(ExitCode.OK, "nothing to do", resting=True)
        first = Action(Act.WRITE, Step.CONTENT, "a new generation begins")
        if held:
            return _waiting(Action(Act.WAIT, first.step, held))
        if why := self._over(first.step):
            return _waiting(capped(first, why))
        self.worked = True
        self._flag.raise_()
        generation_id = new_id(self._clock.now(), TakenIds(store, found.staged))
        begin(store, generation_id, capped=self._spending.capped)
        store.read()
        _log.info("%s", first.why, extra={"generation_id": generation_id})
        return None


def _check_keys(keys: Keys, *vendors: str | None) -> None:
    missing = missing_keys(keys, tuple(name for name in vendors if name))
    if missing:
        raise missing


def _dead_letter(store: DocumentStore, now: datetime, most_failed: int, told: ErrorRecord) -> Tick:
    doc = store.documents.midjourney
    step, message = doc.present_step, doc.error.message or "no reason is on record"
    failed = dead_letter(store, now, told)
    if doc.cancelled:
        _log.warning("the generation was cancelled by the %s; everything is kept", doc.cancelled.get("by"))
        return Tick(ExitCode.OK, "the generation was cancelled", "cancelled")
    tries = doc.retries_of(step) + 1
    why = f"the generation failed at {step} after {tries} {'attempts' if tries > 1 else 'attempt'}: {message}"
    alert("generation_failed", f"{why.removesuffix('.')}. Everything is kept in dead_letters/", step=step.value)
    if failed >= most_failed:
        alert("stopped", f"the last {failed} generations all failed: nothing new is begun until --resume")
    return Tick(ExitCode.FAILED, why, "failed")


def _ended_elsewhere(generation_id: str, gen: GenDocument) -> Tick:
    why = f"{generation_id} has ended in another tick, or by an order; no other generation is begun here"
    _log.info(why)
    if gen.last_failure.get("generation_id") == generation_id:
        return Tick(ExitCode.FAILED, why, "failed")
    return Tick(ExitCode.OK, why, "done")


def _waiting(action: Action) -> Tick:
    """Log a WAIT, and return the tick's result."""
    log = _log.error if action.exit_code else _log.info
    log("%s", action.why)
    return Tick(action.exit_code, action.why, resting=action.until is None, until=action.until)


def _until_given_up(tick: Tick, action: Action, doc: MidjourneyDocument, limits: Workflow) -> Tick:
    """Return the tick's result of a WAIT, until the step's deadline if that is before it is due."""
    if tick.until is None or action.step is not Step.RUNWAY_POLL:
        return tick
    from retake.story.retry_policy import given_up_at

    return tick._replace(until=min(tick.until, given_up_at(doc, action.step, limits) or tick.until))


_EXPLAINED_EXIT_CODES = (ExitCode.BAD_STATE, ExitCode.TRY_LATER, ExitCode.CONFIG)
"""Exit codes of scripts that have already logged why they did nothing."""


class ScriptRun:
    """Runs the scripts of one tick."""

    def __init__(
        self,
        settings: Settings,
        store: DocumentStore,
        lease: Lease,
        scripts: Scripts,
        clock: Clock,
        spending: Spending,
    ) -> None:
        self._settings = settings
        self._store = store
        self._lease = lease
        self._scripts = scripts
        self._clock = clock
        self._spending = spending
        self._unsettled = False  # whether the day's book does not have the last billed call yet
        self.picture_unsaved = False  # whether `save_picture` has failed; a later tick tries again

    def run(self, action: Action) -> Tick | None:
        """Run the script that carries out the action. Return the tick's result, or None to go on."""
        before, pays = self._store.documents, action.act in PAYS or action.act is Act.RECONCILE
        script, arguments = _command(action, before.gen.generation_id or "")
        _log.info("%s: %s", action.act, action.why, extra={"attempt": before.midjourney.retries_of(action.step) + 1})
        self._unsettled |= pays
        ended = self._scripts.run(script, arguments, self._lease)
        self._lease.check()
        doc = self._store.read().midjourney
        if pays and ended.exit_code:
            self._unsettled = False
            self._spending.heal(known(doc))
        elif pays:
            self._settle(known(doc))
        if ended.stopped:
            return Tick(ExitCode.TRY_LATER, "stopped by a signal; the next tick continues")
        told = ended.exit_code in _EXPLAINED_EXIT_CODES and not ended.timed_out
        if told and _nothing_failed(doc, before.midjourney) and action.act is not Act.MAKE_MOCK:
            return Tick(ended.exit_code, f"{script} ended with exit code {ended.exit_code}: see its message above")
        if action.act is Act.TIME_OUT and self._timed_out(ended, doc, before.midjourney):
            _log.error("Midjourney is given up on: %s", action.why)
            self._store.save_midjourney(transitions.mock_instead(doc))
            return None
        if ended.exit_code == 0 and action.act is Act.FETCH and _same_task(doc, before.midjourney):
            return Tick(ExitCode.OK, "waiting for Midjourney")
        if ended.exit_code == 0 and self._store.documents != before:
            return None
        return self._failed(action, ended, doc, before)

    def save_picture(self, action: Action, mode: Mode, flag: ProcessingFlag) -> bool:
        """Save the picture, if it is still to be saved while the action is held back, and return whether it was."""
        if not picture_unsaved(action, self._store.documents, mode.mode):
            return False
        flag.raise_()
        generation_id = self._store.documents.gen.generation_id or ""
        ended = self._scripts.run(MEDIA_SCRIPT, ["--generation_id", generation_id, PICTURE_ONLY], self._lease)
        if ended.exit_code and not ended.stopped:
            self.picture_unsaved = True
            _log.warning("the picture is not saved: the script ended with exit code %s", ended.exit_code)
        self._lease.check()
        return "png" in self._store.read().files

    def _timed_out(self, ended: ScriptResult, doc: MidjourneyDocument, before: MidjourneyDocument) -> bool:
        """Return whether an overdue task is not ready after it was asked for once more. If the key was refused, nobody
        knows."""
        refused = ended.exit_code != 0 and held_until(doc, self._settings.workflow) is not None
        return not refused and _same_task(doc, before)

    def _settle(self, reserved: "Known") -> None:
        """Settle a released reservation now, since others may spend the money. A billed one is settled with the tick's
        next reservation, or at its end (`settle`): until then it still counts against the caps."""
        from retake.paid.day_book import Fate

        self._unsettled = reserved.fate is Fate.BILLED
        if not self._unsettled:
            self._spending.settle(reserved)

    def settle_after_error(self) -> None:
        """Do what `settle` does, in a tick that ended with an error. If the store does not allow it, the next payment
        does it."""
        if self._unsettled:
            with suppress(RetakeError):
                self._lease.check()
                self._store.read()
                self.settle()

    def settle(self) -> None:
        """Update the day's book with the last billed call, if needed. After a crash the next tick does that."""
        if self._unsettled:
            self._unsettled = False
            self._spending.settle(known(self._store.documents.midjourney))

    def _failed(self, action: Action, ended: ScriptResult, doc: MidjourneyDocument, before: Documents) -> Tick | None:
        if action.act is Act.MAKE_MOCK:
            doc = self._store.save_midjourney(transitions.mock_failed(doc))
            return Tick(ExitCode.TRY_LATER, f"the mock failed {doc.retries_of(Step.MOCK)} times")
        held = doc.pending and doc.pending.outcome  # pending without an outcome: the script died in the call
        recorded = doc != before.midjourney and (
            held or doc.status in FAILED_STEP or held_until(doc, self._settings.workflow)
        )
        if doc.status is Status.TASK_FAILED_MAX_RETRIES:
            return None
        if not recorded:
            doc = self._record_death(action.act, ended, doc)
        exit_code = ExitCode.CONFIG if doc.error.critical and not doc.pending else ExitCode.TRY_LATER
        return Tick(exit_code, f"{doc.present_step}: {doc.error.message}")

    def _record_death(self, act: Act, ended: ScriptResult, doc: MidjourneyDocument) -> MidjourneyDocument:
        """Save the failure of a script that hung or died, and so could not record it itself."""
        seconds = self._settings.workflow.script_timeout_seconds
        how = f"was still running after {seconds} s" if ended.timed_out else f"ended with exit code {ended.exit_code}"
        error = PollFailed(Code.SCRIPT_DIED, f"the script {how}; its last lines in the log say more")
        _log.error("%s", error)
        if doc.pending and act is not Act.RECONCILE:  # the next tick reconciles the call
            return doc
        from random import random

        from retake.story.retry_policy import StepFailure, failure_record

        failure = StepFailure.of(doc, doc.present_step, error, self._clock.now())
        if doc.pending:
            failure = failure._replace(retries=doc.pending.failed_reconciles)
        record = failure_record(self._settings, failure, self._store.documents.gen.generation_id or "", random)
        if doc.pending:
            return self._reconcile_failed(doc, record)
        return self._store.save_midjourney(transitions.failed(doc, FAILURE_STATUS[failure.step], record))

    def _reconcile_failed(self, doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
        """Save that reconciling a paid call has failed. If no retries are left, hold the call for the operator."""
        assert doc.pending is not None
        if doc.pending.failed_reconciles < self._settings.workflow.max_retries:
            return self._store.save_midjourney(transitions.reconcile_failed(doc, record))
        doc = self._store.save_midjourney(transitions.call_held(transitions.reconcile_failed(doc, record), record))
        times = doc.pending.failed_reconciles if doc.pending else 0
        why = f"finding out what became of the call failed {times} times"
        alert("outcome_unknown", f"{doc.present_step}: {why}: {ASK_TO_RESOLVE}", step=doc.present_step.value)
        return doc


def _nothing_failed(doc: MidjourneyDocument, before: MidjourneyDocument) -> bool:
    """Return whether the script has recorded no failure, and left no new call pending.

    A script that a cap stops between two calls changes the document, but uses up no attempt.
    """
    begun = doc.pending is not None and doc.pending != before.pending
    return not begun and doc.status == before.status and doc.error.id in (None, before.error.id)


def _same_task(doc: MidjourneyDocument, before: MidjourneyDocument) -> bool:
    """Return whether both have the same task. Only ids are compared, since an answered poll may have dated the task."""
    return doc.task is not None and before.task is not None and doc.task.task_id == before.task.task_id


def _command(action: Action, generation_id: str) -> tuple[str, list[str]]:
    script = script_of(action)
    assert script is not None, f"no script carries out {action.act}"
    if script == FETCH_SCRIPT:
        return script, []
    mock = ["--use-mock"] if action.act is Act.MAKE_MOCK else []
    return script, ["--generation_id", generation_id, *mock]
