"""The picture: it shows what happened, for any window and any names."""

from datetime import timedelta
from io import BytesIO

import pytest
from PIL import Image

from retake.clock import FakeClock
from retake.kpi.facts import Fact, micros
from retake.kpi.figures import Figures, pipeline_figures
from retake.kpi.plot import HEIGHT, LINES, REST, STATUSES, WIDTH, draw

NOW = FakeClock().now() + timedelta(hours=9, minutes=17)


def picture(window: timedelta, facts: list[Fact], listed: tuple[str, ...] = ()) -> Image.Image:
    counts: dict[tuple[str, ...], int] = {}
    for fact in facts:
        counts[fact.cell] = counts.get(fact.cell, 0) + fact.amount
    figures = Figures(NOW, window.total_seconds(), pipeline_figures(counts, listed=listed))
    image = Image.open(BytesIO(draw(figures, NOW - window, facts)))
    assert (image.format, image.size) == ("PNG", (WIDTH, HEIGHT))
    return image.convert("RGB")


def ended(pipeline: str, status: str, ago: timedelta = timedelta(minutes=30)) -> Fact:
    return Fact(micros(NOW - ago), ("ended", pipeline, status))


def in_chart(image: Image.Image, colour: tuple[int, int, int]) -> int:
    """Return how many pixels of the charts, without the legend, have exactly that colour."""
    charts = image.crop((84, 0, 872, HEIGHT))
    return dict((it, number) for number, it in charts.getcolors(WIDTH * HEIGHT) or []).get(colour, 0)  # noqa: C402


def test_each_way_to_end_has_its_colour() -> None:
    for status, colour in STATUSES.items():
        others = [it for it in STATUSES.values() if it != colour]
        image = picture(timedelta(days=1), [ended("story", status)])
        assert in_chart(image, colour) > 500
        assert [in_chart(image, it) for it in others] == [0, 0]


def test_the_busiest_pipelines_have_lines_of_their_own_and_the_rest_share_one() -> None:
    facts = [ended(f"p{n}", "succeeded", timedelta(hours=h)) for n in range(9) for h in range(1, 10 - n // 6)]
    image = picture(timedelta(hours=12), facts)
    assert in_chart(image, LINES[0]) + in_chart(image, REST) > 0


def height(image: Image.Image, colour: tuple[int, int, int], top: int, bottom: int) -> float:
    """Return the mean of the rows of a chart that contain that colour."""
    rows = [y for y in range(top, bottom) for x in range(84, 872) if image.getpixel((x, y)) == colour]
    return sum(rows) / len(rows)


def test_the_lines_are_at_the_height_of_the_rates() -> None:
    """Three of four runs succeed; of ten tries five fail, one of them for good: four tenths are retried. Polls do not
    count."""
    amounts = {
        ("ended", "p", "succeeded"): 3,
        ("ended", "p", "failed"): 1,
        ("done", "p", "imagine"): 5,
        ("failed", "p", "imagine", "A", "X"): 5,
        ("given_up", "p", "imagine"): 1,
        ("failed", "p", "fetch", "A", "X"): 50,
    }
    hours = [micros(NOW - timedelta(hours=hour)) for hour in range(10)]
    image = picture(timedelta(hours=12), [Fact(at, cell, n) for at in hours for cell, n in amounts.items()])
    assert height(image, LINES[0], 100, 310) == pytest.approx(300 - 190 * (0.75 - 0.5) / 0.5, abs=2)  # from 50 to 100 %
    assert height(image, LINES[0], 362, 552) == pytest.approx(542 - 170 * 0.4 / 0.5, abs=2)  # up to 50 %


@pytest.mark.parametrize(
    "window",
    [
        timedelta(seconds=1),
        timedelta(seconds=59),
        timedelta(minutes=90),
        timedelta(hours=24),
        timedelta(days=7),
        timedelta(days=365),
        timedelta(days=3650),
    ],
)
def test_any_window_can_be_drawn(window: timedelta) -> None:
    facts = [ended("story", "failed", window * part) for part in (0, 0.3, 0.999_999)]
    assert in_chart(picture(window, facts), STATUSES["failed"]) > 20


@pytest.mark.parametrize("name", ["", "story/" + "очень-длинное-имя" * 20, "עברית", "中文 🎬", "a\nb\x1b", "\ud800"])
def test_any_name_can_be_drawn(name: str) -> None:
    picture(timedelta(hours=1), [ended(name, "succeeded"), Fact(micros(NOW), ("done", name, "x"))])


@pytest.mark.parametrize("listed", [(), ("story",)])
def test_a_window_in_which_nothing_happened_can_be_drawn(listed: tuple[str, ...]) -> None:
    image = picture(timedelta(days=1), [], listed)
    assert [in_chart(image, colour) for colour in STATUSES.values()] == [0, 0, 0]


def test_many_runs_are_drawn() -> None:
    facts = [ended("story", "succeeded", timedelta(seconds=n)) for n in range(1, 20_000)]
    assert in_chart(picture(timedelta(hours=6), facts), STATUSES["succeeded"]) > 10_000
