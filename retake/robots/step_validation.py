"""Whether a value lies on a grid: the validation of seed 003, «NR.NSI.7_validate_scrap_geometry_step».

Values are compared as decimal numbers, as they are written: 0.3 lies on a grid of 0.1. Any unit will do, as long as it
is the same for value, step and range.
"""

from decimal import ROUND_HALF_DOWN, Decimal
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
        """The allowed value that is nearest to `value`; the lower one if two are equally near."""
        last = (self.high - self.low) // self.step
        steps = ((value - self.low) / self.step).to_integral_value(ROUND_HALF_DOWN)
        return self.low + self.step * min(max(steps, Decimal(0)), last)


class StepFinding(StrEnum):
    """What was found, and so what becomes of the value."""

    FINE = "fine"
    WARNED = "warned"  # off, but within the tolerance: it passes as it is
    CORRECTED = "corrected"  # off: the nearest allowed value passes in its place
    LOGGED = "logged"  # off, and it passes as it is: an emergency
    REFUSED = "refused"  # off: it does not pass


class StepVerdict(NamedTuple):
    """What became of a value."""

    finding: StepFinding
    value: Decimal  # what passes; of one that is refused, what was given
    nearest: Decimal  # the nearest allowed value: the proposal, where it is refused
    code: str | None  # what is wrong with it; None: nothing

    given: Decimal | None = None  # what was given, where another value passes

    @property
    def wrong(self) -> RobotError | None:
        """What is wrong with the value that was given, with the proposal; None: nothing."""
        if self.code is None:
            return None
        wrong = "lies out of range" if self.code == OUT_OF_RANGE else "is not on the grid"
        given = self.value if self.given is None else self.given
        return RobotError(self.code, f"{given} {wrong}; the nearest allowed value is {self.nearest}")

    def passed(self) -> Decimal:
        """The value that passes. Raises RobotError, with the proposal, where none does."""
        if self.finding is StepFinding.REFUSED and (wrong := self.wrong):
            raise wrong
        return self.value


def grid(low: Number, high: Number, step: Number) -> Grid:
    """Raises ValueError for what is no grid: a step that is not above 0, a range that ends before it begins, or one of
    more steps than can be counted exactly."""
    made = Grid(_decimal(low), _decimal(high), _decimal(step))
    if made.step <= 0 or made.low > made.high or (made.high - made.low) / made.step > 10**18:
        raise ValueError(f"no grid: from {low} to {high} in steps of {step}")
    return made


def validate(value: Number, allowed: Grid, rules: Validation) -> StepVerdict:
    """Strict: any violation is an error. Liberal: up to so many percent of the step off the nearest allowed value is a
    warning. Emergency: whatever is wrong is only to be logged. With `auto_correct` the nearest allowed value takes the
    place of what would be refused. Raises ValueError for what is no number."""
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
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    if not number.is_finite():
        raise ValueError(f"{value} is no number on any grid")
    return number
