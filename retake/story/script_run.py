"""An action that a script carries out: run it, and make sense of how it ended."""

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from retake.bucket import Lease
from retake.clock import Clock
from retake.errors import Code, PollFailed, escalate
from retake.exit_codes import ExitCode
from retake.logs import alert
from retake.paid.spending import Spending
from retake.story import transitions
from retake.story.decision import ASK_TO_RESOLVE, FETCH_SCRIPT, Act, Action, held_until, paid_step, script_of
from retake.story.documents import FAILED_STEP, FAILURE_STATUS, Documents, MidjourneyDocument, Status, Step
from retake.story.settings import Settings
from retake.story.spending import known
from retake.story.store import DocumentStore
from retake.ticking.scripts import ScriptResult, Scripts
from retake.ticking.tick import Tick

_log = getLogger(__name__)

_TOLD = (ExitCode.BAD_STATE, ExitCode.TRY_LATER, ExitCode.CONFIG)
"""Exit codes with which a script says by itself, in its log, why it did nothing."""


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

    def run(self, action: Action) -> Tick | None:
        """Run the script that carries the action out; return the tick's result, or None to go on."""
        before = self._store.documents
        script, arguments = _command(action, before.gen.generation_id or "")
        _log.info("%s: %s", action.act, action.why, extra={"attempt": before.midjourney.retries_of(action.step) + 1})
        ended = self._scripts.run(script, arguments, self._lease)
        self._lease.check()
        doc = self._store.read().midjourney
        if paid_step(action) or action.act is Act.RECONCILE:
            self._spending.heal(known(doc)) if ended.exit_code else self._spending.settle(known(doc))
        if ended.stopped:
            return Tick(ExitCode.TRY_LATER, "stopped by a signal; the next tick goes on")
        if ended.exit_code == 0 and action.act is Act.FETCH and _same_task(doc, before.midjourney):
            return Tick(ExitCode.OK, "waiting for Midjourney")
        if ended.exit_code == 0 and self._store.documents != before:
            return None
        told = ended.exit_code in _TOLD and not ended.timed_out
        if told and doc == before.midjourney and action.act is not Act.MAKE_MOCK:
            return Tick(ended.exit_code, f"{script} ended with exit code {ended.exit_code}: see its message above")
        return self._failed(action, ended, doc, before)

    def _failed(self, action: Action, ended: ScriptResult, doc: MidjourneyDocument, before: Documents) -> Tick | None:
        if action.act is Act.MAKE_MOCK:
            doc = self._store.save_midjourney(transitions.mock_failed(doc))
            return Tick(ExitCode.TRY_LATER, f"the mock failed {doc.retries_of(Step.MOCK)} times")
        held = doc.pending and doc.pending.outcome  # without one, the script died in the call
        recorded = doc != before.midjourney and (
            held or doc.status in FAILED_STEP or held_until(doc, self._settings.workflow)
        )
        if doc.status is Status.TASK_FAILED_MAX_RETRIES:
            return None
        if not recorded:
            doc = self._died(action.act, ended, doc)
        exit_code = ExitCode.CONFIG if doc.error.critical and not doc.pending else ExitCode.TRY_LATER
        return Tick(exit_code, f"{doc.present_step}: {doc.error.message}")

    def _died(self, act: Act, ended: ScriptResult, doc: MidjourneyDocument) -> MidjourneyDocument:
        """Save the failure of a script that hung or died, and could not say so itself."""
        seconds = self._settings.workflow.script_timeout_seconds
        how = f"was still running after {seconds} s" if ended.timed_out else f"ended with exit code {ended.exit_code}"
        error = PollFailed(Code.SCRIPT_DIED, f"the script {how}; its last lines in the log say more")
        _log.error("%s", error)
        if doc.pending and act is not Act.RECONCILE:  # what became of the call is found out in the next tick
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
        """Save that reconciling a paid call has failed; once too often, and the call is held for the operator."""
        assert doc.pending is not None
        if doc.pending.failed_reconciles < self._settings.workflow.max_retries:
            return self._store.save_midjourney(transitions.reconcile_failed(doc, record))
        record = {**record, "recovery_actions": [escalate("operator", ASK_TO_RESOLVE)]}
        doc = self._store.save_midjourney(transitions.call_held(transitions.reconcile_failed(doc, record), record))
        times = doc.pending.failed_reconciles if doc.pending else 0
        why = f"finding out what became of the call failed {times} times"
        alert("outcome_unknown", f"{doc.present_step}: {why}: {ASK_TO_RESOLVE}", step=doc.present_step.value)
        return doc


def _same_task(doc: MidjourneyDocument, before: MidjourneyDocument) -> bool:
    """Compare by id: an answered poll may have dated the task."""
    return doc.task is not None and before.task is not None and doc.task.task_id == before.task.task_id


def _command(action: Action, generation_id: str) -> tuple[str, list[str]]:
    script = script_of(action)
    assert script is not None, f"no script carries out {action.act}"
    if script == FETCH_SCRIPT:
        return script, []
    mock = ["--use-mock"] if action.act is Act.MAKE_MOCK else []
    return script, ["--generation_id", generation_id, *mock]
