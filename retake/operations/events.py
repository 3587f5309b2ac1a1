"""The names by which pipelines tell the ledger, and so operators, what happened and who did it."""

from retake.runs.run import STEP_DONE

__all__ = ["CRON", "OPERATOR", "RECOVERY", "REMARK", "STEP_DONE"]

REMARK = "run.note"
"""The event of whatever else is worth knowing: {code, …, seen_at_utc, text}."""

CRON, OPERATOR, RECOVERY = "cron", "operator", "recovery"
"""Who did it: a scheduled tick, a person, or a tick that finished what an interrupted one had left."""
