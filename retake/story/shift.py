"""What is done under the lease in one tick: each action of the decision, carried out.

Nothing is decided here (see decision.py), and no vendor is called: what asks or pays is done by the scripts, which run
one at a time. The order of writes within an action is chosen for the crash in between.
"""

from collections.abc import Callable, Container, Mapping
from datetime import datetime
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from retake.bucket import Lease
from retake.clock import Clock
from retake.errors import Code, ErrorClass, PollFailed, RetakeError, SettingsError, StateError, escalate
from retake.keys import Keys, missing_keys
from retake.logs import alert, bind
from retake.story import tidy, transitions
from retake.story.breakers import Breakers, Leave, Shut
from retake.story.decision import (
    ASK_TO_RESOLVE,
    Act,
    Action,
    decide,
    held_until,
    paid_step,
    rest_of_day,
    retry_at,
)
from retake.story.documents import (
    FAILED_STEP,
    FAILURE_STATUS,
    Documents,
    MidjourneyDocument,
    PublicDocument,
    Status,
    Step,
    safe_id,
)
from retake.story.generation import begin, bury, finish, new_id, take_up, taken_ids
from retake.story.settings import Settings
from retake.story.spending import Spending
from retake.story.store import DocumentStore

if TYPE_CHECKING:
    from retake.story.chronicle import Chronicle

_log = getLogger(__name__)


class Ended(NamedTuple):
    """How a script ended."""

    exit_code: int  # negative: killed by that signal
    timed_out: bool = False  # it was still running when its time was over, and was ended
    stopped: bool = False  # a signal asked us to stop, and it ended for that


class Scripts(Protocol):
    """The three scripts, by whatever means they are run."""

    def run(self, script: str, arguments: list[str], lease: Lease) -> Ended:
        """Run generate_content, generate_media or fetch_media to its end, under the lease."""
        ...


class Orders(NamedTuple):
    """What the operator wants besides a tick."""

    resume: bool = False  # go on after too many failures, or after a key was mended
    resolve: str | None = None  # "retry" or "skip" a paid call of unknown outcome
    retake: str | None = None  # the id of a failed generation that is to be taken up again


NO_ORDERS = Orders()


class Tick(NamedTuple):
    """What a tick came to."""

    exit_code: int
    why: str
    ended: str | None = None  # "done", "failed" or "cancelled": a generation ended in this tick
    generation_id: str | None = None  # the generation that the tick was about
    resting: bool = False  # nothing will change by itself before the next tick: done, or a person is needed
    until: datetime | None = None  # nothing will happen before: what failed is due again then


