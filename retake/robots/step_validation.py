"""Validation of a number against a grid of steps (docs/protocol.md, section "NR.NSI.7").

Values are compared as decimal numbers, as written: 0.3 lies on a grid of 0.1. Value, step and range must have the same
unit.

    lengths = grid(0, 100, 0.5)
    validate(3.2, lengths, rules).nearest    # Decimal("3.0")
"""

from decimal import ROUND_HALF_DOWN, Decimal, InvalidOperation, getcontext
from enum import StrEnum
from typing import NamedTuple

from retake.errors import RobotError
from retake.robots.sections import Validation, ValidationMode

Number = Decimal | int | float

STEP_VIOLATION = "ERR_BUSINESS_STEP_VIOLATION"
OUT_OF_RANGE = "ERR_BUSINESS_OUT_OF_RANGE"


class Grid(NamedTuple):
    """The allowed values: low, low + step, low + 2 · step, … up to high."""

    low: Decimal
    high: Decimal
    step: Decimal

    def nearest(self, value: Decimal) -> Decimal:
        """Return the allowed value nearest to `value`, the lower one if two are equally near."""
        last = (self.high - self.low) // self.step
        inside = min(max(value, self.low), self.high)
        steps = ((inside - self.low) / self.step).to_integral_value(ROUND_HALF_DOWN)
        return self.low + self.step * min(steps, last)


class StepFinding(StrEnum):
    """The result of a validation."""

    FINE = "fine"
    WARNED = "warned"  # wrong, but within the tolerance: it passes as it is
    CORRECTED = "corrected"  # wrong: the nearest allowed value takes its place
    LOGGED = "logged"  # wrong, but it passes as it is: emergency mode
    REFUSED = "refused"  # wrong: it does not pass


class StepVerdict(NamedTuple):
    """The result of a validation, and the value that passes."""

    finding: StepFinding
    value: Decimal  # the value that passes; if it is refused, the given value
    nearest: Decimal  # the nearest allowed value: the suggestion if it is refused
    code: str | None  # what is wrong with it; None: nothing
    given: Decimal | None = None  # the given value, if another one passes

    @property
    def wrong(self) -> RobotError | None:
        """The error about the given value, with the suggestion; None if the value is right."""
        if self.code is None:
            return None
        wrong = "is out of range" if self.code == OUT_OF_RANGE else "is not on the grid"
        given = self.value if self.given is None else self.given
        return RobotError(self.code, f"{given} {wrong}; the nearest allowed value is {self.nearest}")

    def passed(self) -> Decimal:
        """Return the value that passes. Raises RobotError, with the suggestion, if it is refused."""
        if self.finding is StepFinding.REFUSED and (wrong := self.wrong):
            raise wrong
        return self.value


def grid(low: Number, high: Number, step: Number) -> Grid:
    """Return the grid low, low + step, … up to high.

    Raises ValueError for a step that is not above 0, a range that ends before it begins, and more than 10**18 steps.
    """
    made = Grid(_decimal(low), _decimal(high), _decimal(step))
    if made.step <= 0 or made.low > made.high or (made.high - made.low) / 10**18 > made.step:
        raise ValueError(f"no grid: from {low} to {high} in steps of {step}")
    return made


def validate(value: Number, allowed: Grid, rules: Validation) -> StepVerdict:
    """Validate `value` against `allowed`.

    Strict: every violation is refused. Liberal: a value that is off by at most `tolerance_percent` of the step passes
    with a warning. Emergency: violations are only logged. With `auto_correct` the nearest allowed value replaces one
    that would be refused. Raises ValueError for a value that is not a finite number, or has over 999,999 digits.
    """
    given = _decimal(value)
    nearest = allowed.nearest(given)
    off = abs(given - nearest)
    if off == 0:
        return StepVerdict(StepFinding.FINE, given, nearest, None)
    code = STEP_VIOLATION if allowed.low <= given <= allowed.high else OUT_OF_RANGE
    if rules.mode is ValidationMode.EMERGENCY:
        return StepVerdict(StepFinding.LOGGED, given, nearest, code)
    if rules.mode is ValidationMode.LIBERAL and off <= allowed.step * _decimal(rules.tolerance_percent) / 100:
        return StepVerdict(StepFinding.WARNED, given, nearest, code)
    if rules.auto_correct:
        return StepVerdict(StepFinding.CORRECTED, nearest, nearest, code, given)
    return StepVerdict(StepFinding.REFUSED, given, nearest, code)


def _decimal(value: Number) -> Decimal:
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > getcontext().Emax:  # it could not be calculated with
        raise ValueError(f"{value!s:.60} is not a number on any grid")
    return number
