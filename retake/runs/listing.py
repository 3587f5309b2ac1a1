"""The runs of one ledger as a long list, the last changed first. One page can be shown without reading the rest.

A list is made of places: when a run last changed, and its id. Both kinds of ledger know these without reading the runs,
a bucket from the names in its index, a database from an index of the table. So the places of several ledgers can be
merged, and only the runs of the page that is shown are read.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from heapq import merge
from itertools import islice
from sys import intern
from typing import NamedTuple, Protocol

from retake.bucket import Bucket
from retake.runs.bucket_index import (
    ENDED,
    EndedRun,
    Tally,
    ended,
    read_tally,
    tag_of,
    task_prefix,
    uncounted,
)
from retake.runs.bucket_ledger import RunDocuments
from retake.runs.ledger import LEDGER_SETTING
from retake.runs.run import Run, is_run_id
from retake.runs.states import RunStatus

_MIN_PREFIX_LENGTH = len("run-") + 3
"""Minimum length of a prefix of a run's id that is searched for. A shorter one would list too many documents."""


class RunsWanted(NamedTuple):
    """Which runs are listed."""

    statuses: frozenset[RunStatus] = frozenset(RunStatus)
    pipeline: str | None = None

    def includes(self, run: Run) -> bool:
        return run.status in self.statuses and self.pipeline in (None, run.pipeline)


class RunPlace(NamedTuple):
    """The sort key of a run in a list: greater places come first."""

    updated_at: datetime
    run_id: str


class ListedRuns(Protocol):
    """The list of the wanted runs, as of the moment when it was made."""

    total: int

    def places(self, limit: int, offset: int = 0) -> Iterator[RunPlace]:
        """Yield at most `limit` places, from `offset` on. Raises StorageError."""
        ...


class RunListing(Protocol):
    """The runs of one ledger. Every method may raise StorageError."""

    searchable: bool  # whether `named` searches all runs, or only the names in the index

    @property
    def unreadable(self) -> Collection[str]:
        """See `Ledger.unreadable`."""
        ...

    def listed(self, wanted: RunsWanted) -> ListedRuns:
        """Return the list of the wanted runs."""
        ...

    def runs(self, run_ids: Iterable[str]) -> list[Run]:
        """Return these runs in the given order. Runs that are gone or unreadable are left out."""
        ...

    def named(self, wanted: RunsWanted, text: str, limit: int) -> list[str]:
        """Return at most `limit` ids of wanted runs whose id, or whose task's id, contains `text`, the last changed
        first.

        If the ledger is not `searchable`, return the runs whose id begins with `text`, and those of the task with that
        name, whether wanted or not.
        """
        ...


def open_listing(url: str | None, bucket: Bucket, setting: str = LEDGER_SETTING) -> RunListing:
    """Return the listing of the ledger that `url` names (`retake.runs.open_ledger`), read-only.

    Raises SettingsError, StorageError, and StateError for tables of another version.
    """
    if url is None:
        return BucketListing(bucket)
    from retake.runs.schema import opened
    from retake.runs.sql_listing import SqlListing

    return SqlListing(opened(url, read_only=True, setting=setting))


class UnreadableListing:
    """The listing of an unreadable ledger, for display beside others: it has no runs, and says why."""

    searchable = True

    def __init__(self, fault: str) -> None:
        self.unreadable = (fault,)

    def listed(self, wanted: RunsWanted) -> "NoRuns":
        return NoRuns()

    def runs(self, run_ids: Iterable[str]) -> list[Run]:
        return []

    def named(self, wanted: RunsWanted, text: str, limit: int) -> list[str]:
        return []


class NoRuns:
    """An empty list of runs."""

    total = 0

    def places(self, limit: int, offset: int = 0) -> Iterator[RunPlace]:
        return iter(())


class NamedRun(NamedTuple):
    """A run that has ended, parsed from its name in the index. Greater ones come first in lists."""

    place: RunPlace
    status: RunStatus
    pipeline: str  # its tag


class LedgerNames(NamedTuple):
    """The content of a bucket's index: the unfinished runs, the tally, and the names that the tally does not count, the
    last one first."""

    unfinished: list[Run]
    tally: Tally | None
    latest: list[NamedRun]


