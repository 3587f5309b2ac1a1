"""What an operator looks at together: the pipelines of one bucket, their ledgers, the day's book."""

from collections.abc import Callable, Collection, Mapping, Sequence
from logging import getLogger
from os.path import exists
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from retake.alerts.settings import AlertSettings
from retake.bucket import Bucket
from retake.clock import Clock
from retake.degraded.settings import ModeSettings
from retake.errors import RetakeError, SettingsError, StateError, StorageError
from retake.operations.events import OPERATOR
from retake.operations.port import OperatedPipeline
from retake.paid.caps import Caps
from retake.runs import Ledger, open_ledger
from retake.runs.ledger import LEDGER_SETTING
from retake.runs.run import UnknownRun
from retake.settings.shared import BreakerSettings, KpiSettings

if TYPE_CHECKING:
    from retake.runs.listing import RunListing

_T = TypeVar("_T")

_log = getLogger(__name__)


Listings = Sequence[tuple[OperatedPipeline, "RunListing"]]
"""The listing of each ledger, with the first of the pipelines that write to it."""


MUSIC = "music"
"""The name of the music pipelines, for `--channel` too. None of the CHANNELS and PIPELINES can have it."""

STORY = "story"
"""The name of the story's pipeline if there are no CHANNELS, for `--channel` too."""

ROOT = "the bucket's root"
"""The name of what stands for the ledger at the root of the bucket (`root_ledger.RootLedger`)."""

UNREADABLE = (SettingsError, StateError, StorageError)
"""The errors of a ledger that cannot be opened or read."""


class OwnLedger(NamedTuple):
    """A ledger that only one pipeline uses."""

    url: str | None  # None: in the pipeline's part of the bucket
    setting: str  # that holds the URL


class Terms(NamedTuple):
    """The settings that concern all pipelines."""

    ledger_url: str | None  # None: each pipeline's runs are in its part of the bucket
    breaker: BreakerSettings
    script_timeout_s: float
    concurrency: int  # pipelines that are read concurrently
    patience_s: float  # seconds after which a held lease is suspect
    alerts: AlertSettings = AlertSettings()
    modes: ModeSettings = ModeSettings()
    missing_secrets: tuple[tuple[str, str], ...] = ()  # the alerts' channels without their secret, and its variable
    kpi: KpiSettings = KpiSettings()
    own_ledgers: Mapping[str, OwnLedger] = {}  # by pipeline, for those whose ledger is not at `ledger_url`
    own_pipelines: Collection[str] = ()  # the names in PIPELINES
    left_behind: Callable[[], str] = lambda: ""  # returns a note on a pipeline that is no longer in the settings, or ""


