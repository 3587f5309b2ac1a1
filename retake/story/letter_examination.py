"""Examines a story's dead letters: each needs a valid report and the files that it names, and must be requeuable."""

from collections.abc import Iterator
from itertools import islice

from retake.bucket import Entry
from retake.checking import CheckFinding, CheckView, found
from retake.checking.view import Unparsable
from retake.document_schema import InvalidDocument, schema_named
from retake.errors import StateError
from retake.operations.bills import total_usd
from retake.paid.bills import calls_of
from retake.plural import count
from retake.retrying.dead_letters import DROPPED, REPORT, DeadLetter, DeadLetters
from retake.story import transitions
from retake.story.checked_part import CheckedPart
from retake.story.document_examination import implied_files
from retake.story.documents import GROUP, MidjourneyDocument, parse_midjourney
from retake.story.generation import DEAD_LETTERS, of_a_rollback, why_not_requeuable

_MAX_FILES = 1_000  # of one letter, that are examined; Retake's own letters have five

Files = dict[str, Entry]  # the files of one letter, by their names in its folder


class StoryLetters(CheckedPart):
    """The dead letters. A subject is a folder: "dead_letters/20260101-0930/"."""

    things = "dead letters"

    def subjects(self, view: CheckView) -> Iterator[str]:
        last = ""
        for entry in view.below(self.prefix).entries(DEAD_LETTERS):
            name, slash, _ = entry.key.removeprefix(DEAD_LETTERS).partition("/")
            if slash and name != last:
                last = name
                yield f"{self.prefix}{DEAD_LETTERS}{name}/"

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part, folder = view.below(self.prefix), subject.removeprefix(self.prefix)
        entries = islice(part.entries(folder), _MAX_FILES)
        files = {entry.key.removeprefix(folder): entry for entry in entries}
        if not files:
            return
        part.looked_at["dead_letters"] += 1
        for entry in files.values():
            yield from self.file_findings(part, entry)
        name = folder.removeprefix(DEAD_LETTERS).rstrip("/")
        if name.startswith("before-"):
            yield from self._orphan_findings(part, folder, files)
        elif REPORT not in files:
            yield from self._without_report(part, name, folder)
        elif files[REPORT].size:
            yield from self._letter_findings(part, name, folder, files)

    def repair(self, view: CheckView, subject: str) -> list[str]:
        """Remove the remains of a letter that was requeued or dropped."""
        name = subject.removeprefix(self.prefix).removeprefix(DEAD_LETTERS).rstrip("/")
        try:
            with self.leased(view) as store:
                letters = DeadLetters(store.bucket, self.clock, lease=store.lease)
                if not (ended := letters.show(name).ended):
                    return []
                letters.remove(name, DROPPED)
        except StateError:
            return []  # it is gone, or an invalid document is a finding of its own
        return [f"what was left of {name}, which was {ended}, was removed"]

    def knows(self, key: str) -> bool:
        folder = self.prefix + DEAD_LETTERS
        name, _, file = key.removeprefix(folder).partition("/")
        return key.startswith(folder) and bool(name and file)

    def _orphan_findings(self, part: CheckView, folder: str, files: Files) -> Iterator[CheckFinding]:
        where = part.where(folder + self.paths.kept_document)
        try:
            doc = self._kept(part, folder)
        except (Unparsable, InvalidDocument) as error:
            yield found("letter-report-invalid", where, str(error))
            return
        if doc is None:
            yield found("letter-file-missing", part.where(folder), f"it holds {', '.join(files)} and no document")
            return
        calls = calls_of({"paid_calls": doc.paid_calls})
        yield found("work-of-nobody", where, f"{len(calls)} paid calls ({total_usd(calls):.3f} USD)")

    def _without_report(self, part: CheckView, name: str, folder: str) -> Iterator[CheckFinding]:
        present = self.loaded(part).documents.gen.generation_id
        unfinished = present == name or of_a_rollback(DeadLetter(name, {}, ()))
        code = "letter-unfinished" if unfinished else "letter-without-report"
        yield found(code, part.where(folder), f"it has no {REPORT}")

    def _letter_findings(self, part: CheckView, name: str, folder: str, files: Files) -> Iterator[CheckFinding]:
        where = part.where(folder + REPORT)
        try:
            report = part.document(folder + REPORT)
        except Unparsable as error:
            yield found("letter-report-invalid", where, str(error))
            return
        letter = DeadLetter(name, report or {}, tuple(it for it in files if it != REPORT))
        if report is None:
            return
        if letter.ended:
            yield found(
                "letter-remains",
                part.where(folder),
                f"{name} was {letter.ended}, with {count(len(files), 'file')} left",
            )
            return
        yield from self._report_findings(where, letter)
        yield from self._listed_file_findings(part, folder, letter)
        if not why_not_requeuable(letter):
            yield from self._requeue_findings(part, folder, letter)

    def _report_findings(self, where: str, letter: DeadLetter) -> Iterator[CheckFinding]:
        try:
            schema_named("dead_letter").check(letter.report)
        except InvalidDocument as error:
            yield found("letter-report-invalid", where, str(error))
        key = "generation_id" if letter.kind in ("", "generation") else "id"
        if letter.report.get(key) != letter.id:
            yield found("letter-report-invalid", where, f"{key}: is not the name of its folder")

    def _listed_file_findings(self, part: CheckView, folder: str, letter: DeadLetter) -> Iterator[CheckFinding]:
        listed = letter.report.get("files")
        named = {it for it in listed if isinstance(it, str)} if isinstance(listed, list) else set[str]()
        for name in sorted(named - {*letter.files}):
            yield found(
                "letter-file-missing", part.where(folder), f"its report lists {name[:100]!r}, which is not there"
            )
        for name in sorted({*letter.files} - named - {self.paths.kept_document}):
            yield found("letter-file-unlisted", part.where(folder + name), "the report of its letter does not list it")

    def _requeue_findings(self, part: CheckView, folder: str, letter: DeadLetter) -> Iterator[CheckFinding]:
        where, name = part.where(folder + self.paths.kept_document), letter.id
        try:
            kept = self._kept(part, folder)
        except (Unparsable, InvalidDocument) as error:
            yield found("letter-not-requeuable", where, str(error))
            return
        if kept is None:
            yield found("letter-not-requeuable", where, "it is not there")
            return
        after = transitions.requeued(kept, MidjourneyDocument({}))
        lacking = sorted(it for it in implied_files(after) if f"{name}.{it}" not in letter.files)
        if lacking:
            what = f"to continue with {after.present_step} it needs {', '.join(f'{name}.{it}' for it in lacking)}"
            yield found("letter-not-requeuable", part.where(folder), f"{what}, and the letter does not hold that")
        staged = {it: self.files(part, it, name, GROUP) for it in (*self.folders.staged, self.folders.archive)}
        whole = [it for it, there in staged.items() if len(there) == len(GROUP)]
        if whole:
            yield found("letter-outlived", part.where(folder), f"{name} was finished since: it is in {whole[0]}")
        elif staged[self.folders.entrance] and self.loaded(part).documents.gen.generation_id == name:
            yield found("letter-outlived", part.where(folder), f"{name} is under way again")

    def _kept(self, part: CheckView, folder: str) -> MidjourneyDocument | None:
        """Return the document of a letter. Raises Unparsable, InvalidDocument."""
        data = part.read(folder + self.paths.kept_document)
        return None if data is None else parse_midjourney(data)
