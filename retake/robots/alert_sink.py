"""An action sink that raises alerts: notices, escalations, incidents and tickets reach the channels in the settings."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from logging import getLogger
from typing import Any, NamedTuple

from retake.alerts.board import Board
from retake.alerts.conditions import Condition, Findings
from retake.alerts.delivery import Send, Sender
from retake.alerts.evaluation import evaluated
from retake.alerts.settings import LEVELS, AlertSettings
from retake.alerts.store import BoardStore
from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import ErrorRecord
from retake.robots.action_sink import ActionSink, Record, tell_recovery
from retake.robots.follow_ups import Do, FollowUp

_log = getLogger(__name__)

RECHECK_S = 60.0
"""Seconds between two reads of the bucket, after successes, for alerts of other processes that a success closes."""

_CODE = "robot_failed"
_LEVELS = {Do.INCIDENT: "critical", Do.ESCALATE: "error", Do.TICKET: "warning"}


class AlertPlace(NamedTuple):
    """Where alerts are kept, and how they are sent."""

    bucket: Bucket  # all of it
    settings: AlertSettings
    clock: Clock
    environ: Mapping[str, str]  # holds the channels' secrets
    send: Send | None = None  # replaces the function that sends a message


class AlertSink:
    """Raises an alert for the actions notify, tell, escalate, incident and ticket, and passes every other action to
    `others`.

    All actions after failures of one robot share one alert, at the highest of their levels; it lists what the policy
    asks for. Nobody has to answer twice: an alert that nobody has acknowledged is sent again, which is the delayed
    reminder of `escalate`. `recovered` closes the alert; `Robot.run` calls it when work succeeds.

        sink = AlertSink(AlertPlace(bucket, settings, clock, os.environ), others=DeadLetterSink(letters, journal))
        robot = Robot(policy, Ports(clock, random, sink))
    """

    def __init__(self, place: AlertPlace, others: ActionSink) -> None:
        self._place, self._others = place, others
        self._store = BoardStore(place.bucket, place.clock)
        self._sender = Sender(self._store, place.settings, place.environ, place.clock, place.send)
        self._failing: set[str] = set()  # robots known to have an open alert
        self._checked_at: datetime | None = None  # the last read of the bucket; None: not read yet

    def carry_out(self, action: FollowUp, record: Record) -> None:
        """Raise the alert, or pass the action on. Raises StateError, StorageError."""
        if action.do not in _WORDS:
            self._others.carry_out(action, record)
            return
        robot = str(record["robot_id"])
        self._failing.add(robot)
        self._evaluate(robot, self._condition(robot, action, ErrorRecord(record)))

    def recovered(self, robot_id: str) -> None:
        """Close the robot's alert after a success, and tell the sink behind this one.

        The bucket is read only if the robot may have an alert, and once a minute for alerts of other processes. Raises
        StateError, StorageError.
        """
        tell_recovery(self._others, robot_id)
        now = self._place.clock.now()
        if self._checked_at is None or abs(now - self._checked_at) >= timedelta(seconds=RECHECK_S):
            active = (it for it in self._store.read().alerts.values() if it.active and it.code == _CODE)
            self._failing = {name.removeprefix("robot/") for it in active for name in it.seen}
            self._checked_at = now
        if robot_id in self._failing:
            self._evaluate(robot_id, None)
            self._failing.discard(robot_id)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` until all messages are sent; return whether they are. For the end of a process."""
        return self._sender.wait(seconds)

    def _evaluate(self, robot: str, condition: Condition | None) -> None:
        now, settings = self._place.clock.now(), self._place.settings

        def step(board: Board) -> tuple[Board, None]:
            found = (_joined(board, condition),) if condition else ()
            look = Findings(f"robot/{robot}", frozenset({_CODE}), found)
            return evaluated(board, [look], settings, now), None

        self._store.change(step)
        self._sender.start()

    def _condition(self, robot: str, action: FollowUp, error: ErrorRecord) -> Condition:
        level = action.level.value if action.level else _LEVELS[action.do]
        return Condition(
            _CODE,
            level,
            f"{_CODE}/{robot}",
            f"{robot} failed for good",
            error.id or "unknown",
            message=error.message,
            follows=_in_words(action),
            command="python -m retake runs",
            error_class=error.error_class.value if error.error_class else None,
            error_code=error.code,
        )


def _joined(board: Board, condition: Condition) -> Condition:
    """Return the condition, merged with the robot's active alert.

    Its level is never below the alert's: otherwise each failure would lower the level, raise it again, and send the
    alert again. After the same error, the actions that the policy asked for before are kept.
    """
    alert = board.alerts.get(condition.key)
    if alert is None or not alert.active:
        return condition
    condition = condition._replace(level=max(alert.level, condition.level, key=LEVELS.index))
    if condition.occurrence not in alert.seen.values():
        return condition
    asked = [alert.follows] if condition.follows in alert.follows else [alert.follows, condition.follows]
    return condition._replace(follows=" ".join(asked))


def _in_words(action: FollowUp) -> str:
    given: dict[str, Any] = {name: value for name, value in action._asdict().items() if value}
    text = _WORDS[action.do](given)
    return f"{text[0].upper()}{text[1:]}."


def _after(given: Mapping[str, Any]) -> str:
    return f" after {given['after_s']:g} s without an answer" if given.get("after_s") else ""


_WORDS = {
    Do.NOTIFY: lambda given: f"a notice by {given.get('channel', 'any channel')}",
    Do.TELL: lambda given: f"tell {given.get('recipient', 'somebody')}",
    Do.ESCALATE: lambda given: f"escalate to {given.get('recipient', 'somebody')}{_after(given)}",
    Do.INCIDENT: lambda given: f"open an incident in {given.get('system', 'the usual place')}",
    Do.TICKET: lambda given: f"open a ticket: {given.get('what', 'see the error')}",
}
"""The actions that raise an alert, and how each reads there."""
