"""The names by which pipelines tell the ledger, and so operators, what happened and who did it."""

from retake.runs.run import STEP_DONE

__all__ = ["BY_HAND", "CRON", "OPERATOR", "RECOVERY", "REMARK", "STEP_DONE", "WEB"]

REMARK = "run.note"
"""The event of whatever else is worth knowing: {code, …, seen_at_utc, text}."""

CRON, OPERATOR, RECOVERY, WEB = "cron", "operator", "recovery", "web"
"""Who did it: a scheduled tick, a person, a tick that finished what an interrupted one had left, or a person by the
dashboard."""

BY_HAND = (OPERATOR, WEB)
"""The actors that are people."""
