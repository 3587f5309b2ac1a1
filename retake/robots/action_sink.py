"""Action sinks: they receive the actions that follow a failure, and carry them out (alerts, tickets, journals)."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from retake.retrying.dead_letters import DeadLetters
from retake.robots.follow_ups import Do, FollowUp

Record = Mapping[str, Any]
"""A standard error record: see `retake.errors.error_record`."""


class ActionSink(Protocol):
    """Receives one action after another, in the order of the policy."""

    def carry_out(self, action: FollowUp, record: Record) -> None:
        """Carry out `action` about the failure in `record`, or arrange for it; with `after_s`, that many seconds later.

        May raise RetakeError: the actions after it are still handed in.
        """
        ...


class RecordedAction(NamedTuple):
    """One action that a sink was given."""

    action: FollowUp
    record: Record


class RecordingSink:
    """Records the actions and does nothing else: for tests and dry runs."""

    def __init__(self) -> None:
        self.recorded: list[RecordedAction] = []

    def carry_out(self, action: FollowUp, record: Record) -> None:
        self.recorded.append(RecordedAction(action, record))

    @property
    def done(self) -> list[Do]:
        """The names of the actions, in their order."""
        return [it.action.do for it in self.recorded]


class DeadLetterSink:
    """Writes dead letters itself and passes every other action to `others`.

    A letter's id is that of its error, its kind the robot, and its item what the robot was given.
    """

    def __init__(self, letters: DeadLetters, others: ActionSink) -> None:
        self._letters, self._others = letters, others

    def carry_out(self, action: FollowUp, record: Record) -> None:
        if action.do is not Do.DEAD_LETTER:
            self._others.carry_out(action, record)
            return
        self._letters.put(record["error_id"], record["robot_id"], record["details"]["input_data"], record)