class Shift:
    """One tick's work, under the lease."""

    def __init__(
        self,
        settings: Settings,
        store: DocumentStore,
        lease: Lease,
        scripts: Scripts,
        keys: Keys,
        clock: Clock,
        observe: Callable[[Documents, Action], None],
        unflagged: Container[Act],
        open_chronicle: "Callable[[], Chronicle]",
        breakers: Breakers,
        spending: Spending,
    ) -> None:
        self._settings = settings
        self._store = store
        self._lease = lease
        self._scripts = scripts
        self._keys = keys
        self._clock = clock
        self._observe = observe
        self._unflagged = unflagged
        self._open_chronicle = open_chronicle
        self._breakers = breakers
        self._spending = spending
        self._chronicle: Chronicle | None = None  # opened with the first generation that is under way
        self._interrupted = False
        self._flag_raised = False
        self._finished = 0

    def work(self, orders: Orders) -> Tick:
        self._store.read()  # all of it is checked before anything is written
        self._interrupted = interrupted = self._store.documents.public.processing_lock
        if interrupted:
            _log.warning("the last tick did not come to its end; this one goes on from what is on record")
            self._spending.heal(self._store.documents.midjourney)
        try:
            if orders != NO_ORDERS:
                self._refuse(orders)
                self._align()
                self._obey(orders)
            while True:
                tick = self._next()
                if tick:
                    self._align()
                    if self._chronicle:
                        self._chronicle.flush()
                    return tick
        finally:
            self._lower_flag(interrupted)

    def _next(self) -> Tick | None:
        documents = self._store.documents
        action = self._within_cap(decide(documents, self._settings.workflow, self._clock.now()))
        generation_id = documents.gen.generation_id
        with bind(generation_id=generation_id, step=action.step.value, status=documents.midjourney.status):
            self._observe(documents, action)
            if action.act is not Act.REST:
                self._need_keys(action)
            self._align(action)
            if action.act is Act.REST:
                return self._rest(action)
            if action.act is Act.BEGIN:
                return self._begin()
            leave = self._breakers.leave(vendor_of(action))
            if isinstance(leave, Shut):
                return self._rest(Action(Act.REST, action.step, leave.why, 75, leave.until))
            if action.act not in self._unflagged:
                self._raise_flag()
            tick = self._act_by(leave, action) if leave else self._act(action)
        return tick._replace(generation_id=generation_id) if tick else None

    def _within_cap(self, action: Action) -> Action:
        step = paid_step(action)
        over = self._spending.over(self._store.documents.midjourney, step) if step else ""
        return rest_of_day(action, over) if over else action

    def _act_by(self, leave: Leave, action: Action) -> Tick | None:
        """`_act`, by leave of the vendor's breaker, which is told how it ended. What a call came to that was begun
        before says nothing new of the vendor."""
        before = (self._store.documents.midjourney.last_error or {}).get("error_id")
        tick: Tick | None = leave.around(lambda: self._act(action))
        error = self._store.documents.midjourney.last_error
        new = error if error and error.get("error_id") != before and action.act is not Act.SETTLE else None
        leave.ended(new, answered=tick is None or tick.exit_code == 0)
        return tick

    def _act(self, action: Action) -> Tick | None:
        doc, store = self._store.documents.midjourney, self._store
        match action.act:
            case Act.RETRY:
                _log.warning("%s", action.why, extra={"attempt": doc.retries_of(action.step) + 1})
                store.save_midjourney(transitions.retried(doc))
                return Tick(0, action.why)
            case Act.FINISH:
                return self._finish()
            case Act.BURY:
                return self._bury(doc)
            case Act.FAIL | Act.SUBSTITUTE | Act.TIME_OUT:
                _log.error("%s: %s", action.act, action.why)
                store.save_midjourney(_GIVEN_UP[action.act](doc))
            case Act.LOWER_FLAG | Act.RAISE_FLAG:
                _log.warning("%s: %s", action.act, action.why)
                lowered = action.act is Act.LOWER_FLAG
                store.save_midjourney(transitions.flag_lowered(doc) if lowered else transitions.picture_next(doc))
            case _:
                return self._run_script(action)
        return None

    def _align(self, action: Action | None = None, actor: str | None = None) -> None:
        """Bring the run on the ledger in line with the documents, and what is decided on them."""
        documents = self._store.documents
        if documents.gen.generation_id is None:
            return
        self._chronicle = self._chronicle or self._open_chronicle()
        self._chronicle.actor = actor or self._chronicle.actor
        action = action or decide(documents, self._settings.workflow, self._clock.now())
        self._chronicle.align(documents, action, interrupted=self._interrupted)
        self._interrupted = False

    # --- beginning and ending -------------------------------------------------------------------------------------

    def _begin(self) -> Tick | None:
        plan = tidy_plan(self._store)
        if plan.room:
            self._need(("midjourney", "runway", "openai"))
        self._tidy(plan)
        over = self._spending.over(self._store.documents.midjourney, Step.CONTENT) if plan.room else ""
        if over:
            return self._rest(Action(Act.REST, Step.CONTENT, over, 75))
        if not plan.room:
            _log.info("nothing to do: %s holds a ready group", self._store.paths.folder_666)
            return Tick(0, "nothing to do", resting=True)
        self._raise_flag()
        generation_id = new_id(self._clock.now(), taken_ids(self._store))
        begin(self._store, generation_id)
        self._store.read()
        _log.info("a new generation begins", extra={"generation_id": generation_id})
        return None

    def _tidy(self, plan: tidy.Plan) -> None:
        for moves in plan.moves:
            self._raise_flag()
            self._lease.check()
            tidy.carry_out(self._store.bucket, moves)
            _log.info("moved %s", ", ".join(f"{move.source} → {move.target}" for move in moves))
        self._warn(plan)
        public = self._store.documents.public
        if plan.archived or list(plan.empty) != (public.empty or []):
            self._raise_flag()
            self._store.publish(lambda doc: _tidied(doc, plan))

    def _warn(self, plan: tidy.Plan) -> None:
        """Once about each published id that lacks files."""
        lacking = {
            **dict.fromkeys(plan.missing, "has no files at all"),
            **dict.fromkeys(plan.incomplete, "lacks a file"),
        }
        gen = self._store.documents.gen
        for name in lacking:
            if name not in gen.warned:
                _log.warning("published id %r %s: it stays on the list", name, lacking[name])
        if list(lacking) != gen.warned:
            self._raise_flag()
            gen = self._store.documents.gen  # raising the flag may have remembered an id in it
            self._store.save_gen(gen.updated(warned=list(lacking)) if lacking else gen.without("warned"))

    def _finish(self) -> Tick | None:
        finish(self._store, self._clock.now())
        self._finished += 1
        _log.info("the generation is finished")
        if self._finished < self._settings.workflow.max_tasks_per_run:
            self._store.read()
            return None
        return Tick(0, "the generation is finished", "done")

    def _bury(self, doc: MidjourneyDocument) -> Tick:
        step, error = doc.present_step, (doc.last_error or {}).get("message", "no reason is on record")
        failed = bury(self._store, self._clock.now())
        if doc.cancelled:
            _log.warning("the generation was cancelled by the %s; everything is kept", doc.cancelled.get("by"))
            return Tick(0, "the generation was cancelled", "cancelled")
        retries = doc.retries_of(step)
        why = f"the generation failed at {step} after {retries + 1} attempts: {error}"
        alert("generation_failed", f"{why}. Everything is kept in dead_letters/", step=step.value)
        if failed == self._settings.workflow.max_failed_in_a_row:
            alert("stopped", f"the last {failed} generations all failed: nothing new is begun until --resume")
        return Tick(69, why, "failed")

    def _rest(self, action: Action) -> Tick:
        _log.log(40 if action.exit_code else 20, "%s", action.why)
        return Tick(action.exit_code, action.why, resting=action.until is None, until=action.until)

    # --- scripts ----------------------------------------------------------------------------------------------------

    def _run_script(self, action: Action) -> Tick | None:
        before, generation_id = self._store.documents, self._store.documents.gen.generation_id or ""
        script, arguments = _command(action, generation_id)
        _log.info("%s: %s", action.act, action.why, extra={"attempt": before.midjourney.retries_of(action.step) + 1})
        ended = self._scripts.run(script, arguments, self._lease)
        self._lease.check()
        doc = self._store.read().midjourney
        if paid_step(action) or action.act is Act.SETTLE:
            self._spending.heal(doc) if ended.exit_code else self._spending.settle(doc)
        if ended.stopped:
            return Tick(75, "stopped by a signal; the next tick goes on")
        if ended.exit_code == 0 and action.act is Act.FETCH and _same_task(doc, before.midjourney):
            return Tick(0, "waiting for Midjourney")
        if ended.exit_code == 0 and self._store.documents != before:
            return None
        told = ended.exit_code in (65, 75, 78) and not ended.timed_out
        if told and doc == before.midjourney and action.act is not Act.MAKE_MOCK:
            return Tick(ended.exit_code, f"{script} ended with exit code {ended.exit_code}: see its message above")
        return self._failed(action, ended, doc, before)

    def _failed(self, action: Action, ended: Ended, doc: MidjourneyDocument, before: Documents) -> Tick | None:
        if action.act is Act.MAKE_MOCK:
            doc = self._store.save_midjourney(transitions.mock_failed(doc))
            return Tick(75, f"the mock failed {doc.retries_of(Step.MOCK)} times")
        held = doc.pending and doc.pending.outcome  # without one, the script died in the call
        recorded = doc != before.midjourney and (
            held or doc.status in FAILED_STEP or held_until(doc, self._settings.workflow)
        )
        if doc.status is Status.TASK_FAILED_MAX_RETRIES:
            return None
        if not recorded:
            doc = self._died(action.act, ended, doc)
        message = (doc.last_error or {}).get("message", "")
        critical = (doc.last_error or {}).get("error_class") == ErrorClass.CRITICAL
        return Tick(78 if critical and not doc.pending else 75, f"{doc.present_step}: {message}")

    def _died(self, act: Act, ended: Ended, doc: MidjourneyDocument) -> MidjourneyDocument:
        """A script that hung or died, and could not say so itself: the step it was on has failed."""
        seconds = self._settings.workflow.script_timeout_seconds
        how = f"was still running after {seconds} s" if ended.timed_out else f"ended with exit code {ended.exit_code}"
        error = PollFailed(Code.SCRIPT_DIED, f"the script {how}; its last lines in the log say more")
        _log.error("%s", error)
        if doc.pending and act is not Act.SETTLE:  # what became of the call is found out in the next tick
            return doc
        from random import random

        from retake.story.stage import failure_record

        step, now = doc.present_step, self._clock.now()
        generation_id = self._store.documents.gen.generation_id or ""
        retries = doc.pending.failed_settles if doc.pending else doc.retries_of(step)
        record = failure_record(self._settings, error, step, retries, now, generation_id, random)
        if doc.pending:
            return self._settle_died(doc, record)
        return self._store.save_midjourney(transitions.failed(doc, FAILURE_STATUS[step], record))

    def _settle_died(self, doc: MidjourneyDocument, record: Mapping[str, Any]) -> MidjourneyDocument:
        """Save that finding out about a paid call has failed; once too often, and the call is held for the operator."""
        assert doc.pending is not None
        if doc.pending.failed_settles < self._settings.workflow.max_retries:
            return self._store.save_midjourney(transitions.settle_failed(doc, record))
        record = {**record, "recovery_actions": [escalate("operator", ASK_TO_RESOLVE)]}
        doc = self._store.save_midjourney(transitions.call_held(transitions.settle_failed(doc, record), record))
        why = f"finding out what became of the call failed {doc.pending.failed_settles if doc.pending else 0} times"
        alert("outcome_unknown", f"{doc.present_step}: {why}: {ASK_TO_RESOLVE}", step=doc.present_step.value)
        return doc

    # --- orders, keys, the flag -------------------------------------------------------------------------------------

    def _refuse(self, orders: Orders) -> None:
        """Raises StateError for an order that makes no sense as things stand, before anything is changed."""
        if orders.resolve and self._store.documents.midjourney.pending is None:
            raise StateError("there is no paid call of unknown outcome to resolve. Nothing was changed")

    def _obey(self, orders: Orders) -> None:
        doc, store = self._store.documents.midjourney, self._store
        if orders.resume:
            self._raise_flag()
            store.save_gen(store.documents.gen.without("failed_in_a_row"))
            if held_until(doc, self._settings.workflow):
                store.save_midjourney(transitions.hold_lifted(doc))
            elif (due := retry_at(doc)) and self._clock.now() < due:
                store.save_midjourney(transitions.wait_lifted(doc))
            self._say("resume", "resumed by the operator")
        if orders.retake:
            self._raise_flag()
            take_up(store, orders.retake)
            store.read()
            self._say("retake", f"generation {orders.retake} is taken up again")
        if orders.resolve:
            assert doc.pending is not None
            self._raise_flag()
            mock = self._settings.workflow.on_exhausted == "mock" and "json" in store.documents.files
            retry = orders.resolve == "retry"
            store.save_midjourney(
                transitions.operator_retries(doc) if retry else transitions.operator_skips(doc, mock=mock)
            )
            self._spending.settle(store.documents.midjourney)
            self._say("resolve", f"the operator says: {orders.resolve} the {doc.pending.step} call")

    def _say(self, code: str, text: str) -> None:
        """An order is carried out: from here on the tick is the operator's."""
        _log.info("%s", text)
        if self._chronicle is None:
            self._align(actor="operator")
        if self._chronicle:
            self._chronicle.remark(code, text)
            self._align(actor="operator")

    def _need_keys(self, action: Action) -> None:
        vendor = vendor_of(action)
        if vendor:
            self._need((vendor,))

    def _need(self, names: tuple[str, ...]) -> None:
        missing: SettingsError | None = missing_keys(self._keys, names)
        if missing:
            raise missing

    def _raise_flag(self) -> None:
        """processing_lock, for people and other programs to see; what excludes is the lease."""
        if not self._flag_raised:
            self._flag_raised = True
            self._store.publish(lambda doc: doc.updated(processing_lock=True))

    def _lower_flag(self, interrupted: bool) -> None:
        try:
            if self._flag_raised or interrupted or not self._store.list_is_whole:
                self._store.publish(lambda doc: doc.updated(processing_lock=False))
        except RetakeError as error:
            _log.error("processing_lock stays true until the next tick: %s", error)


