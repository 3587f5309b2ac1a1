"""Robot 7: a value on the grid, off it, out of range; strict, liberal, in an emergency, and corrected."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retake.errors import RobotError
from retake.robots.sections import Validation, ValidationMode
from retake.robots.step_validation import OUT_OF_RANGE, STEP_VIOLATION, StepFinding, grid, validate

GRID = grid(0, 100, 5)
STRICT = Validation(ValidationMode.STRICT, 2, False)
LIBERAL = Validation(ValidationMode.LIBERAL, 2, False)
EMERGENCY = Validation(ValidationMode.EMERGENCY, 2, False)
CORRECTING = Validation(ValidationMode.STRICT, 2, True)


@pytest.mark.parametrize(
    ("rules", "value", "finding", "passes", "code"),
    [
        (STRICT, 15, StepFinding.FINE, 15, None),
        (STRICT, 0, StepFinding.FINE, 0, None),
        (STRICT, 100, StepFinding.FINE, 100, None),
        # «Строгий режим: любое нарушение = ошибка»
        (STRICT, 15.0001, StepFinding.REFUSED, None, STEP_VIOLATION),
        (STRICT, 105, StepFinding.REFUSED, None, OUT_OF_RANGE),
        # «Либеральный режим: допуск ±2% от шага с предупреждением»: with a step of 5 that is 0.1
        (LIBERAL, 15.1, StepFinding.WARNED, 15.1, STEP_VIOLATION),
        (LIBERAL, 14.9, StepFinding.WARNED, 14.9, STEP_VIOLATION),
        (LIBERAL, 15.11, StepFinding.REFUSED, None, STEP_VIOLATION),
        (LIBERAL, 14.89, StepFinding.REFUSED, None, STEP_VIOLATION),
        (LIBERAL, 100.1, StepFinding.WARNED, 100.1, OUT_OF_RANGE),
        (LIBERAL, 105, StepFinding.REFUSED, None, OUT_OF_RANGE),
        # «Аварийный режим: только логирование»
        (EMERGENCY, 17, StepFinding.LOGGED, 17, STEP_VIOLATION),
        (EMERGENCY, 1000, StepFinding.LOGGED, 1000, OUT_OF_RANGE),
        (EMERGENCY, 20, StepFinding.FINE, 20, None),
        # «Автоматическая корректировка при включенном флаге auto_correct»
        (CORRECTING, 17, StepFinding.CORRECTED, 15, STEP_VIOLATION),
        (CORRECTING, 18, StepFinding.CORRECTED, 20, STEP_VIOLATION),
        (CORRECTING, -3, StepFinding.CORRECTED, 0, OUT_OF_RANGE),
        (LIBERAL._replace(auto_correct=True), 15.1, StepFinding.WARNED, 15.1, STEP_VIOLATION),
        (LIBERAL._replace(auto_correct=True), 15.2, StepFinding.CORRECTED, 15, STEP_VIOLATION),
        (EMERGENCY._replace(auto_correct=True), 17, StepFinding.LOGGED, 17, STEP_VIOLATION),
    ],
)
def test_a_value_passes_or_not(
    rules: Validation, value: float, finding: StepFinding, passes: float | None, code: str
) -> None:
    verdict = validate(value, GRID, rules)
    assert (verdict.finding, verdict.code) == (finding, code)
    if passes is None:
        with pytest.raises(RobotError) as caught:
            verdict.passed()
        assert caught.value.code == code
    else:
        assert verdict.passed() == Decimal(str(passes))


@pytest.mark.parametrize(
    ("value", "nearest"), [(17, 15), (18, 20), (17.5, 15), (22.5, 20), (-1, 0), (1e300, 100), (98, 100), (0.1, 0)]
)
def test_the_nearest_allowed_value_is_proposed_the_lower_of_two(value: float, nearest: int) -> None:
    """After OUT_OF_RANGE the nearest allowed value is suggested."""
    assert validate(value, GRID, STRICT).nearest == nearest


def test_the_refusal_says_which_value_is_allowed() -> None:
    with pytest.raises(RobotError, match=r"^112\.5 is out of range; the nearest allowed value is 100$"):
        validate(112.5, GRID, STRICT).passed()
    with pytest.raises(RobotError, match=r"^12\.5 is not on the grid; the nearest allowed value is 10$"):
        validate(12.5, GRID, STRICT).passed()


def test_the_last_value_of_a_range_that_is_not_a_multiple_of_the_step_is_the_last_on_the_grid() -> None:
    for value in (11, Decimal("9E+999999")):
        assert validate(value, grid(0, 11, 3), STRICT).nearest == 9
        assert validate(value, grid(0, 1, 0.3), STRICT).nearest == Decimal("0.9")


def test_numbers_are_taken_as_they_are_written() -> None:
    assert validate(0.1 * 3, grid(0, 1, 0.1), STRICT).finding is StepFinding.REFUSED  # 0.30000000000000004
    assert validate(0.3, grid(0, 1, 0.1), STRICT).finding is StepFinding.FINE
    assert validate(0.7, grid(0.1, 1, 0.1), STRICT).finding is StepFinding.FINE


@pytest.mark.parametrize(
    ("low", "high", "step"), [(0, 1, 0), (0, 1, -1), (2, 1, 1), (0, 1e30, 1e-30), (0, Decimal("9E+999999"), 0.1)]
)
def test_what_is_not_a_grid_is_refused(low: float, high: float | Decimal, step: float) -> None:
    with pytest.raises(ValueError, match="no grid: "):
        grid(low, high, step)


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), Decimal("-Infinity"), "12 mm", None, True),
        *(Decimal("1E+1000000"), "-1e9999999", Decimal("1E-1000000")),  # Decimal holds them, but cannot calculate
    ],
)
def test_what_is_not_a_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a number on any grid"):
        validate(value, GRID, EMERGENCY)


WHOLE = st.integers(-10_000, 10_000)


@settings(max_examples=300, deadline=None, print_blob=True)
@given(low=WHOLE, count=st.integers(0, 500), step=st.integers(1, 97), value=WHOLE, rest=st.integers(0, 96))
def test_the_nearest_is_what_a_look_at_every_allowed_value_finds(
    low: int, count: int, step: int, value: int, rest: int
) -> None:
    scale = Decimal("0.01")  # hundredths, so that steps are fractions
    high = low + count * step + min(rest, step - 1)
    allowed = [low + step * number for number in range(count + 1)]
    expected = min(allowed, key=lambda it: (abs(it - value), it))
    verdict = validate(value * scale, grid(low * scale, high * scale, step * scale), STRICT)
    assert verdict.nearest == expected * scale
    assert (verdict.finding is StepFinding.FINE) == (value in allowed)
    assert verdict.code == (None if value in allowed else STEP_VIOLATION if low <= value <= high else OUT_OF_RANGE)
