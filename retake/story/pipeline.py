"""The story during one tick: each action of the decision, carried out under the lease.

Nothing is decided here (see decision.py), and no vendor is called: what asks or pays is done by the scripts, which run
one at a time. The order of writes within an action is chosen for the crash in between.
"""

from collections.abc import Callable, Container
from datetime import datetime
from logging import getLogger
from typing import TYPE_CHECKING

from retake.bucket import Lease
from retake.clock import Clock
from retake.errors import ErrorRecord
from retake.exit_codes import ExitCode
from retake.keys import Keys, missing_keys
from retake.logs import alert
from retake.paid.spending import Spending
from retake.story import transitions
from retake.story.beginning import begin_or_wait
from retake.story.decision import Act, Action, capped, decide, paid_step, vendor_of
from retake.story.documents import Documents, MidjourneyDocument, Step
from retake.story.generation import dead_letter, finish
from retake.story.orders import carry_out, check
from retake.story.public_list import ProcessingFlag
from retake.story.script_run import ScriptRun
from retake.story.settings import Settings
from retake.story.spending import known
from retake.story.store import DocumentStore
from retake.ticking.scripts import Scripts
from retake.ticking.tick import Orders, Tick
from retake.ticking.vendor_breakers import VendorOff

if TYPE_CHECKING:
    from retake.story.run_mirror import RunMirror

Observer = Callable[[Documents, Action], None]

_log = getLogger(__name__)

_GIVEN_UP: dict[Act, Callable[[MidjourneyDocument], MidjourneyDocument]] = {
    Act.FAIL: transitions.exhausted,
    Act.SUBSTITUTE: transitions.mock_instead,
    Act.TIME_OUT: transitions.mock_instead,
}


class StoryPipeline:
    """`retake.ticking.tick.Pipeline` of one story.

    `observe` is shown each decision before it is carried out. `unflagged` are the actions for which `processing_lock`
    is not raised: it tells people and other programs that something is being changed, and where a thousand channels
    wait for their vendors, a poll that changes nothing need not.
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
        self._mirror: RunMirror | None = None  # opened with the first generation that is under way
        self._interrupted = False
        self._finished = 0

    def read(self) -> None:
        self._store.read()
        self._interrupted = self._flag.was_up = self._store.documents.public.processing_lock
        if self._interrupted:
            _log.warning("the last tick did not come to its end; this one goes on from what is on record")
            self._spending.heal(known(self._store.documents.midjourney))

    def decide(self) -> Action:
        action = decide(self._store.documents, self._settings.workflow, self._clock.now())
        step = paid_step(action)
        over = self._spending.over(lambda: known(self._store.documents.midjourney), step) if step else ""
        return capped(action, over) if over else action

    def log_fields(self, action: Action) -> dict[str, str | None]:
        documents = self._store.documents
        return {
            "generation_id": documents.gen.generation_id,
            "step": action.step.value,
            "status": documents.midjourney.status,
        }

    def prepare(self, action: Action) -> Tick | None:
        self._observe(self._store.documents, action)
        if action.act is not Act.WAIT:
            _check_keys(self._keys, vendor_of(action))
        self._sync(action)
        return waiting(action) if action.act is Act.WAIT else None

    vendor = staticmethod(vendor_of)

    def off(self, action: Action, breaker: VendorOff) -> Tick:
        return waiting(Action(Act.WAIT, action.step, breaker.why, ExitCode.TRY_LATER, breaker.until))

    def act(self, action: Action) -> Tick | None:
        if action.act is Act.BEGIN:
            return self._begin()
        if action.act not in self._unflagged:
            self._flag.raise_()
        doc, store = self._store.documents.midjourney, self._store
        match action.act:
            case Act.RETRY:
                _log.warning("%s", action.why, extra={"attempt": doc.retries_of(action.step) + 1})
                store.save_midjourney(transitions.retried(doc))
                return Tick(ExitCode.OK, action.why)
            case Act.FINISH:
                return self._finish()
            case Act.DEAD_LETTER:
                return _dead_letter(store, self._clock.now(), self._settings.workflow.max_failed_in_a_row)
            case Act.FAIL | Act.SUBSTITUTE | Act.TIME_OUT:
                _log.error("%s: %s", action.act, action.why)
                store.save_midjourney(_GIVEN_UP[action.act](doc))
            case Act.LOWER_FLAG | Act.RAISE_FLAG:
                _log.warning("%s: %s", action.act, action.why)
                lowered = action.act is Act.LOWER_FLAG
                store.save_midjourney(transitions.flag_lowered(doc) if lowered else transitions.picture_next(doc))
            case _:
                return self._scripts.run(action)
        return None

    @property
    def error(self) -> ErrorRecord:
        return self._store.documents.midjourney.error

    def new_failure(self, action: Action, before: ErrorRecord) -> ErrorRecord:
        """Return the failure that this tick put on record. That of a call which began before says nothing of the vendor
        now."""
        new = self.error.id != before.id and action.act is not Act.RECONCILE
        return self.error if new else ErrorRecord()

    def record(self) -> None:
        self._sync()
        if self._mirror:
            self._mirror.flush()

    def close(self) -> None:
        self._flag.lower()

    def obey(self, orders: Orders) -> None:
        """From the first order that is carried out, the tick is the operator's."""
        check(orders, self._store)
        self._sync()
        limits, now = self._settings.workflow, self._clock.now()
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
        """Bring the run on the ledger in line with the documents and what is decided on them."""
        documents = self._store.documents
        if documents.gen.generation_id is None:
            return
        self._mirror = self._mirror or self._open_mirror()
        self._mirror.actor = actor or self._mirror.actor
        action = action or decide(documents, self._settings.workflow, self._clock.now())
        self._mirror.sync(documents, action, interrupted=self._interrupted)
        self._interrupted = False

    def _begin(self) -> Tick | None:
        def over() -> str:
            return self._spending.over(lambda: known(self._store.documents.midjourney), Step.CONTENT)

        def check_keys() -> None:
            _check_keys(self._keys, "midjourney", "runway", "openai")

        return begin_or_wait(self._store, self._flag, self._clock.now(), check_keys, over)

    def _finish(self) -> Tick | None:
        finish(self._store, self._clock.now())
        self._finished += 1
        _log.info("the generation is finished")
        if self._finished < self._settings.workflow.max_tasks_per_run:
            self._store.read()
            return None
        return Tick(ExitCode.OK, "the generation is finished", "done")


def _check_keys(keys: Keys, *vendors: str | None) -> None:
    missing = missing_keys(keys, tuple(name for name in vendors if name))
    if missing:
        raise missing


def _dead_letter(store: DocumentStore, now: datetime, most_failed: int) -> Tick:
    doc = store.documents.midjourney
    step, message = doc.present_step, doc.error.message or "no reason is on record"
    failed = dead_letter(store, now)
    if doc.cancelled:
        _log.warning("the generation was cancelled by the %s; everything is kept", doc.cancelled.get("by"))
        return Tick(ExitCode.OK, "the generation was cancelled", "cancelled")
    why = f"the generation failed at {step} after {doc.retries_of(step) + 1} attempts: {message}"
    alert("generation_failed", f"{why}. Everything is kept in dead_letters/", step=step.value)
    if failed == most_failed:
        alert("stopped", f"the last {failed} generations all failed: nothing new is begun until --resume")
    return Tick(ExitCode.FAILED, why, "failed")


def waiting(action: Action) -> Tick:
    """Return the tick's result of a WAIT, and log it."""
    _log.log(40 if action.exit_code else 20, "%s", action.why)
    return Tick(action.exit_code, action.why, resting=action.until is None, until=action.until)
