"""`kpi`: the figures of the pipelines for people, programs and Prometheus."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner
from reading_world import World, ask, context_of, finish, shown

from retake.bucket import ANY, Bucket
from retake.bucket.wrappers import Wrapper
from retake.console.command import main
from retake.console.kpi import command as kpi
from retake.degraded.mode import Mode
from retake.errors import StorageError
from retake.operations.after_work import after_work
from retake.operations.kpi import KpiReader
from retake.operations.modes import ModePanel
from retake.percent import percent
from retake.runs import open_ledger
from retake.runs.states import Trigger
from retake.settings.shared import KpiSettings
from retake.story.settings import Settings

sys.path.append(str(Path(__file__).parent.parent / "kpi"))
from prometheus_text import parsed

T = TypeVar("T")


def test_with_no_runs_it_says_so() -> None:
    world = World()
    answer = ask(kpi, world)
    assert shown(answer) == "No run ended and nothing was tried in the last 24 h.\n"
    assert (answer.document["level"], answer.exit_code) == ("ok", 0)
    assert (answer.document["window_seconds"], world.keys_of("kpi/")) == (86400, [])
    [story] = answer.document["pipelines"]
    assert (story["pipeline"], story["success_rate"], story["steps"]) == ("story", None, [])


def test_what_the_story_did_is_counted() -> None:
    world = World()
    finish(world)
    finish(world, ("upscale", "refused"))
    finish(world, ("imagine", "rejected"))
    [story] = ask(kpi, world).document["pipelines"]
    assert story["runs"] == {"succeeded": 2, "failed": 1, "cancelled": 0}
    assert story["success_rate"] == pytest.approx(2 / 3)
    assert story["errors"] == {"A": 1, "B": 1, "C": 0}
    steps = {step["step"]: (step["done"], step["failed_tries"], step["given_up"]) for step in story["steps"]}
    assert steps == {"content": (3, 0, 0), "imagine": (2, 1, 1), "upscale": (2, 1, 0), "runway": (2, 0, 0)}
    assert story["retry_rate"] == pytest.approx(1 / 11)
    assert (story["level"], story["targets_missed"]) == ("ok", [])  # three runs are too few to judge


def test_people_get_a_table_of_steps_percents_and_missed_targets() -> None:
    world = World()
    world.settings = world.settings._replace(kpi=KpiSettings(min_runs=2))
    finish(world, ("upscale", "refused"))
    finish(world, ("imagine", "rejected"))
    text = shown(ask(kpi, world))
    assert "story: critical\n" in text
    assert "2 runs ended: 1 succeeded, 1 failed; success 50.0 %; retries 14.3 %; mean " in text
    assert "Target missed: success 50.0 %, to be above 99.5 %.\n" in text
    assert "Target missed: retries 14.3 %, to be 5 % at most.\n" in text
    assert "STEP     DONE  FAILED  TRIES  GIVEN UP  SUCCESS  RETRIES\n" in text
    assert "imagine     1       1      2         1   50.0 %    0.0 %\n" in text
    assert max(map(len, text.splitlines()[2:])) < 120


def test_a_stopped_pipeline_is_critical_whatever_its_rates() -> None:
    world = World()
    while ask(kpi, world).document["pipelines"][0]["level"] != "critical":
        finish(world, ("imagine", "rejected"))
    assert "It has stopped: too many failed in a row.\n" in shown(ask(kpi, world))
    reader = KpiReader(context_of(world).operations)
    [story] = reader.report().figures.pipelines
    assert (story.level, story.rate_level, story.stopped) == ("critical", "ok", True)


def test_only_what_is_in_the_window_counts() -> None:
    world = World()
    finish(world)
    world.later(hours=3)
    assert ask(kpi, world, window=2 * 3600).document["pipelines"][0]["runs"]["succeeded"] == 0
    assert ask(kpi, world, window=9 * 3600).document["pipelines"][0]["runs"]["succeeded"] == 1


def test_robots_at_the_root_are_seen_beside_channels() -> None:
    world = World()
    world.settings = Settings()._replace(channels=("en", "ru"))
    ledger = open_ledger(None, world.bucket, world.clock)
    run = ledger.create_for_task("t", "t#1", actor="robot", pipeline="robot/NR.NSI.1")
    ledger.move(ledger.move(run, Trigger.WORKER_CLAIM, actor="robot", worker="w"), Trigger.COMPLETED, actor="robot")
    names = [it["pipeline"] for it in ask(kpi, world).document["pipelines"]]
    assert names == ["robot/NR.NSI.1", "story/en", "story/ru"]
    assert "Nothing happened in 2 other pipelines." in shown(ask(kpi, world))
    assert [it["pipeline"] for it in ask(kpi, context_of(world, channel="en")).document["pipelines"]] == ["story/en"]


def test_counting_anew_and_lost_snapshots_change_nothing() -> None:
    world = World()
    finish(world, ("upscale", "refused"))
    first = ask(kpi, world).document
    assert world.keys_of("kpi/")
    assert ask(kpi, world, rebuild=True).document == first
    for key in world.keys_of("kpi/"):
        world.bucket.delete(key)
    assert ask(kpi, world).document == first


# --- files ----------------------------------------------------------------------------------------------------------


def test_the_metrics_and_the_picture_are_written(tmp_path: Path) -> None:
    world = World()
    finish(world, ("upscale", "refused"))
    prom, png = tmp_path / "retake.prom", tmp_path / "retake.png"
    answer = ask(kpi, world, prometheus=str(prom), plot=str(png))
    assert f"The metrics are in {prom}.\n" in shown(answer)
    assert png.read_bytes().startswith(b"\x89PNG")
    families = parsed(prom.read_text())
    assert [it.value for it in families["retake_spend_usd_total"].samples] == [pytest.approx(0.565)]
    assert [it.value for it in families["retake_dead_letters"].samples] == [0]
    assert prom.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("option", ["plot", "prometheus"])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, option: str) -> None:
    with pytest.raises(StorageError, match="could not be written"):
        ask(kpi, World(), **{option: str(tmp_path / "no" / "file")})


def test_counters_survive_lost_snapshots_and_dropped_letters(tmp_path: Path) -> None:
    world, path = World(), str(tmp_path / "retake.prom")
    before: dict[tuple[str, ...], float] = {}
    for number in range(4):
        finish(world, *[("imagine", "rejected")] * (number % 2))
        if number == 2:
            for key in [*world.keys_of("kpi/"), *world.keys_of("dead_letters/")]:
                world.bucket.delete(key)
        ask(kpi, world, prometheus=path, rebuild=number == 3)
        world.later(days=2)
        counters = {
            (it.name, *it.labels.values()): it.value
            for family in parsed(Path(path).read_text()).values()
            if family.kind in ("counter", "summary")
            for it in family.samples
        }
        assert [name for name, value in before.items() if counters.get(name, -1) < value] == []
        before = counters
    assert before["retake_runs_total", "story", "succeeded"] == 2


@pytest.mark.parametrize(("key", "name"), [("alerts/state.json", "retake_alerts"), ("mode/state.json", "retake_mode")])
def test_the_metrics_are_without_what_cannot_be_read(tmp_path: Path, key: str, name: str) -> None:
    world, path = World(), str(tmp_path / "retake.prom")
    finish(world)
    world.put(key, b"{")
    ask(kpi, world, prometheus=path)
    families = parsed(Path(path).read_text())
    assert [it.value for it in families["retake_runs_total"].samples] == [0, 0, 1]
    assert families[name].samples == []


@pytest.mark.parametrize("content", [b"[]", b'"spent"', b"{", b'{"pipelines": 7}'])
def test_the_metrics_are_without_a_day_whose_book_makes_no_sense(content: bytes) -> None:
    world = World()
    finish(world)
    world.put("caps/2025-12-31.json", content)
    families = parsed(KpiReader(context_of(world).operations).metrics())
    assert [it.value for it in families["retake_spend_usd_total"].samples] == [0.565]


# --- after a tick ---------------------------------------------------------------------------------------------------


def worked(world: World) -> None:
    """Do what follows a tick that did something."""
    operations = context_of(world).operations
    after_work(operations, Mode()).finish()


def test_after_a_tick_the_snapshot_and_the_textfile_are_brought_up_to_date(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "retake.prom"
    world.settings = world.settings._replace(kpi=KpiSettings(textfile=str(path)))
    finish(world)
    ModePanel(context_of(world).operations).set(3, None, "for a test")
    alert = {"id": "a", "key": "bug", "code": "bug", "level": "critical", "title": "a bug", "occurrences": 1}
    times = {"first_at": "2026-01-01T00:00:00Z", "last_at": "2026-01-01T00:00:00Z", "seen": {"story": "x"}}
    world.bucket.write("alerts/state.json", json.dumps({"alerts": [{**alert, **times}]}).encode(), ANY)
    worked(world)
    families = parsed(path.read_text())
    assert {it.labels["level"]: it.value for it in families["retake_alerts"].samples} == {
        "warning": 0,
        "error": 0,
        "critical": 1,
    }
    assert [it.value for it in families["retake_mode"].samples] == [3]
    assert "kpi/story.json" in world.keys_of("kpi/")


def test_after_a_tick_a_snapshot_is_taken_only_when_it_is_due() -> None:
    world = World()
    finish(world)
    worked(world)
    kept = {key: world.bucket.read(key) for key in world.keys_of("kpi/")}
    world.later(seconds=299)
    worked(world)
    assert {key: world.bucket.read(key) for key in world.keys_of("kpi/")} == kept
    world.later(seconds=1)
    worked(world)
    assert {key: world.bucket.read(key) for key in world.keys_of("kpi/")} != kept


def test_one_count_serves_several_windows_and_the_metrics(tmp_path: Path) -> None:
    world, path, hours = World(), tmp_path / "retake.prom", 3600
    world.settings = world.settings._replace(kpi=KpiSettings(textfile=str(path)))
    finish(world, ("upscale", "refused"))
    world.later(hours=3)
    watched = WatchedBucket(world.bucket)
    reader = KpiReader(context_of(world, watched).operations)
    sums = reader.sums([2 * hours, 24 * hours], totals=True)
    assert [key for key in watched.keys if key.startswith("runs/")]
    watched.keys.clear()
    assert [it.ended for it in reader.recent_figures(sums, 24 * hours)] == [1]
    assert [it for it in reader.recent_figures(sums, 2 * hours) if it.ended or it.steps] == []
    reader.write_textfile(sums)
    assert [key for key in watched.keys if key.startswith("runs/")] == []
    assert path.read_text() == reader.metrics()


def test_what_a_tick_looks_at_is_what_a_report_tells() -> None:
    world = World()
    finish(world, ("upscale", "refused"))
    world.tick()
    reader = KpiReader(context_of(world).operations)
    found = [*reader.recent_figures(reader.sums([86400.0]), 86400.0)]
    assert found == [*reader.report(86400.0).figures.pipelines]
    assert found[0].steps


class WatchedBucket(Wrapper):
    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.keys: list[str] = []

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self.keys.append(key)
        return call()


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", ["", "0s", "-1h", "yesterday", "24", "2026-01-01", "3651d", "999999w", "1.5h"])
def test_a_window_that_is_not_a_length_is_a_usage_error(window: str) -> None:
    result = CliRunner().invoke(main, ["kpi", "--window", window, "--json"])
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert (document["exit_code"], "is not a length of time" in document["error"]) == (2, True)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "–"), (0.0, "0.0 %"), (0.0001, "<0.1 %"), (0.5, "50.0 %"), (0.99996, ">99.9 %"), (1.0, "100.0 %")],
)
def test_nearly_all_is_not_called_all(rate: float | None, text: str) -> None:
    assert percent(rate) == text
