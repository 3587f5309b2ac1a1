"""The work after ticks that did something: figures, the automatic mode, and conditions that all pipelines share."""

from collections.abc import Container, Iterable

from retake.alerts.conditions import Findings, bad_rates, breaker_open
from retake.degraded.mode import Mode, auto_after
from retake.degraded.store import ModeStore
from retake.kpi.figures import POLLS, KpiLevel, PipelineFigures
from retake.operations.breakers import breaker_states, open_breakers
from retake.operations.kpi import KpiReader
from retake.operations.pipelines import Operations
from retake.percent import percent
from retake.ticking.watch import AfterWork


def after_work(operations: Operations, mode: Mode, unchanged: Container[str] | None = None) -> AfterWork:
    """Take a snapshot of the figures if it is due, change the automatic mode, and look for alert conditions that all
    pipelines share. For `unchanged` see `KpiReader.sums`. Raises StateError, StorageError."""
    reader, kpi, modes = KpiReader(operations), operations.terms.kpi, operations.terms.modes
    windows_s = {kpi.window_seconds, *([modes.window_seconds] if modes.auto else [])}
    sums = reader.sums(windows_s, totals=kpi.textfile is not None, unchanged=unchanged)
    store = ModeStore(operations.bucket, operations.clock)
    if modes.auto:
        _change_mode(operations, reader.recent_figures(sums, modes.window_seconds), store)
    else:
        store.repeat()  # the process that set the mode may have died before it wrote the copy
    found = (_breakers(operations), rates(reader.recent_figures(sums, kpi.window_seconds)))
    return AfterWork(found, lambda: reader.write_textfile(sums))


def _change_mode(operations: Operations, pipelines: Iterable[PipelineFigures], store: ModeStore) -> None:
    terms, now, failed, tries = operations.terms.modes, operations.clock.now(), 0, 0
    for step in (step for it in pipelines for step in it.steps):
        # Answered polls leave no event, so their failures would be all that is seen of them.
        lost = step.given_up if step.step in POLLS else step.failed_tries
        failed, tries = failed + lost, tries + step.done + lost
    store.change(lambda state: state._replace(auto=auto_after(state.auto, failed, tries, terms, now)))


def _breakers(operations: Operations) -> Findings:
    found = [
        breaker_open(it["name"], it["opened_at"] or "", str(it["code"] or ""), it["phase"])
        for it in open_breakers(breaker_states(operations), operations.clock.now())
    ]
    return Findings("", frozenset({"breaker_open"}), tuple(found))


def rates(pipelines: Iterable[PipelineFigures]) -> Findings:
    """Return an alert condition if success or retry rates are bad. A stopped pipeline has its own alert."""
    bad = [it for it in pipelines if it.rate_level is not KpiLevel.OK]
    if not bad:
        return Findings("", frozenset({"kpi"}))
    worst = max(bad, key=lambda it: it.rate_level.rank)
    what = "; ".join(map(_rates, sorted(bad, key=lambda it: -it.rate_level.rank)[:3]))
    return Findings("", frozenset({"kpi"}), (bad_rates(worst.rate_level.value, what),))


def _rates(it: PipelineFigures) -> str:
    success, retries = percent(it.success_rate, "unknown"), percent(it.retry_rate, "unknown")
    return f"{it.pipeline}: success {success}, retries {retries}"
