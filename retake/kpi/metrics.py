"""The figures in the text format of Prometheus, for the textfile collector of node_exporter and for scrapes."""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

from retake.errors import StorageError
from retake.kpi.facts import Cell
from retake.kpi.figures import Figures, KpiLevel
from retake.runs.states import FINAL, OPEN

MODE = 0o644

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float | int]
"""The end of its name ("_sum", usually ""), its labels, its value."""


class Metrics(NamedTuple):
    """All that is exported. Counters are sums since the ledger began, so they never fall and survive restarts."""

    totals: Mapping[Cell, int]  # of all facts (retake.kpi.facts)
    figures: Figures
    dead_letters: Mapping[str, int] = {}  # by pipeline
    breakers: Mapping[str, bool] = {}  # by vendor: whether it is not closed
    alerts: Mapping[str, int] = {}  # open ones, by level
    mode: int = 0


def render(metrics: Metrics) -> str:
    """Return the metrics as Prometheus reads them, without timestamps."""
    lines = []
    for name, kind, text, samples in _families(metrics):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{end}{_braces(labels)} {value!r}" for end, labels, value in samples]
    return "\n".join(lines) + "\n"


def replace_file(path: str, data: bytes, what: str) -> None:
    """Replace the file at `path` atomically; everybody may read it. `what` names it in the message of StorageError."""
    draft = ""
    try:
        handle, draft = mkstemp(dir=Path(path).parent, prefix=f".{Path(path).name}.", suffix=".draft")
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, MODE)
            file.write(data)
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft)
        raise StorageError(
            f"{what} could not be written to {path} ({error.strerror}); check that its folder exists and may be "
            "written to"
        ) from error


def _families(metrics: Metrics) -> Iterable[tuple[str, str, str, list[Sample]]]:
    totals, figures = metrics.totals, metrics.figures.pipelines
    names = sorted({cell[1] for cell in totals} | {it.pipeline for it in figures})
    success = {it.pipeline: it.success_rate for it in figures}
    retries = {it.pipeline: it.retry_rate for it in figures}
    runs: list[Sample] = [
        ("", {"pipeline": name, "status": status.value}, totals.get(("ended", name, status.value), 0))
        for name in names
        for status in sorted(FINAL)
    ]
    unfinished: list[Sample] = [
        ("", {"pipeline": name, "status": status.value}, totals.get(("open", name, status.value), 0))
        for name in names
        for status in OPEN
    ]
    yield "retake_runs_total", "counter", "Runs that have ended, by how.", runs
    yield "retake_open_runs", "gauge", "Runs that have not ended, by state.", unfinished
    yield "retake_step_tries_total", "counter", "Tries of a step, by what came of them.", _tries(totals)
    yield "retake_errors_total", "counter", "Errors on record, by class and code.", _errors(totals)
    yield "retake_run_duration_seconds", "summary", "How long runs took that have ended.", _durations(totals, names)
    yield (
        "retake_spend_usd_total",
        "counter",
        "What was paid, in US dollars.",
        [("", {"pipeline": name}, totals.get(("spent", name), 0) / 1e6) for name in names],
    )
    yield "retake_success_ratio", "gauge", "Runs that succeeded, of those that ended in the window.", _known(success)
    yield "retake_retry_ratio", "gauge", "Failed tries that were repeated, of all tries in the window.", _known(retries)
    yield (
        "retake_dead_letters",
        "gauge",
        "Items that failed for good and are kept.",
        [("", {"pipeline": name}, number) for name, number in sorted(metrics.dead_letters.items())],
    )
    yield (
        "retake_alerts",
        "gauge",
        "Alerts that are not resolved, by level.",
        [
            ("", {"level": level.value}, metrics.alerts.get(level.value, 0))
            for level in KpiLevel
            if level is not KpiLevel.OK
        ],
    )
    yield (
        "retake_breaker_open",
        "gauge",
        "1 while calls to the vendor are held back.",
        [("", {"vendor": vendor}, int(is_open)) for vendor, is_open in sorted(metrics.breakers.items())],
    )
    yield "retake_mode", "gauge", "The degraded mode, 0 (full) to 3 (emergency).", [("", {}, metrics.mode)]


def _tries(totals: Mapping[Cell, int]) -> list[Sample]:
    tries: dict[tuple[str, str], dict[str, int]] = {}
    for (kind, pipeline, *rest), amount in totals.items():
        if kind in ("done", "failed") and rest[0]:
            outcomes = tries.setdefault((pipeline, rest[0]), {"done": 0, "failed": 0})
            outcomes[kind] += amount
    return [
        ("", {"pipeline": pipeline, "step": step, "outcome": outcome}, number)
        for (pipeline, step), outcomes in sorted(tries.items())
        for outcome, number in outcomes.items()
    ]


def _errors(totals: Mapping[Cell, int]) -> list[Sample]:
    errors: dict[tuple[str, str, str], int] = {}
    for (kind, pipeline, *rest), amount in totals.items():
        if kind == "failed":
            errors[pipeline, rest[1], rest[2]] = errors.get((pipeline, rest[1], rest[2]), 0) + amount
    return [
        ("", {"pipeline": pipeline, "error_class": error_class, "error_code": code}, number)
        for (pipeline, error_class, code), number in sorted(errors.items())
    ]


def _durations(totals: Mapping[Cell, int], names: Iterable[str]) -> list[Sample]:
    samples: list[Sample] = []
    for name in names:
        ended = sum(totals.get(("ended", name, status.value), 0) for status in FINAL)
        samples.append(("_sum", {"pipeline": name}, totals.get(("took_us", name), 0) / 1e6))
        samples.append(("_count", {"pipeline": name}, ended))
    return samples


def _known(rates: Mapping[str, float | None]) -> list[Sample]:
    return [("", {"pipeline": name}, rate) for name, rate in sorted(rates.items()) if rate is not None]


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    whole = value.encode("utf-8", "replace").decode()  # a lone surrogate is no UTF-8
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
