"""Examines a story's documents: they must be valid, and agree with each other and with the files."""

import re
from collections.abc import Iterator, Mapping

from retake.checking import CheckFinding, CheckView, found
from retake.checking.view import Unparsable
from retake.clock import Clock
from retake.document_schema import InvalidDocument, schema_named
from retake.errors import StateError
from retake.story.checked_part import CheckedPart, Loaded, group_ids
from retake.story.content import TOPICS
from retake.story.documents import GROUP, IMAGINE, UPSCALE, Documents, MidjourneyDocument, Status, Step, safe_id
from retake.story.generation import DEAD_LETTERS, SPEND
from retake.story.settings import LEASE, Settings
from retake.story.store import UNREADABLE, aside_prefix
from retake.story.transitions import ordered_by
from retake.ticking.channel_versions import MARKS

_AWAIT_PICTURE: Mapping[Status | None, str] = {
    Status.WAITING_FOR_IMAGINE: IMAGINE,
    Status.WAITING_FOR_UPSCALE: UPSCALE,
    Status.MJ_FETCH_FAILED: "",  # either of them
}
"""The statuses with a Midjourney task in flight, and its type."""

_AWAIT_VIDEO = (Status.WAITING_FOR_RUNWAY, Status.RUNWAY_POLL_FAILED, Status.RUNWAY_POLL_TIMEOUT)
_FROM_IMAGINE = (Status.WAITING_FOR_UPSCALE, Status.UPSCALE_TRIGGER_FAILED)
_FROM_UPSCALE = (*_AWAIT_VIDEO, Status.RUNWAY_TRIGGER_FAILED)
_FINAL = Status.TASK_FAILED_MAX_RETRIES
_COPY = re.compile(r"[^/]+\.[0-9a-f]{16}")


def implied_files(doc: MidjourneyDocument) -> set[str]:
    """Return the suffixes of the files that the generation must have, according to its document."""
    status, step = doc.status, doc.pending.step if doc.pending else doc.failed_step
    needed = set[str]()
    text = doc.generation or doc.task or doc.results or status not in (None, Status.CONTENT_FAILED, _FINAL)
    if text or doc.runway_task or step not in (None, Step.CONTENT):
        needed.add("json")
    if doc.runway_task or status in _AWAIT_VIDEO or (doc.pending and step is Step.RUNWAY):
        needed.add("png")
    return needed


def lost_task(doc: MidjourneyDocument) -> str:
    """Return what is wrong if the status waits for a task that is not on record, or ""."""
    vendor = "Midjourney" if doc.status in _AWAIT_PICTURE and not doc.task else ""
    vendor = "Runway" if doc.status in _AWAIT_VIDEO and not doc.runway_task else vendor
    return f"its status is {doc.status}, and no {vendor} task is on record" if vendor else ""


def contradictions(doc: MidjourneyDocument) -> Iterator[str]:
    """Yield contradictions in the document of a generation under way."""
    status, results, pending = doc.status, doc.results, doc.pending
    awaited = _AWAIT_PICTURE.get(status)
    if doc.task and status is not _FINAL and (awaited is None or awaited not in ("", ordered_by(doc.task))):
        yield f"a Midjourney task ({doc.task.task_type}) is in flight, and the status is {status or 'empty'}"
    if doc.runway_task and status not in (*_AWAIT_VIDEO, _FINAL):
        yield f"a Runway task is in flight, and the status is {status or 'empty'}"
    if pending and (status or doc.task or doc.runway_task):
        yield f"a paid call of {pending.step} is pending, and the status is {status or 'empty'} or a task is in flight"
    if doc.generation and (results or doc.task or doc.runway_task):
        yield "`generation` is true, and pictures are ordered already"
    wanted = IMAGINE if status in _FROM_IMAGINE else UPSCALE if status in _FROM_UPSCALE else ""
    if pending and pending.step in (Step.UPSCALE, Step.RUNWAY):
        wanted = IMAGINE if pending.step is Step.UPSCALE else UPSCALE
    if wanted and (results is None or results.task_type != wanted):
        yield f"it is past the {wanted}, and the results of that are not on record"
    for key, there in (("failed_step", doc.failed_step), ("cancelled", doc.cancelled)):
        if there and status is not _FINAL:
            yield f"`{key}` is there, and the status is {status or 'empty'}"