class Operations:
    """The pipelines that an operator looks at or acts on. Nothing here takes a lease or writes.

    `bucket` is the whole bucket, `named` whether the operator named the one pipeline in `pipelines`, `actor` the
    operator's name in the ledger, `with_root` whether a ledger at the bucket's root belongs to it.
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
        actor: str = OPERATOR,
        with_root: bool = True,
    ) -> None:
        self.pipelines = pipelines
        self.bucket = bucket
        self.clock = clock
        self.caps = caps
        self.terms = terms
        self.named = named
        self.actor = actor
        self._with_root = with_root
        self._databases: dict[str, Ledger] = {}

    def of(
        self,
        pipelines: Sequence[OperatedPipeline],
        *,
        terms: Terms | None = None,
        named: bool,
        with_root: bool = True,
    ) -> "Operations":
        """Return a copy with other pipelines."""
        return Operations(
            pipelines,
            self.bucket,
            self.clock,
            caps=self.caps,
            terms=terms or self.terms,
            named=named,
            actor=self.actor,
            with_root=with_root,
        )

    def label(self, pipeline: OperatedPipeline) -> str | None:
        """Return the name of a pipeline that is not a channel, if it is shown beside others or was named; else None."""
        return pipeline.name if pipeline.channel is None and (self.named or len(self.pipelines) > 1) else None

    def named_as(self, pipeline: OperatedPipeline) -> str | None:
        """Return what `--channel` calls the pipeline: its channel, "music", or its name in PIPELINES; else None."""
        beside = pipeline.name == MUSIC or pipeline.name in self.terms.own_pipelines
        return pipeline.name if beside else pipeline.channel

    def ledger_url(self, pipeline: OperatedPipeline) -> str | None:
        """Return the URL of the pipeline's ledger, or None if it is in the pipeline's part of the bucket."""
        own = self.terms.own_ledgers.get(pipeline.name)
        return own.url if own else self.terms.ledger_url

    def ledger_setting(self, pipeline: OperatedPipeline) -> str:
        """Return the setting that names the pipeline's ledger, for messages."""
        own = self.terms.own_ledgers.get(pipeline.name)
        return own.setting if own else LEDGER_SETTING

    def ledger_name(self, pipeline: OperatedPipeline) -> str:
        """Return a name that identifies the pipeline's ledger."""
        return self.ledger_url(pipeline) or f"in the part of {pipeline.name}"

    def ledger(self, pipeline: OperatedPipeline) -> Ledger:
        """Return the pipeline's ledger for reading. Raises SettingsError, StorageError."""
        url = self.ledger_url(pipeline)
        if url is None:
            return open_ledger(None, pipeline.bucket, self.clock, read_only=True)
        if url not in self._databases:
            ledger = open_ledger(url, self.bucket, self.clock, read_only=True, setting=self.ledger_setting(pipeline))
            if not url.startswith("sqlite:") or exists(url.removeprefix("sqlite:")):
                self._databases[url] = ledger  # a missing file reads as empty, but may appear later
            return ledger
        return self._databases[url]

    def listings(self, before: Listings = ()) -> Listings:
        """Return a fresh listing of each ledger, with the first of the pipelines that write to it. `before` are earlier
        listings, with which those in buckets read only what is new. A ledger that cannot be read has no runs, and says
        why in `unreadable`. Raises like `ledger` if none can be read."""
        from retake.runs.listing import BucketListing, UnreadableListing, open_listing

        known, writers = {it.name: listing for it, listing in before}, self.writers()
        errors: list[RetakeError] = []

        def one(pipeline: OperatedPipeline) -> "tuple[OperatedPipeline, RunListing]":
            try:
                return pipeline, read(pipeline)
            except UNREADABLE as error:
                errors.append(error)
                return pipeline, UnreadableListing(left_out(pipeline, error))

        def read(pipeline: OperatedPipeline) -> "RunListing":
            listing = known.get(pipeline.name)
            if isinstance(listing, BucketListing):
                return listing.renewed()
            listing = open_listing(self.ledger_url(pipeline), pipeline.bucket, self.ledger_setting(pipeline))
            if isinstance(listing, BucketListing):
                listing.read()
            return listing

        found = self.each(one, writers)
        if errors and len(errors) == len(found):
            raise errors[0]
        return found

    def ledgers(self) -> list[tuple[OperatedPipeline, Ledger]]:
        """Return each ledger with the first of the pipelines that write to it."""
        return [(pipeline, self.ledger(pipeline)) for pipeline in self.writers()]

    def readable(self) -> "tuple[Operations, list[str]]":
        """Return a copy with only the pipelines whose ledger can be read, and what is wrong with the other ledgers. If
        none can be read, the error of the last one is raised."""
        wrong: dict[str, str] = {}
        last: RetakeError | None = None
        for pipeline in (writers := self.writers()):
            try:
                self.ledger(pipeline).runs(limit=1)
            except UNREADABLE as error:
                wrong[self.ledger_name(pipeline)], last = left_out(pipeline, error), error
        others = [it for it in self.pipelines if self.ledger_name(it) not in wrong]
        if last and not others:
            raise last
        with_root = not writers[-1].prefix and self.ledger_name(writers[-1]) not in wrong
        return self.of(others, named=self.named, with_root=with_root), [*wrong.values()]

    def writers(self) -> list[OperatedPipeline]:
        """Return the first of the pipelines that write to each ledger; last, where each has a part of the bucket, a
        RootLedger, since robots and workers write to the ledger at the root."""
        found: dict[str, OperatedPipeline] = {}
        for pipeline in self.pipelines:
            found.setdefault(self.ledger_name(pipeline), pipeline)
        in_parts = self.terms.ledger_url is None and all(it.prefix for it in self.pipelines)
        if in_parts and self._with_root and not self.named:
            from retake.operations.root_ledger import RootLedger

            root = RootLedger(self.bucket, self.clock)
            found[self.ledger_name(root)] = root
        return [*found.values()]

    @property
    def _is_local(self) -> bool:
        """Whether everything is on disks of this machine."""
        urls = [self.bucket.url, *filter(None, map(self.ledger_url, self.pipelines))]
        return all(url.startswith(("file:", "sqlite:")) for url in urls)

    def writable_ledger(self, pipeline: OperatedPipeline) -> Ledger:
        """Return the pipeline's ledger for writing."""
        setting = self.ledger_setting(pipeline)
        return open_ledger(self.ledger_url(pipeline), pipeline.leasable(), self.clock, setting=setting)

    def each(
        self, work: Callable[[OperatedPipeline], _T], pipelines: Sequence[OperatedPipeline] | None = None
    ) -> list[_T]:
        """Return the result of `work` for each of the pipelines, concurrently if the stores are remote. Reading a
        directory keeps the interpreter busy, so threads would only wait for each other."""
        pipelines = self.pipelines if pipelines is None else pipelines
        if len(pipelines) == 1 or self._is_local:
            return [work(it) for it in pipelines]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.terms.concurrency) as pool:
            return list(pool.map(work, pipelines))


def left_out(pipeline: OperatedPipeline, error: Exception) -> str:
    """Return the message about a ledger that cannot be read."""
    return f"the ledger of {pipeline.name} is left out: {error}"


def of_readable(operations: Operations, read: Callable[[Operations], _T]) -> tuple[_T, list[str]]:
    """Return the result of `read`, and what is wrong with ledgers that cannot be read, which is also logged. If there
    are any, `read` is called again with only the other pipelines, if any.

    What is not found then may be in one of those ledgers. Use this only for reading: an order needs all ledgers, to
    know that an id is not in several of them.
    """
    try:
        return read(operations), []
    except UNREADABLE as error:
        others, wrong = operations.readable()
        for text in wrong:
            _log.warning("%s", text)
        try:
            return read(others), wrong
        except UnknownRun:
            raise error from None
