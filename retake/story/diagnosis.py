"""Logs decisions in diagnostic mode."""

from logging import getLogger

from retake.clock import stamp
from retake.story.decision import Action
from retake.story.documents import Documents

_log = getLogger("retake.diagnosis.decision")


def log_decision(documents: Documents, action: Action, mode: int | None = None) -> None:
    """Log a decision with the facts that it is based on, without texts and prompts."""
    doc, error = documents.midjourney, documents.midjourney.error
    tasks = [task for task in (doc.task, doc.runway_task) if task]
    facts = {
        "generation_id": documents.gen.generation_id,
        "status": doc.status,
        "generation": doc.generation,
        "files": sorted(documents.files),
        "tasks": [f"{task.task_type} {task.task_id}" for task in tasks],
        "results": doc.results and f"{doc.results.task_type} {doc.results.task_id}",
        "pending": doc.pending and f"{doc.pending.step}, outcome {doc.pending.outcome or 'not looked up'}",
        "retries": doc.retries,
        "error": error.code,
        "retry_at": error.retry_at and stamp(error.retry_at),
        "paid_calls": len(doc.paid_calls),
        "failed_in_a_row": documents.gen.failed_in_a_row,
        "mode": mode,
    }
    known = {key: it for key, it in facts.items() if it not in (None, [], {}, False)}
    told = ", ".join(f"{key} {_as_words(it)}" for key, it in known.items())
    more = {"act": action.act.name, "why": action.why, "facts": facts}
    _log.debug("decided: %s (%s); from: %s", action.act, action.why, told or "empty documents", extra=more)


def _as_words(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{key}: {it}" for key, it in value.items())
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)
