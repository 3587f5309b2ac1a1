"""The sink: where a robot hands in what has to follow on a failure. Who carries it out (alerts, tickets, journals) sits
behind it and is no affair of the robot's."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from retake.retrying.dead_letters import DeadLetters
from retake.robots.follow_ups import Do, FollowUp

Record = Mapping[str, Any]
"""A standard error record: see `retake.errors.error_record`."""


class ActionSink(Protocol):
    """Takes in one action after another, in the order of the policy."""

    def carry_out(self, action: FollowUp, record: Record) -> None:
        """See to it that `action` is done about the failure that `record` tells of; one with `after_s`, when so many
        seconds have passed since. May raise RetakeError: the actions after it are handed in all the same."""
        ...


class RecordedAction(NamedTuple):
    """One action that was handed in."""

    action: FollowUp
    record: Record


class RecordingSink:
    """Notes what it is handed, and does nothing else: for tests, and for whoever wants to see first."""

    def __init__(self) -> None:
        self.recorded: list[RecordedAction] = []

    def carry_out(self, action: FollowUp, record: Record) -> None:
        self.recorded.append(RecordedAction(action, record))

    @property
    def done(self) -> list[Do]:
        """The actions, in their order."""
        return [it.action.do for it in self.recorded]


class DeadLetterSink:
    """Lays the dead letters itself, and hands everything else on to `others`. A letter's id is that of its error, its
    kind is the robot, and its item what the robot was given."""

    def __init__(self, letters: DeadLetters, others: ActionSink) -> None:
        self._letters, self._others = letters, others

    def carry_out(self, action: FollowUp, record: Record) -> None:
        if action.do is not Do.DEAD_LETTER:
            self._others.carry_out(action, record)
            return
        self._letters.put(record["error_id"], record["robot_id"], record["details"]["input_data"], record)