_GIVEN_UP: dict[Act, Callable[[MidjourneyDocument], MidjourneyDocument]] = {
    Act.FAIL: transitions.exhausted,
    Act.SUBSTITUTE: transitions.mock_instead,
    Act.TIME_OUT: transitions.mock_instead,
}

_VENDOR = {
    Act.WRITE: "openai",
    Act.ORDER_IMAGINE: "midjourney",
    Act.ORDER_UPSCALE: "midjourney",
    Act.FETCH: "midjourney",
    Act.FILM: "runway",
}

_VENDOR_OF_STEP = {
    Step.CONTENT: "openai",
    Step.IMAGINE: "midjourney",
    Step.UPSCALE: "midjourney",
    Step.RUNWAY: "runway",
    Step.FETCH: "midjourney",
    Step.RUNWAY_POLL: "runway",
    Step.MOCK: "runway",
}


def vendor_of(action: Action) -> str | None:
    """Return the vendor that the action asks, or None."""
    return _VENDOR.get(action.act) or (_VENDOR_OF_STEP[action.step] if action.act is Act.SETTLE else None)


def _same_task(doc: MidjourneyDocument, before: MidjourneyDocument) -> bool:
    """By id: an answered poll may have dated the task."""
    return doc.task is not None and before.task is not None and doc.task.task_id == before.task.task_id


