"""The sections that a policy file may have besides [retry], as typed values, and their schemas.

All times are in seconds. docs/protocol.md, section "Robots", says which robot has which.
"""

from enum import StrEnum
from typing import Any, NamedTuple

from retake.errors import ErrorClass
from retake.retrying.breaker import BreakerPolicy
from retake.robots.follow_ups import ACTIONS, CLASSES, CODES, FollowUp
from retake.robots.recovery import STEPS, RecoveryStep
from retake.settings.schema import (
    PATIENCE,
    SECONDS,
    TEXT,
    YES_OR_NO,
    Field,
    Rule,
    Schema,
    TableList,
    choice,
    field,
    from_zero,
    schema_of,
    whole,
)


class LastFailure(NamedTuple):
    """What follows the last failure."""

    actions: tuple[FollowUp, ...] = field(TableList(ACTIONS), "in their order")


class RecoverySteps(NamedTuple):
    """How to recover from the error."""

    steps: tuple[RecoveryStep, ...] = field(TableList(STEPS), "in their order")


class Escalation(NamedTuple):
    """Who is notified, one after another."""

    path: tuple[FollowUp, ...] = field(TableList(ACTIONS), "in their order")


class NamedBreaker(NamedTuple):
    """The circuit breaker of the calls; robots that name the same one share it."""

    name: str
    policy: BreakerPolicy


def _breaker(name: str, **numbers: Any) -> NamedBreaker:
    return NamedBreaker(name, BreakerPolicy(**numbers))


_BREAKER = Schema(
    _breaker,
    {
        "name": Field(TEXT, "the service that it watches"),
        "failures": Field(whole(1, 1000), "failures that open it"),
        "window_s": Field(SECONDS, "seconds within which they count"),
        "open_s": Field(SECONDS, "seconds that it stays open; then one call is let through as a probe"),
    },
)


class CacheRules(NamedTuple):
    """When earlier results are used in place of new ones."""

    ttl_s: float = field(SECONDS, "seconds for which a result may be used")
    classes: tuple[ErrorClass, ...] = field(CLASSES, "the classes of errors after which it is")
    read_only: bool = field(YES_OR_NO, "whether it may only be read, not used to create or change anything")


CACHED_BY_DEFAULT = CacheRules(86400, (ErrorClass.TEMPORARY,), read_only=True)
"""The rules for a robot that is given a cache key but whose policy has no [cache]."""


class Idempotency(NamedTuple):
    """How duplicates are avoided."""

    key_from: str = field(choice("data", "item"), "what the idempotency key is made from")
    check_before_create: bool = field(YES_OR_NO, "whether the item is looked for before it is created")
    check_before_retry: bool = field(YES_OR_NO, "whether the item is looked for before each retry")
    if_none_match: bool = field(YES_OR_NO, "whether the request carries If-None-Match")


class Compensation(NamedTuple):
    """What is done about partially completed work."""

    after: str = field(choice("creation", "partial_setup"), "how far the work had got")
    actions: tuple[FollowUp, ...] = field(TableList(ACTIONS), "in their order")


class Batch(NamedTuple):
    """Many items in one call."""

    size: int = field(whole(1, 10_000), "items at most")
    partial_success: bool = field(YES_OR_NO, "whether the items that succeeded stay while others fail")
    rollback_over_percent: float = field(from_zero(100), "the whole batch is undone if more of its items fail")
    split_after: tuple[str, ...] = field(CODES, "after these errors the batch is retried in two halves")


class LockRules(NamedTuple):
    """What is done about a lock that another robot holds."""

    wait_s: float = field(PATIENCE, "seconds to wait for it")
    break_after_s: float = field(PATIENCE, "seconds after which it is broken, for the work in break_for")
    break_for: str = field(choice("reads", "nothing"), "the work for which it may be broken")
    optimistic_versions: bool = field(YES_OR_NO, "whether writes compare versions instead of holding a lock")


class ValidationMode(StrEnum):
    """How strictly a value is validated."""

    STRICT = "strict"  # any violation is an error
    LIBERAL = "liberal"  # within the tolerance a warning
    EMERGENCY = "emergency"  # logged only, under critical load


class Validation(NamedTuple):
    """What is done about a value that is not on the grid or out of range."""

    mode: ValidationMode = field(Rule(choice(*ValidationMode).allowed, ValidationMode), "how strictly")
    tolerance_percent: float = field(from_zero(50), "of the step: the deviation that passes in liberal mode")
    auto_correct: bool = field(YES_OR_NO, "whether the nearest allowed value replaces a wrong one")


class Consistency(NamedTuple):
    """How systems without a common transaction are kept consistent."""

    transactional_messages: bool = field(YES_OR_NO, "a message is sent if and only if its change is committed")
    outbox: bool = field(YES_OR_NO, "messages are kept in an outbox until they are delivered")
    saga: bool = field(YES_OR_NO, "each step of a long transaction has a compensation")


class StoreOrder(NamedTuple):
    """Where results are stored: in the first store that accepts them."""

    primary: str = field(TEXT, "the main store")
    secondary: str = field(TEXT, "while the main store is unavailable")
    emergency: str = field(TEXT, "while both are unavailable")
    sync_back: bool = field(YES_OR_NO, "whether results are copied to the main store when it is back")

    @property
    def order(self) -> tuple[str, str, str]:
        """The stores in the order in which they are tried."""
        return self.primary, self.secondary, self.emergency


class SnapshotRules(NamedTuple):
    """Copies to recover from."""

    every_s: float = field(SECONDS, "seconds between two snapshots")
    restore_last_valid: bool = field(YES_OR_NO, "whether recovery uses the last valid one")
    replicate_elsewhere: bool = field(YES_OR_NO, "whether they are also kept in another data centre")


SECTIONS = {
    "last_failure": schema_of(LastFailure),
    "recovery": schema_of(RecoverySteps),
    "escalation": schema_of(Escalation),
    "breaker": _BREAKER,
    "cache": schema_of(CacheRules),
    "idempotency": schema_of(Idempotency),
    "compensation": schema_of(Compensation),
    "batch": schema_of(Batch),
    "locks": schema_of(LockRules),
    "validation": schema_of(Validation),
    "consistency": schema_of(Consistency),
    "stores": schema_of(StoreOrder),
    "snapshots": schema_of(SnapshotRules),
}
"""The schemas, by the name of the table in the file."""
