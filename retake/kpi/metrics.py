"""The figures in the text format of Prometheus, for the textfile collector of node_exporter and for scrapes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

from retake.errors import StorageError
from retake.kpi.facts import Cell
from retake.kpi.figures import Figures
from retake.runs.states import FINAL, OPEN, RunStatus

MODE = 0o644

_LEVELS = ("warning", "error", "critical")  # of alerts

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float | int]
"""The suffix of the metric's name ("_sum", usually ""), the labels, the value."""


class Metrics(NamedTuple):
    """All exported metrics. Counters are sums since the ledger began, so they never fall, and survive restarts."""

    totals: Mapping[Cell, int]  # of all facts (retake.kpi.facts)
    figures: Figures
    dead_letters: Mapping[str, int] = {}  # by pipeline
    breakers: Mapping[str, bool] = {}  # by vendor: whether its breaker is not closed
    alerts: Mapping[str, int] | None = {}  # unresolved alerts, by level; None: not known
    mode: int | None = 0


def render(metrics: Metrics) -> str:
    """Return the metrics in the text format of Prometheus, without timestamps."""
    lines = []
    for name, samples in _samples(metrics).items():
        kind, text = _KINDS[name]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{end}{_braces(labels)} {value!r}" for end, labels, value in samples]
    return "\n".join(lines) + "\n"


def replace_file(path: str, data: bytes, what: str) -> None:
    """Replace the file at `path` atomically, readable for everybody. Raises StorageError, which calls it `what`.

    A device such as /dev/stdout is refused, since root could replace even that.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise StorageError(f"{what} could not be written to {path}: it is not a regular file; name another one")
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


_KINDS = {
    "retake_runs_total": ("counter", "Runs that have ended, by how."),
    "retake_open_runs": ("gauge", "Runs that have not ended, by state."),
    "retake_step_tries_total": ("counter", "Tries of a step, by what came of them."),
    "retake_errors_total": ("counter", "Errors on record, by class and code."),
    "retake_run_duration_seconds": ("summary", "How long runs took that have ended."),
    "retake_spend_usd_total": ("counter", "What was paid, in US dollars."),
    "retake_success_ratio": ("gauge", "Runs that succeeded, of those that ended in the window."),
    "retake_retry_ratio": ("gauge", "Failed tries that were retried, of all tries in the window."),
    "retake_dead_letters": ("gauge", "Items that failed for good and are kept."),
    "retake_alerts": ("gauge", "Alerts that are not resolved, by level."),
    "retake_breaker_open": ("gauge", "1 while calls to the vendor are held back."),
    "retake_mode": ("gauge", "The degraded mode, 0 (full) to 3 (emergency)."),
}
"""The type and the meaning of each metric, in the order in which they are written."""


def _samples(metrics: Metrics) -> dict[str, list[Sample]]:
    totals, figures, alerts = metrics.totals, metrics.figures.pipelines, metrics.alerts
    names = sorted({cell[1] for cell in totals} | {it.pipeline for it in figures})
    return {
        "retake_runs_total": _by_status(totals, "ended", names, sorted(FINAL)),
        "retake_open_runs": _by_status(totals, "open", names, OPEN),
        "retake_step_tries_total": _tries(totals),
        "retake_errors_total": _errors(totals),
        "retake_run_duration_seconds": _durations(totals, names),
        "retake_spend_usd_total": [("", {"pipeline": it}, totals.get(("spent", it), 0) / 1e6) for it in names],
        "retake_success_ratio": _known({it.pipeline: it.success_rate for it in figures}),
        "retake_retry_ratio": _known({it.pipeline: it.retry_rate for it in figures}),
        "retake_dead_letters": _known(metrics.dead_letters),
        "retake_alerts": [] if alerts is None else [("", {"level": it}, alerts.get(it, 0)) for it in _LEVELS],
        "retake_breaker_open": [("", {"vendor": it}, int(opened)) for it, opened in sorted(metrics.breakers.items())],
        "retake_mode": [] if metrics.mode is None else [("", {}, metrics.mode)],
    }


def _by_status(
    totals: Mapping[Cell, int], kind: str, names: Iterable[str], statuses: Sequence[RunStatus]
) -> list[Sample]:
    return [
        ("", {"pipeline": name, "status": status.value}, totals.get((kind, name, status.value), 0))
        for name in names
        for status in statuses
    ]


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
    whole = value.encode("utf-8", "replace").decode()  # a lone surrogate is not UTF-8
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
