"""The metrics as Prometheus reads them, checked with a strict parser of its text format."""

import os
import re
from datetime import timedelta
from errno import ENOSPC
from pathlib import Path

import pytest
from kpi_ledgers import A, B, Place
from prometheus_client.parser import text_string_to_metric_families
from prometheus_text import Sample, parsed

from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.kpi.figures import Figures, pipeline_figures
from retake.kpi.metrics import Metrics, render, replace_file
from retake.runs.states import Trigger

SPEND = "retake_spend_usd_total"

FAMILIES = {
    "retake_runs_total": ("counter", {"pipeline", "status"}),
    "retake_open_runs": ("gauge", {"pipeline", "status"}),
    "retake_step_tries_total": ("counter", {"pipeline", "step", "outcome"}),
    "retake_errors_total": ("counter", {"pipeline", "error_class", "error_code"}),
    "retake_run_duration_seconds": ("summary", {"pipeline"}),
    SPEND: ("counter", {"pipeline"}),
    "retake_success_ratio": ("gauge", {"pipeline"}),
    "retake_retry_ratio": ("gauge", {"pipeline"}),
    "retake_dead_letters": ("gauge", {"pipeline"}),
    "retake_alerts": ("gauge", {"level"}),
    "retake_breaker_open": ("gauge", {"vendor"}),
    "retake_mode": ("gauge", set[str]()),
}


def metrics(place: Place) -> Metrics:
    totals, counts = place.counted().totals(), place.counts()
    return Metrics(
        totals,
        Figures(place.clock.now(), 86400, pipeline_figures(counts)),
        {"story": 2},
        {"runway": True, "piapi": False},
        {"warning": 3},
        1,
    )


def lived(place: Place) -> None:
    run = place.begun("a")
    place.clock.sleep(2.5)
    place.done(run, "content")
    run = place.failed(run, "imagine")
    place.end(run, Trigger.NON_RETRYABLE_ERROR, "imagine", B)
    place.begun("b")


def test_each_family_has_its_name_its_type_and_its_labels(place: Place) -> None:
    lived(place)
    families = parsed(render(metrics(place)._replace(totals=metrics(place).totals | {("spent", "story"): 561_000})))
    assert {name: (it.kind, set.union(*(set(one.labels) for one in it.samples))) for name, it in families.items()} == (
        FAMILIES
    )


def test_the_samples_are_what_happened(place: Place) -> None:
    lived(place)
    samples = {(it.name, *it.labels.values()): it.value for fam in parsed(render(metrics(place))).values()
               for it in fam.samples}  # fmt: skip
    assert samples["retake_runs_total", "story", "failed"] == 1
    assert samples["retake_runs_total", "story", "succeeded"] == 0
    assert samples["retake_open_runs", "story", "running"] == 1
    assert samples["retake_step_tries_total", "story", "imagine", "failed"] == 2
    assert samples["retake_step_tries_total", "story", "content", "done"] == 1
    assert samples["retake_errors_total", "story", "A", A] == samples["retake_errors_total", "story", "B", B] == 1
    assert samples["retake_run_duration_seconds_sum", "story"] == 2.5
    assert samples["retake_run_duration_seconds_count", "story"] == 1
    assert samples["retake_success_ratio", "story"] == 0.0
    assert samples["retake_retry_ratio", "story"] == pytest.approx(1 / 3)
    assert samples["retake_dead_letters", "story"] == 2
    assert samples["retake_alerts", "warning"] == 3
    assert samples["retake_alerts", "critical"] == 0
    assert (samples["retake_breaker_open", "runway"], samples["retake_breaker_open", "piapi"]) == (1, 0)
    assert samples["retake_mode",] == 1


def test_a_rate_over_nothing_has_no_sample(place: Place) -> None:
    place.begun("a")
    families = parsed(render(metrics(place)))
    assert families["retake_success_ratio"].samples == families["retake_retry_ratio"].samples == []


