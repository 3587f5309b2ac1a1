"""Action sinks: they receive the actions that follow a failure and carry them out (alerts, tickets, journals)."""

from collections.abc import Mapping
from logging import getLogger
from typing import Any, NamedTuple, Protocol, runtime_checkable

from retake import strict_json
from retake.errors import RetakeError
from retake.retrying.dead_letters import DeadLetters
from retake.robots.follow_ups import Do, FollowUp
from retake.runs.validation import mended, mended_record

_log = getLogger(__name__)

Record = Mapping[str, Any]
"""A standard error record: see `retake.errors.error_record`."""


class ActionSink(Protocol):
    """Receives the actions one by one, in the order of the policy."""

    def carry_out(self, action: FollowUp, record: Record) -> None:
        """Carry out `action` for the failure in `record`, or arrange for it; `after_s` delays it by that many seconds.

        An exception is logged, and the remaining actions are still handed in.
        """
        ...


@runtime_checkable
class RecoverySink(Protocol):
    """A sink that is told when a robot succeeds again, so that it can close what it opened after a failure."""

    def recovered(self, robot_id: str) -> None:
        """Note that the robot has succeeded. An exception is logged."""
        ...


def tell_recovery(sink: ActionSink, robot_id: str) -> None:
    """Tell a sink that implements `RecoverySink` that the robot has succeeded. Errors are only logged."""
    if isinstance(sink, RecoverySink):
        try:
            sink.recovered(robot_id)
        except RetakeError as error:
            _log.warning("%s works again, and its alert could not be closed: %s", robot_id, error)
        except Exception:  # noqa: BLE001  a bug in the sink must not lose the result of the work
            _log.exception("%s works again, and its alert could not be closed, because of a bug", robot_id)


class RecordedAction(NamedTuple):
    """An action that a sink received."""

    action: FollowUp
    record: Record


class RecordingSink:
    """Records the actions and does nothing else, for tests and dry runs."""

    def __init__(self) -> None:
        self.recorded: list[RecordedAction] = []

    def carry_out(self, action: FollowUp, record: Record) -> None:
        self.recorded.append(RecordedAction(action, record))

    @property
    def done(self) -> list[Do]:
        """The names of the actions, in order."""
        return [it.action.do for it in self.recorded]


class DeadLetterSink:
    """Writes dead letters itself and passes every other action to `others`.

    A letter has the id of its error, the robot as its kind, and the robot's input as its item.

    >>> from retake.bucket.memory import MemoryBucket
    >>> from retake.clock import SystemClock
    >>> letters, others = DeadLetters(MemoryBucket(), SystemClock()), RecordingSink()
    >>> sink = DeadLetterSink(letters, others)
    >>> record = {"error_id": "e-1", "robot_id": "NR.NSI.10", "details": {"input_data": {"label": "scrap 42"}}}
    >>> sink.carry_out(FollowUp(Do.DEAD_LETTER), record)
    >>> sink.carry_out(FollowUp(Do.REJECT), record)
    >>> [letter.item for letter in letters.list()], [action.value for action in others.done]
    ([{'label': 'scrap 42'}], ['reject'])
    """

    def __init__(self, letters: DeadLetters, others: ActionSink) -> None:
        self._letters, self._others = letters, others

    def carry_out(self, action: FollowUp, record: Record) -> None:
        if action.do is not Do.DEAD_LETTER:
            self._others.carry_out(action, record)
            return
        letter_id, kind, item = record["error_id"], record["robot_id"], record["details"]["input_data"]
        try:
            strict_json.encode(record)
        except (TypeError, ValueError, RecursionError):  # a value that is not JSON must not lose the rest of the work
            item, record = mended(item), mended_record(record)
        self._letters.put(letter_id, kind, item, record)

    def recovered(self, robot_id: str) -> None:
        tell_recovery(self._others, robot_id)
