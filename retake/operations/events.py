"""The names of events and actors that pipelines record in the ledger, and that operators see."""

from retake.runs.run import STEP_DONE

__all__ = ["BY_HAND", "CRON", "OPERATOR", "RECOVERY", "REMARK", "STEP_DONE", "WEB"]

REMARK = "run.note"
"""The event for anything else worth knowing: {code, …, seen_at_utc, text}."""

CRON, OPERATOR, RECOVERY, WEB = "cron", "operator", "recovery", "web"
"""The actors: a scheduled tick, a person on the console, a tick that finishes an interrupted one, a person on the
dashboard."""

BY_HAND = (OPERATOR, WEB)
"""The actors that are people."""
