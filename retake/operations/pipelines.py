"""All that an operator looks at together: the pipelines of one bucket, their ledgers, the day's book."""

from collections.abc import Callable, Mapping, Sequence
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
    ledgers: Mapping[str, str] = {}  # by pipeline: the URL of its ledger, where that is not `ledger_url`


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
        self._databases: dict[str, Ledger] = {}

    def of(self, pipelines: Sequence[OperatedPipeline], *, terms: Terms | None = None, named: bool) -> "Operations":
        """Return the same with other pipelines."""
        return Operations(pipelines, self.bucket, self.clock, caps=self.caps, terms=terms or self.terms, named=named)

    def label(self, pipeline: OperatedPipeline) -> str | None:
        """Return the name of a pipeline that is none of the channels, where it is shown beside others or was named."""
        return pipeline.name if pipeline.channel is None and (self.named or len(self.pipelines) > 1) else None

    def ledger_url(self, pipeline: OperatedPipeline) -> str | None:
        """Return the URL of the ledger of the pipeline's runs; None: they are in its part of the bucket."""
        return self.terms.ledgers.get(pipeline.name, self.terms.ledger_url)

    def ledger(self, pipeline: OperatedPipeline) -> Ledger:
        """Return the ledger of the pipeline's runs, for reading. Raises SettingsError, StorageError."""
        url = self.ledger_url(pipeline)
        if url is None:
            return open_ledger(None, pipeline.bucket, self.clock, read_only=True)
        if url not in self._databases:
            self._databases[url] = open_ledger(url, self.bucket, self.clock, read_only=True)
        return self._databases[url]

    def ledgers(self) -> list[tuple[OperatedPipeline, Ledger]]:
        """Return each ledger with the first of the pipelines that write to it."""
        return [(pipeline, self.ledger(pipeline)) for pipeline in self.writers()]

    def writers(self) -> list[OperatedPipeline]:
        """Return the first of the pipelines that write to each ledger."""
        found: dict[str, OperatedPipeline] = {}
        for pipeline in self.pipelines:
            found.setdefault(self.ledger_url(pipeline) or f"in the part of {pipeline.name}", pipeline)
        return [*found.values()]

    def writable_ledger(self, pipeline: OperatedPipeline) -> Ledger:
        """Return the same ledger for writing."""
        return open_ledger(self.ledger_url(pipeline), pipeline.leasable(), self.clock)

    def each(self, work: Callable[[OperatedPipeline], _T]) -> list[_T]:
        """Return what `work` returns for each pipeline, several at a time."""
        if len(self.pipelines) == 1:
            return [work(self.pipelines[0])]
        with ThreadPoolExecutor(self.terms.concurrency) as pool:
            return list(pool.map(work, self.pipelines))
