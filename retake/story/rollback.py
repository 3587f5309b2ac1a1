"""Rolls the generation under way back to a step: what that step and later ones made goes to a dead letter, and the next
tick runs the step again.

The step's input is in the documents: the text for the pictures, the results of the imagine for the upscale, those of
the upscale for the video. If only the task's id is left of them, the vendor is asked for the rest, for free.

Writes are ordered so that a crash in between does no harm. The dead letter is written first: until the document is
saved, the rollback has not begun, and starting it again writes the same letter. The document then names the files that
are given up, and the next read under the lease deletes them.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from retake.clock import stamp
from retake.operations.bills import paid_in_words
from retake.operations.events import OPERATOR
from retake.operations.port import Refusal
from retake.retrying.dead_letters import DeadLetters
from retake.settings.shared import Workflow
from retake.story import transitions
from retake.story.documents import GROUP, IMAGINE, PAID_STEPS, UPSCALE, Documents, MidjourneyDocument, Status, Step
from retake.story.generation import ROLLBACK, end_requeue, in_flight
from retake.story.operator_rules import (
    GenerationPlan,
    Situation,
    finished,
    has_ended,
    not_looked_up,
    situation,
    unfetched,
)
from retake.story.store import DocumentStore

_MAKES: Mapping[str, Step] = {"json": Step.CONTENT, "png": Step.UPSCALE, "mp4": Step.RUNWAY}
"""The step that makes each file."""


def plan_rollback(wanted: str | None, documents: Documents, limits: Workflow, now: datetime) -> GenerationPlan:
    """Return how to roll the generation under way, which must exist, back to the step `wanted`. Raises Refusal."""
    if wanted not in PAID_STEPS:
        raise Refusal(f"{wanted!r} is not a step to roll back to: there are {', '.join(PAID_STEPS)}")
    step, doc, name = Step(wanted), documents.midjourney, str(documents.gen.generation_id)
    _check(step, documents, limits, now)
    files = tuple(suffix for suffix in GROUP if suffix in documents.files and _reaches(_MAKES[suffix], step))
    entry = {"step": step.value, "by": OPERATOR, "at_utc": stamp(now), "paid_calls": len(doc.paid_calls)}
    from hashlib import sha256

    letter = f"{name}-{step}-{sha256(doc.encode()).hexdigest()[:8]}"
    after = transitions.rolled_back(doc, step, _results_before(step, documents), {**entry, "letter": letter}, files)
    if not files and _content(after) == _content(doc):
        return GenerationPlan(name, doc, f"{step} of {name} is next anyway, and there is nothing to roll back")
    done = f"{name} is rolled back to {step}; what was given up is kept in dead_letters/{letter}/"
    return GenerationPlan(name, after, done, lost=_lost(step, documents, files), letter=letter, files=files)


def keep_rolled_back(store: DocumentStore, plan: GenerationPlan, now: datetime) -> None:
    """Write the dead letter of a rollback that was planned on the documents in `store`."""
    doc, name = store.documents.midjourney, plan.generation_id
    entry = plan.doc.rolled_back[-1]
    end_requeue(store)
    letters = DeadLetters(store.bucket, store.clock, lease=store.lease)
    copies = {f"{name}.{suffix}": store.file_key(name, suffix) for suffix in plan.files}
    document = store.paths.kept_document
    letters.add_files(plan.letter, copies, {document: doc.encode()})
    report = {
        "id": plan.letter,
        "kind": ROLLBACK,
        "generation_id": name,
        "failed_at_utc": stamp(now),
        "failed_step": entry["step"],
        "last_error": doc.error.raw or None,
        "retries": doc.retries,
        "paid_calls": _given_up(doc, Step(entry["step"])),
        "files": [*copies, document],
        "tasks_in_flight": in_flight(doc),
        "rolled_back": {"to": entry["step"], "by": entry["by"], "at_utc": entry["at_utc"]},
    }
    letters.write_report(plan.letter, report)


def _check(step: Step, documents: Documents, limits: Workflow, now: datetime) -> None:
    """Raise Refusal if the state does not allow the rollback."""
    doc, name = documents.midjourney, documents.gen.generation_id
    stands = situation(documents, limits, now)
    if stands is Situation.OVER:
        raise Refusal(f"{has_ended(documents)}, and it can be rolled back")
    if stands is Situation.FINISHED:
        raise Refusal(finished(str(name)))
    if doc.pending and stands is Situation.HELD:
        raise Refusal(
            f"{name}: nobody can tell whether the {doc.pending.step} call was carried out. Resolve it first: "
            f"retry {name}, or skip {name}"
        )
    if doc.pending:
        raise Refusal(f"{not_looked_up(documents)}. Wait for it, then roll back")
    present = _present(documents)
    if not _reaches(present, step):
        raise Refusal(f"{name} is at {present}: {step} comes later, and has made nothing that could be rolled back")
    if step is not Step.CONTENT and "json" not in documents.files:
        raise Refusal(f"{name} has no text, without which {step} cannot be taken: roll back to content")


def _present(documents: Documents) -> Step:
    """Return which one of PAID_STEPS the generation is at."""
    doc, step = documents.midjourney, documents.midjourney.present_step
    if documents.complete or step in (Step.RUNWAY_POLL, Step.MOCK):
        return Step.RUNWAY
    if step is Step.FETCH:
        of_imagine = transitions.ordered_by(doc.task) is Step.IMAGINE if doc.task else doc.results is None
        return Step.IMAGINE if of_imagine else Step.UPSCALE
    written = step is Step.CONTENT and "json" in documents.files and doc.status is not Status.CONTENT_FAILED
    return Step.IMAGINE if written else step


def _reaches(step: object, wanted: Step) -> bool:
    """Return whether `step` is `wanted` or a later one."""
    return step in PAID_STEPS and PAID_STEPS.index(Step(str(step))) >= PAID_STEPS.index(wanted)


# --- the step's input -------------------------------------------------------------------------------------------------


def _results_before(step: Step, documents: Documents) -> dict[str, Any]:
    """Return the `midjourney_results` that the step needs. Raises Refusal if they are not on record."""
    found = _recorded_before(step, documents)
    if found is None:
        name, maker = documents.gen.generation_id, Step.IMAGINE if step is Step.UPSCALE else Step.UPSCALE
        back = Step.IMAGINE if _recorded_before(maker, documents) is None else maker
        raise Refusal(f"{name}: what the {maker} made is not on record, and {step} needs it: roll back to {back}")
    return found


def _recorded_before(step: Step, documents: Documents) -> dict[str, Any] | None:
    """Return the `midjourney_results` that the step needs, or None if they are not on record."""
    if step in (Step.CONTENT, Step.IMAGINE):
        return {}
    results, wanted = documents.midjourney.results, IMAGINE if step is Step.UPSCALE else UPSCALE
    if results and results.task_type == wanted:
        raw = documents.midjourney.raw["midjourney_results"]
        return {key: value for key, value in raw.items() if key != "picked" or step is Step.RUNWAY}
    task_id = _delivered(documents.midjourney, Step(wanted))
    if task_id is None:
        return None
    return {"task_id": task_id, "task_type": wanted, "task_result": {}, "link_expired": True}


def _delivered(doc: MidjourneyDocument, maker: Step) -> str | None:
    """Return the id of the task that delivered the result of an imagine or upscale, or None if that is not on record.

    It has delivered if a later step was begun since.
    """
    calls = _calls_in_force(doc)
    ordered = [number for number, call in enumerate(calls) if call.get("step") == maker and call.get("task_id")]
    if not ordered:
        return None
    later = [it for it in PAID_STEPS if it is not maker and _reaches(it, maker)]
    begun = (
        any(call.get("step") in later for call in calls[ordered[-1] :])
        or any(doc.retries_of(it) for it in (*later, Step.RUNWAY_POLL))
        or (maker is Step.IMAGINE and doc.results is not None)
    )
    return str(calls[ordered[-1]]["task_id"]) if begun else None


def _calls_in_force(doc: MidjourneyDocument) -> list[dict[str, Any]]:
    """Return the paid calls whose results no rollback has given up."""
    gone: set[int] = set()
    for entry in doc.rolled_back:
        made, step = entry.get("paid_calls"), entry.get("step")
        if isinstance(made, int) and step in PAID_STEPS:
            calls = enumerate(doc.paid_calls[:made])
            gone.update(number for number, call in calls if _reaches(call.get("step"), Step(str(step))))
    return [call for number, call in enumerate(doc.paid_calls) if number not in gone]


# --- what is given up -------------------------------------------------------------------------------------------------


def _given_up(doc: MidjourneyDocument, step: Step) -> list[dict[str, Any]]:
    """Return the paid calls whose results a rollback to `step` gives up."""
    return [call for call in _calls_in_force(doc) if _reaches(call.get("step"), step)]


def _lost(step: Step, documents: Documents, files: tuple[str, ...]) -> str:
    doc, name = documents.midjourney, documents.gen.generation_id
    calls = paid_in_words(_given_up(doc, step))
    words = (*(f"{name}.{suffix}" for suffix in files), f"results of {calls}" if calls else "", unfetched(doc))
    *others, last = [it for it in words if it] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _content(doc: MidjourneyDocument) -> dict[str, Any]:
    """Return the content of a document without empty keys and without what a rollback notes in it."""
    noted = ("rolled_back", "discard")
    return {key: value for key, value in doc.raw.items() if value and key not in noted}
