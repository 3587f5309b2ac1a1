"""All runs on record as one long list: its pages, and a search by id."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from retake.operations.paging import Pages, pages_of
from retake.operations.pipelines import Listings, Operations
from retake.operations.port import OperatedPipeline
from retake.operations.runs import RunList, steps_of
from retake.runs.listing import ListedRuns, RunListing, RunPlace, RunsWanted
from retake.runs.run import Run

MAX_SEARCHED = 500
"""Maximum number of runs that a search finds, and of recent runs in buckets that it looks at."""


class RunsPage(NamedTuple):
    """A page of runs. `bounded` says that there may be more that were not searched or counted."""

    listed: RunList
    at: Pages
    bounded: bool = False

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {**self.listed.document(), **self.at._asdict()}


class RunsFound(NamedTuple):
    """The result of a search: runs, the last changed first, each with the first pipeline that writes to its ledger."""

    runs: list[tuple[OperatedPipeline, Run]]
    bounded: bool  # whether there may be more


def runs_page(
    operations: Operations,
    wanted: RunsWanted,
    page: int,
    size: int,
    text: str = "",
    listings: Listings | None = None,
) -> RunsPage:
    """Return a page of the wanted runs of all ledgers, the last changed first; with `text`, of those whose own id or
    task id contains it. `listings` are those of `operations`, if they have been read already. Raises SettingsError,
    StateError, StorageError."""
    listings = operations.listings() if listings is None else listings
    if text:
        found, bounded = search(listings, wanted, text)
        shown, at = [run for _, run in found], pages_of(len(found), page, size)
        runs = shown[(at.page - 1) * size : at.page * size]
    else:
        lists = [(it, it.listed(wanted)) for _, it in listings]
        at, bounded = pages_of(sum(it.total for _, it in lists), page, size), False
        runs = [run for _, run in _read(_places(lists, size, (at.page - 1) * size))]
    unreadable = list[str]()
    for _, listing in listings:
        unreadable += listing.unreadable
    return RunsPage(RunList(runs, steps_of(operations, runs), unreadable), at, bounded)


def search(listings: Listings, wanted: RunsWanted, text: str) -> RunsFound:
    """Return the wanted runs whose own id or task id contains `text`. In buckets, only recent runs and those that the
    index finds by the text are searched. Raises like `runs_page`."""
    writers = {id(listing): pipeline for pipeline, listing in listings}
    lists = [(it, it.listed(wanted)) for _, it in listings if not it.searchable]
    known = ((it, run) for _, it in listings for run in it.runs(it.named(wanted, text, MAX_SEARCHED)))
    runs = {
        (id(listing), run.run_id): (writers[id(listing)], run)  # an idempotency key has the same run id in every ledger
        for listing, run in (*_read(_places(lists, MAX_SEARCHED)), *known)
        if wanted.includes(run) and (text in run.run_id or text in run.task_id)
    }
    found = sorted(runs.values(), key=lambda it: (it[1].updated_at, it[1].run_id), reverse=True)
    bounded = sum(it.total for _, it in lists) > MAX_SEARCHED or len(found) >= MAX_SEARCHED
    return RunsFound(found[:MAX_SEARCHED], bounded)


_Placed = tuple[RunPlace, RunListing]


def _places(lists: Sequence[tuple[RunListing, ListedRuns]], limit: int, offset: int = 0) -> list[_Placed]:
    """Return up to `limit` places of all lists together from `offset` on. A single list skips to `offset` directly."""

    def placed(listing: RunListing, places: Iterator[RunPlace]) -> Iterator[_Placed]:
        return ((place, listing) for place in places)

    if len(lists) == 1:
        listing, found = lists[0]
        return [*placed(listing, found.places(limit, offset))]
    every = (placed(listing, found.places(offset + limit)) for listing, found in lists)
    return [*islice(merge(*every, key=lambda it: it[0], reverse=True), offset, offset + limit)]


def _read(places: Iterable[_Placed]) -> list[tuple[RunListing, Run]]:
    """Return the runs at these places, in order."""
    of_listing: dict[int, tuple[RunListing, list[str]]] = {}
    for place, listing in places:
        of_listing.setdefault(id(listing), (listing, []))[1].append(place.run_id)
    found = [(listing, run) for listing, run_ids in of_listing.values() for run in listing.runs(run_ids)]
    return sorted(found, key=lambda it: (it[1].updated_at, it[1].run_id), reverse=True)
