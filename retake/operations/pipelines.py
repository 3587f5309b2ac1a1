"""All that an operator looks at together: the pipelines of one bucket, their ledgers, the day's book."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from retake.alerts.settings import AlertSettings
from retake.bucket import Bucket
from retake.clock import Clock
from retake.degraded.settings import ModeSettings
from retake.operations.port import OperatedPipeline
from retake.paid.caps import Caps
from retake.runs import Ledger, open_ledger
from retake.settings.shared import BreakerSettings, KpiSettings

_T = TypeVar("_T")


class Terms(NamedTuple):
    """What the settings say that concerns all pipelines."""

    ledger_url: str | None  # None: each pipeline's runs are in its part of the bucket
    breaker: BreakerSettings
    script_timeout_s: float
    concurrency: int  # pipelines that are looked at at the same time
    patience_s: float  # seconds after which a held lease is suspect
    alerts: AlertSettings = AlertSettings()
    modes: ModeSettings = ModeSettings()
    missing_secrets: tuple[tuple[str, str], ...] = ()  # the alerts' channels that lack their secret, and its variable
    kpi: KpiSettings = KpiSettings()


class Operations:
    """The pipelines that an operator looks at, or acts on. Nothing here takes a lease or writes.

    `bucket` is all of the bucket, `named` whether the operator named the one pipeline in `pipelines`.
    """

    def __init__(
        self,
        pipelines: Sequence[OperatedPipeline],
        bucket: Bucket,
        clock: Clock,
        *,
        caps: Caps,
        terms: Terms,
        named: bool = False,
    ) -> None:
        self.pipelines = pipelines
        self.bucket = bucket
        self.clock = clock
        self.caps = caps
        self.terms = terms
        self.named = named
        self._shared: Ledger | None = None

    def ledger(self, pipeline: OperatedPipeline) -> Ledger:
        """Return the ledger of the pipeline's runs, for reading. Raises SettingsError, StorageError."""
        url = self.terms.ledger_url
        if url is None:
            return open_ledger(None, pipeline.bucket, self.clock, read_only=True)
        self._shared = self._shared or open_ledger(url, self.bucket, self.clock, read_only=True)
        return self._shared

    def ledgers(self) -> list[tuple[OperatedPipeline, Ledger]]:
        """Return each ledger with the first of the pipelines that write to it: one for all, or one of each."""
        of = self.pipelines[:1] if self.terms.ledger_url is not None else self.pipelines
        return [(pipeline, self.ledger(pipeline)) for pipeline in of]

    def writable_ledger(self, pipeline: OperatedPipeline) -> Ledger:
        """Return the same ledger for writing."""
        return open_ledger(self.terms.ledger_url, pipeline.leasable(), self.clock)

    def each(self, work: Callable[[OperatedPipeline], _T]) -> list[_T]:
        """Return what `work` returns for each pipeline, several at a time."""
        if len(self.pipelines) == 1:
            return [work(self.pipelines[0])]
        with ThreadPoolExecutor(self.terms.concurrency) as pool:
            return list(pool.map(work, self.pipelines))