class StoryDocuments(CheckedPart):
    """Examines the state documents, together, and the copies of invalid ones."""

    things = "documents"

    def __init__(self, prefix: str, settings: Settings, clock: Clock) -> None:
        super().__init__(prefix, settings, clock)
        paths = settings.paths
        self._aside = aside_prefix(paths)
        documents = (paths.config_public, paths.config_gen, paths.config_midjourney, TOPICS)
        self._keys = frozenset((*(prefix + it for it in documents), f"{MARKS}{prefix.removesuffix('/')}"))
        self._beginnings = tuple(prefix + it for it in (self._aside, SPEND, UNREADABLE))

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield self.prefix + self.paths.config_midjourney
        yield from (view.below(self.prefix).where(it.key) for it in view.below(self.prefix).entries(UNREADABLE))

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part, key = view.below(self.prefix), subject.removeprefix(self.prefix)
        if key.startswith(UNREADABLE):
            if part.find(key, [""]):
                yield found("invalid-copy", subject, "it is a copy of a document that was invalid")
            return
        loaded = self.loaded(part)
        part.looked_at["documents"] += sum(1 for it in (loaded.public, loaded.gen, loaded.midjourney) if it)
        for invalid, fault in loaded.faults:
            yield found("document-invalid", part.where(invalid), fault)
        if loaded.faults:
            return
        yield from self._public_findings(part, loaded)
        yield from self._generation_findings(part, loaded)
        yield from self._topic_findings(part, loaded.documents.gen.generation_id)

    def repair(self, view: CheckView, subject: str) -> list[str]:
        """Put the publisher's lost appends back into the list, and update `empty` from the folders."""
        done: list[str] = []
        try:
            with self.leased(view) as store:
                if not store.public.whole:
                    store.public.publish(lambda doc: doc)
                    done.append("what the publisher had appended was put back into its list")
                wanted = self._empty(view.below(self.prefix))
                if _stale(store.documents, wanted, self.folders.entrance):
                    store.public.publish(lambda doc: doc.updated(empty=wanted))
                    done.append("the list of empty folders was made again")
        except StateError:
            return done  # an invalid document is a finding of its own
        return done

    def knows(self, key: str) -> bool:
        if not key.startswith(self._beginnings):
            return key in self._keys
        key = key.removeprefix(self.prefix)
        if key.startswith(SPEND):
            return key.endswith(".json") and safe_id(key.removeprefix(SPEND).removesuffix(".json"))
        return key.startswith(self._aside) or _COPY.fullmatch(key.removeprefix(UNREADABLE)) is not None

    # --- config_public.json ---------------------------------------------------------------------------------------

    def _public_findings(self, part: CheckView, loaded: Loaded) -> Iterator[CheckFinding]:
        public, where = loaded.documents.public, part.where(self.paths.config_public)
        if public.processing_lock and part.bucket.holder(LEASE) is None:
            yield found("flag-up", where, "`processing_lock` is true, and nobody holds the lease")
        for aside in part.entries(self._aside):
            yield found("displaced-append", part.where(aside.key), "a write met it, and it was not merged")
        listed = set(public.published)
        lost = [it for it in loaded.documents.gen.remembered if it not in listed]
        if lost:
            yield found("displaced-append", where, f"{len(lost)} published ids are remembered, and not on the list")
        wanted = self._empty(part) if public.empty is not None else []
        if _stale(loaded.documents, wanted, self.folders.entrance):
            yield found("empty-list-stale", where, f"`empty` is {public.empty}, and the empty folders are {wanted}")
        for name in sorted(loaded.published):
            yield from self._published_findings(part, name)

    def _published_findings(self, part: CheckView, name: str) -> Iterator[CheckFinding]:
        folders = (*self.folders.staged, self.folders.archive) if safe_id(name) else ()
        there = {ending for folder in folders for ending in self.files(part, folder, name, GROUP)}
        lacking = [f".{it}" for it in GROUP if it not in there]
        if lacking:
            what = f"{_shown(name)} is on the list of published ids, and lacks {', '.join(lacking)}"
            yield found("published-incomplete", part.where(self.paths.config_public), what)

    def _empty(self, part: CheckView) -> list[str]:
        """Return the folders without a ready group, in the order in which tidying up lists them."""
        return [it for it in self.folders.staged if not self._has_ready(part, it)]

    def _has_ready(self, part: CheckView, folder: str) -> bool:
        return any(len(self.files(part, folder, name, GROUP)) == len(GROUP) for name in group_ids(part, folder))

    # --- the generation under way ---------------------------------------------------------------------------------

    def _generation_findings(self, part: CheckView, loaded: Loaded) -> Iterator[CheckFinding]:
        where = part.where(self.paths.config_midjourney)
        documents = loaded.documents
        doc, name = documents.midjourney, documents.gen.generation_id
        if name is None:
            yield from self._orphan_findings(part, loaded)
            return
        if loaded.midjourney is None and not self._first_has_just_begun(part, name):
            yield found("document-missing", where, f"it is not there, and {name} is under way")
        if lost := lost_task(doc):
            yield found("task-lost", where, f"{name}: {lost}")
        for what in contradictions(doc):
            yield found("status-contradicts", where, f"{name}: {what}")
        if unknown := sorted(set(doc.retries) - set(Step)):
            yield found("unknown-step", where, f"`retries` counts {', '.join(map(_shown, unknown))}")
        if doc.discard:
            yield found("rollback-unfinished", where, f"{name}: {', '.join(sorted(doc.discard))} are to be deleted")
        yield from self._group_findings(part, name, doc)

    def _first_has_just_begun(self, part: CheckView, name: str) -> bool:
        """Return whether only the id of the bucket's first generation is on record: if a tick dies before the first
        intent, the document never existed."""
        return not any(part.entries(SPEND)) and not self.files(part, self.folders.entrance, name, GROUP)

    def _orphan_findings(self, part: CheckView, loaded: Loaded) -> Iterator[CheckFinding]:
        doc = loaded.documents.midjourney
        if doc.blank or doc.status is _FINAL:
            return
        if loaded.gen is None:
            what = "it is not there, and work is on record that belongs to a generation"
            yield found("document-missing", part.where(self.paths.config_gen), what)
        else:
            what = "a task, results or a paid call are on record, and no generation is under way"
            yield found("orphaned-work", part.where(self.paths.config_midjourney), what)

    def _group_findings(self, part: CheckView, name: str, doc: MidjourneyDocument) -> Iterator[CheckFinding]:
        entrance = self.folders.entrance
        there = set(self.files(part, entrance, name, GROUP)) - doc.discard
        if doc.status is _FINAL:  # on their way to the dead letters
            there |= set(self.files(part, f"{DEAD_LETTERS}{name}/", name, GROUP))
        needed = implied_files(doc)
        if not needed and doc.status is None and doc.blank and there & {"png", "mp4"}:
            needed = set(GROUP)  # these are made after the text, and a cleared document says that all of them are
        for suffix in sorted(needed - there):
            what = f"{name} is past the step that makes it, and it is not there"
            yield found("file-missing", part.where(f"{entrance}{name}.{suffix}"), what)
        for folder in (self.folders.middle, self.folders.exit, self.folders.archive):
            for entry in [*self.files(part, folder, name, GROUP).values()][:1]:
                what = f"{name} is under way in {entrance}, and has files in {folder} too"
                yield found("group-twice", part.where(entry.key), what)

    def _topic_findings(self, part: CheckView, present: str | None) -> Iterator[CheckFinding]:
        where = part.where(TOPICS)
        try:
            value = part.document(TOPICS)
        except Unparsable as error:
            yield found("document-invalid", where, str(error))
            return
        topics = (value or {}).get("topics") or {}
        if not isinstance(topics, dict):
            yield found("document-invalid", where, "topics: is not an object")
            return
        if value is not None:
            try:
                schema_named("topics").check(value)
            except InvalidDocument as error:
                yield found("topics-odd", where, str(error))
        if present and present not in topics and self.files(part, self.folders.entrance, present, ("json",)):
            yield found("topics-odd", where, f"it has no topic of {present}, which has its text")


def _stale(documents: Documents, wanted: list[str], entrance: str) -> bool:
    """Return whether `empty` does not agree with the folders. A finished generation in the entrance is noted only when
    the next one begins."""
    listed = documents.public.empty
    if listed is None:
        return False
    finished = {entrance} if documents.gen.generation_id is None else set[str]()
    return set(listed) - finished != set(wanted) - finished


def _shown(text: str) -> str:
    return text if safe_id(text) else repr(text[:64])