class BucketListing:
    """The listing of the ledger in `bucket`, as of the moment when it is first used.

    It reads all open runs. Ended runs are listed by their names in the index, of which it reads only the segments that
    overlap the page. `closed` caches the closed segments, which never change.
    """

    searchable = False

    def __init__(self, bucket: Bucket, closed: dict[str, list[NamedRun]] | None = None) -> None:
        self._bucket = bucket
        self._documents = RunDocuments(bucket)
        self.unreadable = self._documents.unreadable.values()
        self._closed = {} if closed is None else closed

    def renewed(self) -> "BucketListing":
        """Return an up-to-date listing that shares the cache of closed segments."""
        listing = BucketListing(self._bucket, self._closed)
        listing.read()
        for name in {*self._closed} - {*(listing.names.tally.closed if listing.names.tally else ())}:
            self._closed.pop(name, None)  # the tally was lost or rebuilt
        return listing

    def read(self) -> None:
        """Read the index now instead of on first use. Raises StorageError."""
        _ = self.names

    @cached_property
    def names(self) -> LedgerNames:
        """The content of the index. Raises StorageError."""
        open_ids = self._documents.open_ids(None)  # first, so that a run that ends meanwhile is among the ended
        tally = read_tally(self._bucket)
        latest = uncounted(self._bucket, tally)
        over = {it.run_id for it in latest}
        return LedgerNames(self._documents.readable(it for it in open_ids if it not in over), tally, _in_order(latest))

    def listed(self, wanted: RunsWanted) -> "ListedNames":
        return ListedNames(self.names, wanted, self._segment)

    def _segment(self, name: str) -> list[NamedRun]:
        if name not in self._closed:
            self._closed[name] = _in_order(it for _, it in ended(self._bucket.list(f"{ENDED}{name}/")))
        return self._closed[name]

    def runs(self, run_ids: Iterable[str]) -> list[Run]:
        return self._documents.readable(run_ids)

    def named(self, wanted: RunsWanted, text: str, limit: int) -> list[str]:
        names = [entry.key.rpartition("/")[2] for entry in self._bucket.list(task_prefix(text))]
        if len(text) >= _MIN_PREFIX_LENGTH and is_run_id(text.ljust(20, "0")):
            documents = self._bucket.list(f"runs/{text}")
            names += [entry.key.removeprefix("runs/").removesuffix(".json") for entry in documents]
        return [*dict.fromkeys(it for it in names if is_run_id(it))][:limit]


class ListedNames:
    """A list of the runs in a bucket. `segment(name)` returns the names in a closed segment, the last one first."""

    def __init__(self, names: LedgerNames, wanted: RunsWanted, segment: Callable[[str], list[NamedRun]]) -> None:
        self._names, self._wanted, self._segment = names, wanted, segment
        self._tag = None if wanted.pipeline is None else tag_of(wanted.pipeline)
        unfinished = (RunPlace(run.updated_at, run.run_id) for run in names.unfinished if wanted.includes(run))
        self._unfinished = sorted(unfinished, reverse=True)
        closed = sum(number for _, number in self._closed())
        self.total = len(self._unfinished) + closed + sum(map(self._is_wanted, names.latest))

    def places(self, limit: int, offset: int = 0) -> Iterator[RunPlace]:
        passed, rest = self._ended_after(max(0, offset - len(self._unfinished)))
        if not passed:
            return islice(merge(rest, self._unfinished, reverse=True), offset, offset + limit)
        first = next(rest, None)
        if first is None:
            return iter(())
        older = [it for it in self._unfinished if it < first]
        passed += len(self._unfinished) - len(older)
        return islice(merge([first], rest, older, reverse=True), offset - passed, offset - passed + limit)

    def _ended_after(self, budget: int) -> tuple[int, Iterator[RunPlace]]:
        """Skip whole segments, up to `budget` runs in all. Return how many were skipped, and the places of the rest."""
        passed = 0
        segments = [("", sum(map(self._is_wanted, self._names.latest))), *self._closed()]
        while segments and passed + segments[0][1] <= budget:
            passed += segments.pop(0)[1]
        return passed, (place for name, number in segments if number for place in self._wanted_in(name))

    def _closed(self) -> Iterator[tuple[str, int]]:
        """Yield the closed segments, the last one first, with how many wanted runs each has."""
        closed = self._names.tally.closed if self._names.tally else {}
        for name in sorted(closed, reverse=True):
            tags = closed[name].values() if self._tag is None else [closed[name].get(self._tag, {})]
            yield name, sum(by_status.get(it.value, 0) for by_status in tags for it in self._wanted.statuses)

    def _wanted_in(self, name: str) -> list[RunPlace]:
        return [it.place for it in (self._segment(name) if name else self._names.latest) if self._is_wanted(it)]

    def _is_wanted(self, it: NamedRun) -> bool:
        return it.status in self._wanted.statuses and self._tag in (None, it.pipeline)


def _in_order(names: Iterable[EndedRun]) -> list[NamedRun]:
    return sorted((NamedRun(_place(it), it.status, intern(it.pipeline)) for it in names), reverse=True)


def _place(it: EndedRun) -> RunPlace:
    try:
        return RunPlace(datetime.fromisoformat(f"{it.time[:15]}.{it.time[15:]}+00:00"), it.run_id)
    except ValueError:  # not one of our names: it comes last
        return RunPlace(datetime.min.replace(tzinfo=UTC), it.run_id)