@pytest.mark.parametrize("name", ['a"b\\c', "строка\nзаголовка", "x\u2028y", "{pipeline}", "\ud800", "中文 🎬"])
def test_names_are_escaped_and_read_back(name: str) -> None:
    clean = name.encode("utf-8", "replace").decode()
    totals = {("ended", name, "failed"): 1, ("failed", name, name, "A", name): 1}
    text = render(Metrics(totals, Figures(FakeClock().now(), 60, ())))
    [errors] = parsed(text)["retake_errors_total"].samples
    assert errors == Sample("retake_errors_total", {"pipeline": clean, "error_class": "A", "error_code": clean}, 1)
    text.encode()


def test_spending_is_in_usd_and_zero_where_nothing_was_spent() -> None:
    totals = {("spent", "music"): 1_250_000, ("ended", "story", "succeeded"): 1}
    [music, story] = parsed(render(Metrics(totals, Figures(FakeClock().now(), 60, ()))))[SPEND].samples
    assert music == Sample(SPEND, {"pipeline": "music"}, 1.25)
    assert story == Sample(SPEND, {"pipeline": "story"}, 0)


def test_an_error_of_no_step_is_not_a_try_of_one() -> None:
    totals = {("failed", "story", "", "C", "X"): 3, ("done", "story", "imagine"): 1}
    families = parsed(render(Metrics(totals, Figures(FakeClock().now(), 60, ()))))
    assert {it.labels["step"] for it in families["retake_step_tries_total"].samples} == {"imagine"}
    assert sum(it.value for it in families["retake_errors_total"].samples) == 3


def test_counters_are_of_all_time_and_the_ratios_of_the_window(place: Place) -> None:
    lived(place)
    place.clock.moment += timedelta(days=40)
    families = parsed(render(metrics(place)))
    assert sum(it.value for it in families["retake_runs_total"].samples) == 1
    assert families["retake_success_ratio"].samples == []


def test_no_sample_has_a_timestamp(place: Place) -> None:
    lived(place)
    lines = [line for line in render(metrics(place)).splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z_]+(\{.*\})? [0-9.e+-]+", line) for line in lines)


# --- the file -------------------------------------------------------------------------------------------------------


def test_the_file_is_replaced_whole_and_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "retake.prom"
    umask = os.umask(0o077)
    try:
        replace_file(str(path), b"first\n", "the metrics")
        inode = path.stat().st_ino
        replace_file(str(path), b"second\n", "the metrics")
    finally:
        os.umask(umask)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("second\n", 0o644)
    assert path.stat().st_ino != inode
    assert [it.name for it in tmp_path.iterdir()] == ["retake.prom"]


@pytest.mark.parametrize("where", ["no/such/folder/x.prom", "folder", "a" * 300])
def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="the metrics could not be written"):
        replace_file(str(tmp_path / where), b"x", "the metrics")
    assert [it.name for it in tmp_path.iterdir()] == ["folder"]


def test_a_file_that_cannot_be_replaced_stays_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "retake.prom"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        replace_file(str(path), b"after", "the metrics")
    assert [(it.name, it.read_text()) for it in tmp_path.iterdir()] == [("retake.prom", "before")]


def test_an_empty_ledger_is_exported_too(clock: FakeClock) -> None:
    place = Place(None, MemoryBucket(), clock)
    assert set(parsed(render(metrics(place)))) == set(FAMILIES)


def test_prometheus_own_client_reads_the_same(place: Place) -> None:
    lived(place)
    text = render(metrics(place))
    theirs = {
        (sample.name, *sorted(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    ours = {
        (sample.name, *sorted(sample.labels.items()), sample.value)
        for family in parsed(text).values()
        for sample in family.samples
    }
    assert theirs == ours


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(StorageError, match=r"the metrics could not be written to .*: it is not a regular file"):
            replace_file(str(tmp_path / name), b"x", "the metrics")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