def _command(action: Action, generation_id: str) -> tuple[str, list[str]]:
    if action.act is Act.FETCH:
        return "fetch_media", []
    named = ["--generation_id", generation_id]
    if action.act is Act.WRITE or (action.act is Act.SETTLE and action.step is Step.CONTENT):
        return "generate_content", named
    return "generate_media", [*named, "--use-mock"] if action.act is Act.MAKE_MOCK else named


def _tidied(doc: PublicDocument, plan: tidy.Plan) -> PublicDocument:
    left = [name for name in doc.published if name not in plan.archived]
    return doc.updated(generation_id=left, empty=list(plan.empty))


def tidy_plan(store: DocumentStore) -> tidy.Plan:
    """What there is to tidy up."""
    paths, gen = store.paths, store.documents.gen
    folders = tidy.Folders(paths.folder_666, paths.folder_555, paths.folder_444, paths.archive_folder)
    staged = {
        folder: tidy.groups((entry.key for entry in store.bucket.list(folder)), folder) for folder in folders.staged
    }
    published = store.published
    archived: dict[str, frozenset[str]] = {}
    for name in filter(safe_id, published):
        keys = (entry.key for entry in store.bucket.list(f"{folders.archive}{name}."))
        archived.update(tidy.groups(keys, folders.archive))
    return tidy.plan(published, gen.warned, staged, archived, folders)
