"""Charts: every shape is within the picture, and words say the same."""

from hypothesis import given
from hypothesis import strategies as st

from retake.web.charts import HEIGHT, MAX_POINTS, WIDTH, Axis, bar_chart, line_chart, round_up

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]


def test_bars_are_as_high_as_their_values() -> None:
    found = bar_chart("Paid by day", DAYS, [0.0, 1.0, 0.5], Axis(1.0, " USD"), 0.5)
    none, whole, half = found.bars
    assert (none.height, half.height * 2) == (0.0, whole.height)
    assert whole.description == "2026-01-02: 1.00 USD"
    assert found.mark == half.y
    assert found.description == "2026-01-01 to 2026-01-03: at most 2026-01-02: 1.00 USD; the last is 0.50 USD"
    assert (found.first, found.last) == ("2026-01-01", "2026-01-03")


def test_a_line_goes_through_what_is_known() -> None:
    found = line_chart("Success", DAYS, [100.0, None, 50.0], Axis(100.0, " %", 0), 99.5)
    assert [it.description for it in found.dots] == ["2026-01-01: 100 %", "2026-01-03: 50 %"]
    assert found.description == "from 50 % to 100 %; 2026-01-03: 50 %"
    assert found.path == " ".join(f"{it.x},{it.y}" for it in found.dots)


def test_nothing_is_reported_as_nothing() -> None:
    assert bar_chart("Paid", [], [], Axis(1.0)).description == "nothing is on record"
    assert line_chart("Success", ["a"], [None], Axis(1.0)).description == "no data"


@given(st.lists(st.floats(-1, 1e12, allow_nan=False), max_size=600))
def test_every_shape_is_within_the_picture(values: list[float]) -> None:
    axis = Axis(round_up(max(values, default=0.0)))
    labels = [f"{n}" for n in range(len(values))]
    bars = bar_chart("x", labels, values, axis).bars
    assert len(bars) == min(len(values), MAX_POINTS)
    assert all(it.x >= 0 and it.x + it.width <= WIDTH and it.y >= 0 and it.y + it.height <= HEIGHT for it in bars)
    dots = line_chart("x", labels, values, axis).dots
    assert all(0 <= it.x <= WIDTH and 0 <= it.y <= HEIGHT for it in dots)


@given(st.floats(0, 1e15) | st.sampled_from([1e299, 1e300, 1e301, 1.7e308]))
def test_an_axis_ends_at_a_round_number_above_its_values(value: float) -> None:
    end = round_up(value)
    assert end >= value
    assert value < 1e-6 or end <= 10 * value
