"""The actions that follow a robot's last failure, as data: which action, after which errors.

docs/protocol.md, section "Robots", names them for each robot. An ActionSink carries them out (action_sink.py).
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from retake.errors import CodedError, ErrorClass, escalate, retry_in
from retake.settings.schema import PATIENCE, TEXT, Field, Rule, Schema, SchemaChoice, choice, none_or, several, whole


class Do(StrEnum):
    """The actions that a policy file may name."""

    DEAD_LETTER = "dead_letter"  # keep the work as a dead letter
    NOTIFY = "notify"  # send a notice by this channel
    TELL = "tell"  # tell a person in this role, by whatever channel reaches them
    ESCALATE = "escalate"  # hand it to this person if nobody has answered after that many seconds
    DEFERRED_RETRY = "deferred_retry"  # do the whole work again after that many seconds
    JOURNAL = "journal"  # write it into this journal
    INCIDENT = "incident"  # open an incident
    TICKET = "ticket"  # open a task for a person
    FAIL_FAST = "fail_fast"  # stop the chain: no robot after this one runs
    RETURN_EXISTING = "return_existing"  # return the existing item
    READ_ONLY = "read_only"  # create nothing more after that many failures in a row
    CONTINUE_WITH_REST = "continue_with_rest"  # continue with the remaining items of the batch
    SPLIT_BATCH = "split_batch"  # retry the batch in two halves
    MANUAL_MODE = "manual_mode"  # a person does this from now on
    MANUAL_QUEUE = "manual_queue"  # put it into this queue, for a person to decide
    BUFFER = "buffer"  # keep these for the time being
    FLUSH_TO_DISK = "flush_to_disk"  # write what is buffered in memory to disk
    REJECT = "reject"  # refuse the data
    SUGGEST_NEAREST = "suggest_nearest"  # suggest the nearest allowed value
    AUTO_CORRECT = "auto_correct"  # use that value, if `auto_correct` is set
    STOP_LINE = "stop_line"  # stop the production line
    BACKUP = "backup"  # keep a copy of this
    DEGRADE = "degrade"  # continue with reduced work
    MARK = "mark"  # mark what was created
    ROLL_BACK = "roll_back"  # undo what was done, after that many seconds
    CORRECT = "correct"  # run the script that corrects this error
    BACKUP_SYSTEM = "backup_system"  # switch over to the backup system


class Channel(StrEnum):
    """Where a notice is sent (docs/protocol.md, section "Notification channels")."""

    SLACK = "slack"
    EMAIL = "email"
    PAGERDUTY = "pagerduty"
    SMS = "sms"
    TELEGRAM = "telegram"


class Level(StrEnum):
    """How severe it is (docs/protocol.md, section "Alert levels")."""

    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class When(NamedTuple):
    """Selects errors by class or code, except some codes; without class and code every error."""

    classes: frozenset[ErrorClass] = frozenset()
    codes: frozenset[str] = frozenset()
    except_codes: frozenset[str] = frozenset()

    def holds_for(self, error: CodedError) -> bool:
        if error.code in self.except_codes:
            return False
        everywhere = not self.classes and not self.codes
        return everywhere or error.code in self.codes or error.error_class in self.classes


class FollowUp(NamedTuple):
    """An action. `FIELDS_OF` says which of the fields below `when` it has."""

    do: Do
    when: When = When()
    after_s: float = 0.0  # seconds from the last failure
    recipient: str | None = None  # the role of a person, or an address
    channel: Channel | None = None
    level: Level | None = None
    system: str | None = None  # where an incident or ticket is opened; None: the usual place
    priority: str | None = None
    what: str | None = None  # in words
    failures_in_a_row: int | None = None
    unless: str | None = None  # in words

    def as_recovery_action(self) -> dict[str, Any]:
        """Return the action as in docs/protocol.md, section "Error record". Actions not shown there have the same
        form."""
        if self.do is Do.DEFERRED_RETRY:
            return retry_in(self.after_s)
        if self.do is Do.ESCALATE:
            return {**escalate(self.recipient or "", self.what or ""), "delay_seconds": self.after_s}
        names = {"after_s": "delay_seconds"}
        given = {names.get(name, name): getattr(self, name) for name in FIELDS_OF[self.do]}
        return {"action": self.do.upper(), **{name: value for name, value in given.items() if value is not None}}


CLASSES = several(Rule(choice(*ErrorClass).allowed, ErrorClass))
CODES = several(Rule("an error code of [errors]", TEXT.read))
CODE_KEYS = ("codes", "except_codes", "split_after", "timeout_code")
"""The keys, anywhere in a policy file, whose values are one or more codes from its own [errors]."""

FILTER = {
    "classes": Field(CLASSES, "only after errors of these classes", default=()),
    "codes": Field(CODES, "only after these errors", default=()),
    "except_codes": Field(CODES, "not after these errors", default=()),
}
_FIELDS = {
    "after_s": Field(PATIENCE, "seconds from the last failure"),
    "recipient": Field(TEXT, "who"),
    "channel": Field(Rule(choice(*Channel).allowed, Channel), "by which channel"),
    "level": Field(Rule(choice(*Level).allowed, Level), "how bad it is"),
    "system": Field(none_or(TEXT), "where it is opened"),
    "priority": Field(none_or(TEXT), "how urgent it is"),
    "what": Field(TEXT, "in words, for those who read it or carry it out"),
    "failures_in_a_row": Field(whole(1, 1000), "failures in a row, without a success between"),
    "unless": Field(none_or(TEXT), "what makes it unnecessary, in words"),
}
FIELDS_OF: Mapping[Do, tuple[str, ...]] = dict.fromkeys(Do, ()) | {
    Do.NOTIFY: ("channel", "level"),
    Do.TELL: ("recipient", "level"),
    Do.ESCALATE: ("recipient", "after_s", "what"),
    Do.DEFERRED_RETRY: ("after_s",),
    Do.JOURNAL: ("what",),
    Do.INCIDENT: ("system", "priority"),
    Do.TICKET: ("system", "what"),
    Do.READ_ONLY: ("failures_in_a_row",),
    Do.MANUAL_MODE: ("what",),
    Do.MANUAL_QUEUE: ("what",),
    Do.BUFFER: ("what",),
    Do.FLUSH_TO_DISK: ("what",),
    Do.BACKUP: ("what",),
    Do.DEGRADE: ("what",),
    Do.MARK: ("what",),
    Do.ROLL_BACK: ("after_s", "unless"),
}
"""The required fields of each action, besides the errors it follows."""


def when(given: dict[str, Any]) -> When:
    """Return the filter in `given`, and remove its keys from `given`."""
    classes, codes, excepted = (given.pop(key) for key in FILTER)
    return When(frozenset(classes), frozenset(codes), frozenset(excepted))


def _follow_up(do: Do, **given: Any) -> FollowUp:
    return FollowUp(do, when(given), **given)


ACTIONS = SchemaChoice(
    "do",
    {do: Schema(partial(_follow_up, do), FILTER | {name: _FIELDS[name] for name in FIELDS_OF[do]}) for do in Do},
)
