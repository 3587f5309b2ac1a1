"""Examines a story's groups: each must be whole, in one place, with a valid text, picture and video."""

from collections.abc import Iterator, Mapping

from retake.bucket import Entry
from retake.checking import CheckFinding, CheckView, found
from retake.checking.view import Unparsable
from retake.clock import Clock
from retake.document_schema import InvalidDocument, schema_named
from retake.story.checked_part import CheckedPart, group_ids
from retake.story.documents import GROUP, safe_id
from retake.story.generation import DEAD_LETTERS
from retake.story.settings import Settings

Places = Mapping[str, Mapping[str, Entry]]  # folder -> the files of one id that lie in it, by suffix


class StoryGroups(CheckedPart):
    """The groups in the stage folders and the archive. A subject is a folder and an id: "archive/20260101-0930"."""

    things = "groups"

    def __init__(self, prefix: str, settings: Settings, clock: Clock) -> None:
        super().__init__(prefix, settings, clock)
        self._places = frozenset(f"{prefix}{folder}"[:-1] for folder in self.folders)

    def subjects(self, view: CheckView) -> Iterator[str]:
        part = view.below(self.prefix)
        for folder in self.folders:
            for name in group_ids(part, folder):
                yield f"{self.prefix}{folder}{name}"

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part = view.below(self.prefix)
        place, slash, name = subject.removeprefix(self.prefix).rpartition("/")
        folder = place + slash
        here = self.files(part, folder, name, GROUP)
        if not here:
            return
        places = {folder: here}
        if folder != self.folders.archive or len(here) < len(GROUP):  # not for the many whole groups in the archive
            found_in = {it: here if it == folder else self.files(part, it, name, GROUP) for it in self.folders}
            places = {it: files for it, files in found_in.items() if files}
        if next(iter(places)) == folder:
            part.looked_at["groups"] += 1
            yield from self._place_findings(part, name, places)
        for suffix, entry in here.items():
            yield from self.file_findings(part, entry)
            if suffix == "json" and entry.size:
                yield from self._text_findings(part, name, entry)

    def knows(self, key: str) -> bool:
        place, _, file = key.rpartition("/")
        name, _, suffix = file.rpartition(".")
        return place in self._places and suffix in GROUP and safe_id(name)

    def _place_findings(self, part: CheckView, name: str, places: Places) -> Iterator[CheckFinding]:
        folder, files = next(iter(places.items()))
        if len(places) == 1 and len(files) == len(GROUP):
            return
        loaded = self.loaded(part)
        present = loaded.documents.gen.generation_id
        if loaded.faults or name == present or name in loaded.published:
            return  # these are examined with the documents
        where = part.where(min(entry.key for entry in files.values()))
        lacking = [f".{it}" for it in GROUP if not any(it in files for files in places.values())]
        staged = self.folders.archive not in places
        if len(places) > 1 and not lacking:
            code = "group-half-moved" if staged else "group-twice"
            yield found(code, where, f"{name} is in {' and in '.join(places)}")
        elif folder == self.folders.entrance and len(places) == 1 and self._is_in_letter(part, name, files):
            yield found("letter-copied", where, f"{name} is not under way, and in {DEAD_LETTERS}{name}/ too")
        elif staged or len(places) > 1:
            yield found("group-incomplete", where, f"{name} in {' and in '.join(places)} lacks {', '.join(lacking)}")
        else:
            yield found("archive-incomplete", where, f"{name} lacks {', '.join(lacking)}")

    def _is_in_letter(self, part: CheckView, name: str, files: Mapping[str, Entry]) -> bool:
        return self.files(part, f"{DEAD_LETTERS}{name}/", name, GROUP).keys() >= files.keys()

    def _text_findings(self, part: CheckView, name: str, entry: Entry) -> Iterator[CheckFinding]:
        key = entry.key
        try:
            content = part.document(key, entry)
            if content is None:
                return
            schema_named("content").check(content)
        except (Unparsable, InvalidDocument) as error:
            yield found("content-invalid", part.where(key), str(error))
        else:
            if content["generation_id"] != name:
                what = "its generation_id differs from its name"
                yield found("content-invalid", part.where(key), what)
