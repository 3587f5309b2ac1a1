"""A story pipeline's part of a bucket, for its examinations (`retake check`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from retake.bucket import Entry, NotFound, this_process
from retake.bucket.ranged_reads import read_range
from retake.checking import CheckFinding, CheckView, found
from retake.checking.view import Unparsable
from retake.clock import Clock
from retake.document_schema import InvalidDocument
from retake.media.structure import mp4_fault, png_fault
from retake.story.documents import (
    GROUP,
    Documents,
    GenDocument,
    MidjourneyDocument,
    PublicDocument,
    parse_gen,
    parse_midjourney,
    parse_public,
    safe_id,
)
from retake.story.settings import LEASE, Settings, pipeline_of
from retake.story.store import DocumentStore

T = TypeVar("T")


class Loaded(NamedTuple):
    """The documents that exist and are valid."""

    public: PublicDocument | None = None
    gen: GenDocument | None = None
    midjourney: MidjourneyDocument | None = None
    faults: tuple[tuple[str, str], ...] = ()  # of each invalid document: the key, and what is wrong

    @property
    def documents(self) -> Documents:
        """The documents. Missing and invalid ones are empty."""
        return Documents(
            self.public or PublicDocument({}), self.gen or GenDocument({}), self.midjourney or MidjourneyDocument({})
        )

    @property
    def published(self) -> set[str]:
        """The ids that are to be archived."""
        return {*self.documents.public.published, *self.documents.gen.remembered}


class CheckedPart:
    """The base of one pipeline's examinations: its folders, its lease, its documents.

    `prefix` is the prefix of its part of the bucket. Subjects are keys, or prefixes of keys, in the whole bucket.
    """

    things: str  # in messages: "groups"
    apart_s = 0.0

    def __init__(self, prefix: str, settings: Settings, clock: Clock) -> None:
        self.prefix, self.settings, self.clock, self.paths = prefix, settings, clock, settings.paths
        self.pipeline = pipeline_of(prefix.rstrip("/") or None)
        self.title = f"{self.things} of {self.pipeline}"
        self.folders = settings.paths.folders

    def busy(self, view: CheckView) -> bool:
        """Return whether a tick or an operator is at work."""
        return view.below(self.prefix).bucket.holder(LEASE) is not None

    def repair(self, view: CheckView, subject: str) -> list[str]:
        """Repair nothing: see `Examination.repair`."""
        return []

    @contextmanager
    def leased(self, view: CheckView) -> Iterator[DocumentStore]:
        """Yield a store under the lease, with config_public.json and config_gen.json read. Raises LeaseHeld,
        StorageError, StateError."""
        bucket = view.below(self.prefix).bucket
        lease = bucket.lease(LEASE, this_process())
        try:
            store = DocumentStore(bucket, self.paths, lease, self.clock)
            public, gen = store.public.read(), store.parsed(self.paths.config_gen, parse_gen)
            store.documents = Documents(public, gen, MidjourneyDocument({}))
            yield store
        finally:
            lease.release()

    def loaded(self, part: CheckView) -> Loaded:
        """Return the documents. Raises StorageError."""
        faults: list[tuple[str, str]] = []

        def load(key: str, parse: Callable[[bytes], T]) -> T | None:
            try:
                data = part.read(key)
                return None if data is None else parse(data)
            except (Unparsable, InvalidDocument) as error:
                faults.append((key, str(error)))
                return None

        public = load(self.paths.config_public, parse_public)
        gen = load(self.paths.config_gen, parse_gen)
        midjourney = load(self.paths.config_midjourney, parse_midjourney)
        return Loaded(public, gen, midjourney, tuple(faults))

    def files(self, part: CheckView, folder: str, name: str, endings: tuple[str, ...]) -> dict[str, Entry]:
        """Return the existing files among `folder` + `name` + "." + ending, by ending."""
        stem = f"{folder}{name}."
        return {entry.key.removeprefix(stem): entry for entry in part.find(stem, endings)}

    def file_findings(self, part: CheckView, entry: Entry) -> Iterator[CheckFinding]:
        """Yield what is wrong with a picture or video. Its content is checked only if the check covers media."""
        fault_of = {"png": png_fault, "mp4": mp4_fault}.get(entry.key.rpartition(".")[2])
        if not entry.size:
            yield found("empty-file", part.where(entry.key), "it has 0 bytes")
        elif fault_of and part.scope.media:
            part.looked_at["media"] += 1
            try:
                fault = fault_of(partial(read_range, part.bucket, entry.key), entry.size)
            except NotFound:
                return  # it has just been moved
            if fault:
                yield found("media-broken", part.where(entry.key), f"{fault} ({entry.size} bytes)")


def group_ids(part: CheckView, folder: str) -> Iterator[str]:
    """Yield each id that has a file in a folder, once. To hold only one id in memory, it is yielded for the first file
    of its group."""
    order, last = sorted(GROUP), ""
    for entry in part.entries(folder):
        name, dot, ending = entry.key.removeprefix(folder).rpartition(".")
        if not dot or ending not in order or name == last or not safe_id(name):
            continue
        last, before = name, order[: order.index(ending)]
        if not before or not part.find(f"{folder}{name}.", before):
            yield name
