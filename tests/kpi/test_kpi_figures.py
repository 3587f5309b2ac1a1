"""Events of runs, on each ledger, and the figures that were calculated for them by hand."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kpi_ledgers import A, B, C, Place, statuses

from retake.kpi.facts import MAX_NAME_LENGTH
from retake.kpi.figures import KpiLevel, StepFigures, pipeline_figures, worst
from retake.runs.run import ERROR, STEP_DONE
from retake.runs.states import RunStatus, Trigger

FIELDS = ("done", "failed_tries", "tries", "given_up", "success_rate", "retry_rate")


def steps_of(place: Place, pipeline: str = "story") -> dict[str, tuple[Any, ...]]:
    found = place.figures()[pipeline].steps
    return {step.step: tuple(getattr(step, field) for field in FIELDS) for step in found}


def test_a_run_without_trouble(place: Place) -> None:
    run = place.begun("a")
    for step in ("content", "imagine"):
        place.clock.sleep(10)
        place.done(run, step)
    place.end(run, Trigger.COMPLETED)
    it = place.figures()["story"]
    assert it.runs == statuses(succeeded=1)
    assert (it.success_rate, it.retry_rate, it.mean_seconds) == (1.0, 0.0, 20.0)
    assert steps_of(place) == {"content": (1, 0, 1, 0, 1.0, 0.0), "imagine": (1, 0, 1, 0, 1.0, 0.0)}


def test_failed_tries_are_distinguished_from_the_one_at_which_the_run_failed(place: Place) -> None:
    run = place.begun("a")
    place.done(run, "content")
    run = place.failed(run, "upscale")
    run = place.failed(run, "upscale")
    place.end(run, Trigger.NON_RETRYABLE_ERROR, "upscale")
    run = place.begun("b")
    run = place.failed(run, "upscale")
    place.done(run, "upscale")
    place.end(run, Trigger.COMPLETED)
    # upscale: 1 result, 4 failed tries, 1 run failed at it: 1 / (1 + 1), (4 - 1) / 5. All steps: (4 - 1) / 6.
    assert steps_of(place) == {"content": (1, 0, 1, 0, 1.0, 0.0), "upscale": (1, 4, 5, 1, 0.5, 0.6)}
    it = place.figures()["story"]
    assert (it.runs, it.success_rate, it.retry_rate) == (statuses(succeeded=1, failed=1), 0.5, 0.5)


def test_a_run_fails_at_the_step_of_its_last_error(place: Place) -> None:
    run = place.failed(place.begun("a"), "imagine")
    run = place.failed(run, "runway")
    place.end(run, Trigger.NON_RETRYABLE_ERROR)  # without a record of its own
    assert {step: it[3] for step, it in steps_of(place).items()} == {"imagine": 0, "runway": 1}


def test_polls_have_no_rates_and_do_not_count_in_those_of_the_pipeline(place: Place) -> None:
    run = place.failed(place.begun("a"), "fetch")
    run = place.failed(run, "runway_poll")
    place.done(run, "imagine")
    place.end(run, Trigger.COMPLETED)
    assert steps_of(place)["fetch"] == (0, 1, 1, 0, None, None)
    assert steps_of(place)["runway_poll"] == (0, 1, 1, 0, None, None)
    assert place.figures()["story"].retry_rate == 0.0


def test_what_is_over_nothing_is_null(place: Place) -> None:
    place.begun("a")
    run = place.begun("b")
    place.end(run, Trigger.CANCEL_COMMAND)
    it = place.figures()["story"]
    assert it.runs == statuses(cancelled=1)
    assert (it.success_rate, it.retry_rate, it.mean_seconds) == (None, None, 0.0)
    assert pipeline_figures({}, listed=["story"])[0].mean_seconds is None
    assert StepFigures("content").success_rate is None


def test_errors_are_counted_by_class(place: Place) -> None:
    run = place.begun("a")
    for code in (A, A, B, C):
        run = place.failed(run, "imagine", code)
    assert {key.value: number for key, number in place.figures()["story"].errors.items()} == {"A": 2, "B": 1, "C": 1}


def test_each_event_counts_at_its_own_time(place: Place) -> None:
    run = place.begun("a")
    place.done(run, "content")
    place.clock.sleep(3600)
    begin = place.clock.now()
    place.done(run, "imagine")
    place.end(run, Trigger.COMPLETED)
    place.clock.sleep(60)
    it = place.figures(begin)["story"]
    assert [step.step for step in it.steps] == ["imagine"]
    assert it.runs == statuses(succeeded=1)
    assert place.figures(begin + timedelta(microseconds=1)) == {}


def test_pipelines_and_robots_are_told_apart(place: Place) -> None:
    for pipeline, seconds in (("story/en", 10), ("robot/NR.NSI.2", 31)):
        run = place.begun(pipeline, pipeline)
        place.clock.sleep(seconds)
        place.done(run, "whatever it is called")
        place.end(run, Trigger.COMPLETED)
    run = place.begun("robot", "robot/NR.NSI.2")
    place.clock.sleep(31)
    place.ledger.move(run, Trigger.NON_RETRYABLE_ERROR, actor="robot", error=place.record("NR.NSI.2"))
    found = place.figures()
    assert found["story/en"].runs == statuses(succeeded=1)
    assert steps_of(place, "robot/NR.NSI.2") == {"NR.NSI.2": (1, 1, 2, 1, 0.5, 0.0)}
    assert found["robot/NR.NSI.2"].targets_missed == ["success_rate", "mean_seconds"]


def test_what_is_noted_after_the_end_counts_in_no_figure(place: Place) -> None:
    ended = place.end(place.begun("a"), Trigger.NON_RETRYABLE_ERROR, "imagine")
    place.done(ended, "imagine")
    place.ledger.note(ended, ERROR, place.record("story.runway"), actor="operator")
    assert steps_of(place) == {"imagine": (0, 1, 1, 1, 0.0, 0.0)}


@pytest.mark.parametrize("robot_id", [None, "", "recovery", "story/en.us", 7, "worker"])
def test_an_error_of_no_step_counts_by_its_class_alone(place: Place, robot_id: Any) -> None:
    run = place.begun("a")
    place.ledger.note(run, ERROR, {**place.record("x"), "robot_id": robot_id}, actor="cron")
    place.end(run, Trigger.NON_RETRYABLE_ERROR)
    it = place.figures()["story"]
    assert (it.steps, sum(it.errors.values()), it.runs) == ((), 1, statuses(failed=1))


def test_foreign_names_are_cut_and_kept_on_one_line(place: Place) -> None:
    run = place.begun("a")
    place.ledger.note(run, STEP_DONE, {"step": "длинный\nшаг" + "x" * 500}, actor="cron")
    place.ledger.note(run, STEP_DONE, {"step": ["no", "text"]}, actor="cron")
    [step] = place.figures()["story"].steps
    assert step.step.startswith("длинный шаг")
    assert len(step.step) == MAX_NAME_LENGTH


# --- levels and targets ---------------------------------------------------------------------------------------------


def of(succeeded: int, failed: int = 0, *, retried: int = 0, errors: int = 0, **more: Any) -> Any:
    """Return the figures of a pipeline with one step; each run has one result or one last failure."""
    counts = {
        ("ended", "p", "succeeded"): succeeded,
        ("ended", "p", "failed"): failed,
        ("done", "p", "s"): succeeded,
        ("failed", "p", "s", "A", "X"): retried + failed,
        ("given_up", "p", "s"): failed,
        ("failed", "p", "", "C", "X"): errors,
        ("took_us", "p"): 10_000_000 * (succeeded + failed),
    }
    return pipeline_figures(counts, **more)[0]


def all_cancelled() -> Any:
    """Return enough runs for rates, none of which succeeded or failed: there is no success rate."""
    return pipeline_figures({("ended", "p", "cancelled"): 20})[0]


@pytest.mark.parametrize(
    ("figures", "level", "rate_level"),
    [
        (lambda: of(1000), "ok", "ok"),
        (lambda: of(990, 10), "ok", "ok"),
        (lambda: of(989, 11), "warning", "warning"),
        (lambda: of(950, 50), "warning", "warning"),
        (lambda: of(949, 51), "error", "error"),
        (lambda: of(800, 200), "error", "error"),
        (lambda: of(799, 201), "critical", "critical"),
        (lambda: of(90, retried=10), "ok", "ok"),
        (lambda: of(89, retried=11), "warning", "warning"),
        (lambda: of(1000, errors=1), "error", "ok"),
        (lambda: of(989, 11, errors=1), "error", "warning"),
        (lambda: of(1000, stopped=["p"]), "critical", "ok"),
        (lambda: of(0, 9), "ok", "ok"),
        (lambda: of(0, 10), "critical", "critical"),
        (lambda: of(0, 2, min_runs=2), "critical", "critical"),
        (lambda: of(0, 9, errors=1), "error", "ok"),
        (lambda: of(0, 9, stopped=["p"]), "critical", "ok"),
        (lambda: all_cancelled(), "ok", "ok"),
    ],
)
def test_levels(figures: Callable[[], Any], level: str, rate_level: str) -> None:
    assert (figures().level, figures().rate_level) == (level, rate_level)


def test_the_overall_level_is_the_worst() -> None:
    assert worst([]) is KpiLevel.OK
    assert worst([KpiLevel.ERROR, KpiLevel.CRITICAL, KpiLevel.WARNING]) is KpiLevel.CRITICAL


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        (lambda: of(1000, 4), []),
        (lambda: of(995, 5), ["success_rate"]),  # must be above 99.5 %
        (lambda: of(95, retried=5), []),
        (lambda: of(94, retried=6), ["retry_rate"]),
        (lambda: of(0, 9), []),
        (lambda: of(0, 10), ["success_rate"]),
        (lambda: all_cancelled(), []),
    ],
)
def test_targets(figures: Callable[[], Any], missed: list[str]) -> None:
    assert figures().targets_missed == missed


@pytest.mark.parametrize(
    ("pipeline", "mean_s", "missed"), [("p", 31, False), ("robot/R", 30, True), ("robot/R", 29, False)]
)
def test_only_robots_have_a_target_for_their_duration(pipeline: str, mean_s: int, missed: bool) -> None:
    counts = {("ended", pipeline, "succeeded"): 10, ("took_us", pipeline): mean_s * 10_000_000}
    [it] = pipeline_figures(counts)
    assert ("mean_seconds" in it.targets_missed) is missed


def test_a_failure_whose_tries_are_out_of_the_window_makes_no_rate_negative() -> None:
    [it] = pipeline_figures({("given_up", "p", "s"): 2, ("done", "p", "s"): 1, ("ended", "p", "failed"): 2})
    assert (it.steps[0].retry_rate, it.retry_rate) == (0.0, 0.0)


def test_an_invalid_status_does_not_break_the_figures() -> None:
    [it] = pipeline_figures({("ended", "p", "vanished"): 2})
    assert it.runs[RunStatus.SUCCEEDED] == 0


def test_an_error_of_no_known_class_does_not_break_the_figures() -> None:
    [it] = pipeline_figures({("failed", "p", "s", "", "X"): 2})
    assert sum(it.errors.values()) == 0
    assert it.steps[0].failed_tries == 2
