"""The facts about the story at the end of a tick, for alerts (`retake.alerts.conditions.PipelineFacts`)."""

from collections.abc import Iterable
from datetime import datetime

from retake.alerts.conditions import FailedGeneration, PipelineFacts, StepFailures, UnknownOutcome
from retake.clock import stamp
from retake.errors import ErrorRecord, RetakeError
from retake.settings.shared import Workflow
from retake.story.decision import awaits_fix, stopped, undecided, vendor_of_step
from retake.story.documents import (
    FAILED_STEP,
    PAID_STEPS,
    UNKNOWN,
    UPSCALE,
    Documents,
    GenDocument,
    Step,
)
from retake.story.settings import Settings
from retake.story.store import DocumentStore

_MIN_QUOTE_LENGTH = 24  # characters


def story_facts(
    documents: Documents, limits: Workflow, now: datetime, error: ErrorRecord, *, capped: str, interrupted: str
) -> PipelineFacts:
    """Return the facts. `error` is the last failure, without quotes from prompts (`tellable`). `capped` says why a cap
    holds back a call, and `interrupted` when the tick found that the previous one had died; each is "" if not."""
    gen, doc = documents.gen, documents.midjourney
    failed = gen.failed_in_a_row
    under_way = gen.generation_id is not None
    return PipelineFacts(
        gen.generation_id,
        tuple(_failures(documents, limits, now, error)) if under_way else (),
        _last(gen) if gen.last_failure or failed else None,
        failed,
        stopped=stopped(gen, limits),
        refused=_refused(documents, limits, now) if under_way else None,
        error=error if under_way else ErrorRecord(),
        step=doc.present_step.value if under_way else None,
        unknown=_unknown(documents, limits) if under_way else None,
        capped=capped,
        interrupted=interrupted,
    )


def _failures(documents: Documents, limits: Workflow, now: datetime, error: ErrorRecord) -> list[StepFailures]:
    """Return the steps with failed tries since their last result.

    They are found by their counters, not by the status: a retry sets the status to null for one tick, which would end
    the alert each time.
    """
    doc = documents.midjourney
    failing = FAILED_STEP.get(doc.status) if doc.status else None
    found = []
    for step in Step:
        tries = doc.retries_of(step) + (step is failing)
        if tries:
            from retake.story.retry_policy import attempt_left

            retried = step is not failing or attempt_left(doc, step, limits, now)
            own = error if error.raw.get("robot_id") == f"story.{step}" else ErrorRecord()
            found.append(StepFailures(step.value, tries, limits.max_retries + 1, retried, own))
    return found


def _last(gen: GenDocument) -> FailedGeneration:
    raw = gen.last_failure
    error, dropped = ErrorRecord(raw.get("error") or {}), bool(raw.get("dropped"))
    return FailedGeneration(raw.get("generation_id"), raw.get("step"), error, dropped)


def _refused(documents: Documents, limits: Workflow, now: datetime) -> str | None:
    if not awaits_fix(documents, limits, now):
        return None
    step = documents.midjourney.present_step
    return vendor_of_step(step) or step.value


def _unknown(documents: Documents, limits: Workflow) -> UnknownOutcome | None:
    """Return the paid call of unknown outcome, if any: one that is held, or was made again and has no result yet."""
    doc = documents.midjourney
    call = doc.pending
    if call and undecided(call, limits):
        asked = stamp(call.requested_at) if call.requested_at else None
        return UnknownOutcome(call.step.value, True, asked)
    if limits.on_unknown_outcome == "hold":
        return None  # the operator has decided
    lacking = _without_result(documents)
    for made in reversed(doc.paid_calls):
        if made.get("outcome") == UNKNOWN and made.get("possible_duplicate") and made.get("step") in lacking:
            return UnknownOutcome(str(made["step"]), False, made.get("requested_at_utc"))
    return None


def _without_result(documents: Documents) -> tuple[Step, ...]:
    files, results = documents.files, documents.midjourney.results
    if "json" not in files:
        return PAID_STEPS
    if "mp4" in files:
        return ()
    if "png" in files or (results and results.task_type == UPSCALE):
        return PAID_STEPS[3:]
    return PAID_STEPS[2:] if results else PAID_STEPS[1:]


def tellable(store: DocumentStore, settings: Settings | None = None) -> ErrorRecord:
    """Return the failure of the generation under way, without quotes from prompts in its message, since alerts go to
    chat programs and phones.

    The texts are read only if there is a message. With `settings`, what the writer was asked is removed too.
    """
    error = store.documents.midjourney.error
    if not error.message:
        return error
    name, prompts = store.documents.gen.generation_id or "", []
    try:
        content = store.read_object(store.file_key(name, "json")) if "json" in store.documents.files else None
        prompts = [it for key, it in (content or {}).items() if key.endswith("_prompt") and isinstance(it, str)]
    except RetakeError:
        pass  # the tick itself reports an unreadable text
    pending = store.documents.midjourney.pending
    asked = [pending.raw.get("prompt")] if pending else []
    draft = store.documents.midjourney.draft.values()
    prompts += [it for it in (*asked, *draft) if isinstance(it, str)]
    if settings and error.raw.get("robot_id") == f"story.{Step.CONTENT}":
        prompts += _asked_of_the_writer(settings)
    return ErrorRecord({**error.raw, "message": _without(error.message, prompts)})


def _asked_of_the_writer(settings: Settings) -> list[str]:
    from retake.story.content import load_prompts, prompts_file

    try:
        calls = load_prompts(prompts_file(settings))
    except RetakeError:
        return []  # the script itself reports a faulty prompts file
    return [text for call in calls for text in (call.system, call.user)]


def _without(text: str, prompts: Iterable[str]) -> str:
    from difflib import SequenceMatcher

    for prompt in prompts:
        least = min(_MIN_QUOTE_LENGTH, max(2, len(prompt)))  # 2, since a single character may be the "…"
        while True:
            match = SequenceMatcher(None, text, prompt, autojunk=False).find_longest_match()
            if match.size < least:
                break
            text = f"{text[: match.a]}…{text[match.a + match.size :]}"
    return text
