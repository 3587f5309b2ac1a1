"""Run examinations: look, look again at what is suspect, repair, and report.

The first look uses a single listing of the bucket, so that no object is requested twice. Ticks may run meanwhile, so
every suspect is looked at again, in its current state, until two looks in a row agree. A subject that somebody works on
all the time is reported as STILL_CHANGING, unless there are only notes about it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retake.checking.codes import NOTHING_HERE, STILL_CHANGING, UNKNOWN_OBJECT, UNREADABLE
from retake.checking.examination import CheckFinding, Examination, LockFree, found
from retake.checking.finding_code import Severity
from retake.checking.view import CheckView, Inventory, LiveListing, Scope, listed
from retake.errors import RetakeError, in_words
from retake.exit_codes import ExitCode
from retake.plural import count

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each further look at what somebody is working on."""

MAX_FINDINGS = 10_000
"""Maximum number of findings in a report. If there are more, they have a common cause, which the first ones show."""

_WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.NOTE)

Progress = Callable[[str, int], object]
"""Called with the title of an examination and the number of subjects looked at."""


class CheckReport(NamedTuple):
    """The result of a check."""

    findings: Sequence[CheckFinding]
    looked_at: dict[str, int]
    complete: bool  # False: something could not be looked at
    done: Sequence[str] = ()  # what was repaired, in words

    @property
    def whole(self) -> bool:
        """Whether everything was looked at and nothing is left to do."""
        return self.complete and not self.open

    @property
    def open(self) -> list[CheckFinding]:
        """The errors and warnings that were not repaired."""
        return [it for it in self.findings if it.level is not Severity.NOTE and not it.repaired]

    @property
    def exit_code(self) -> ExitCode:
        if not self.complete:
            return ExitCode.TRY_LATER
        return ExitCode.BAD_STATE if self.open else ExitCode.OK

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        findings = [{**it._asdict(), "level": it.level.value} for it in self.findings]
        return {"whole": self.whole, "looked_at": self.looked_at, "findings": findings}


class Suspect(NamedTuple):
    """A subject with findings at the last look."""

    examination: Examination
    subject: str
    findings: Sequence[CheckFinding]


class Check:
    """One check of the bucket in `scope`, or of a part of it. The `examinations` run in order; see `Progress`."""

    def __init__(
        self, examinations: Sequence[Examination], scope: Scope, progress: Progress = lambda title, number: None
    ) -> None:
        self._examinations, self._scope, self._progress = examinations, scope, progress
        self._looked_at: Counter[str] = Counter()
        self._now = CheckView(scope, LiveListing(scope.bucket))
        self._missed: list[CheckFinding] = []
        self._done: list[str] = []

    def run(self, *, repair: bool = False) -> CheckReport:
        """Look at everything, with `repair` rebuild what can be derived, and return the report.

        Raises StorageError if the bucket cannot be listed at all.
        """
        inventory = listed(self._scope)
        try:
            objects, size = inventory.totals()
            self._looked_at.update(objects=objects, bytes=size)
            suspects = self._first_look(CheckView(self._scope, inventory, self._looked_at))
            strangers = self._unknown(inventory)
        finally:
            inventory.close()
        confirmed = self._second_look(suspects)
        if repair:
            confirmed = [self._repair(it) for it in confirmed]
        findings = [it for suspect in confirmed for it in suspect.findings]
        complete = not self._missed and not any(it.code == STILL_CHANGING for it in findings)
        everything = sorted([*self._missed, *findings, *strangers], key=lambda it: _WORST_FIRST.index(it.level))
        return CheckReport(everything[:MAX_FINDINGS], dict(self._looked_at), complete, self._done)

    def _first_look(self, view: CheckView) -> list[Suspect]:
        suspects: list[Suspect] = []
        for it in self._examinations:
            number = 0
            try:
                for subject in it.subjects(view):
                    number += 1
                    self._progress(it.title, number)
                    if (findings := self._examine(it, view, subject)) and len(suspects) < MAX_FINDINGS:
                        suspects.append(Suspect(it, subject, findings))
            except RetakeError as error:
                self._miss(it.title, error)
        return suspects

    def _examine(self, examination: Examination, view: CheckView, subject: str) -> list[CheckFinding]:
        try:
            return [*examination.examine(view, subject)]
        except RetakeError as error:
            self._miss(subject, error)
            return []

    def _miss(self, where: str, error: RetakeError) -> None:
        missed = found(UNREADABLE, where, str(error))
        if missed not in self._missed and len(self._missed) < MAX_FINDINGS:
            self._missed.append(missed)

    def _second_look(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return the suspects that a further look confirms. If nobody is working on a subject, one more look is
        enough."""
        confirmed: list[Suspect] = []
        unsure = list(suspects)
        for pause in (0.0, *PAUSES_S):
            if not unsure:
                break
            self._scope.clock.sleep(max(pause, *(it.examination.apart_s for it in unsure)))
            examinations = {id(it.examination): it.examination for it in unsure}
            busy = {number: self._busy(it) for number, it in examinations.items()}
            left: list[Suspect] = []
            for before in unsure:
                now = before._replace(findings=self._examine(before.examination, self._now, before.subject))
                notes = all(it.level is Severity.NOTE for it in now.findings)  # notes hold even while somebody works
                settled = now.findings == before.findings and (notes or not busy[id(now.examination)])
                if now.findings:
                    (confirmed if settled else left).append(now)
            unsure = left
        return [*confirmed, *map(_changing, unsure)]

    def _busy(self, examination: Examination) -> bool:
        try:
            return examination.busy(self._now)
        except RetakeError as error:
            self._miss(examination.title, error)
            return False

    def _repair(self, suspect: Suspect) -> Suspect:
        """Repair a subject, and return it with the findings that are gone marked as repaired."""
        if not any(it.repairable for it in suspect.findings):
            return suspect
        try:
            done = suspect.examination.repair(self._now, suspect.subject)
        except RetakeError as error:
            later = [
                it._replace(todo=f"not repaired: {in_words(error)}") if it.repairable else it for it in suspect.findings
            ]
            return suspect._replace(findings=later)
        self._done += done
        left = {(it.code, it.where) for it in self._examine(suspect.examination, self._now, suspect.subject)}
        words = "; ".join(done)
        return suspect._replace(
            findings=[
                it._replace(repaired=True, todo=f"nothing: {words}")
                if it.repairable and (it.code, it.where) not in left
                else it
                for it in suspect.findings
            ]
        )

    def _unknown(self, inventory: Inventory) -> list[CheckFinding]:
        """Return a finding for each unknown object, and NOTHING_HERE if there are no known ones."""
        strangers: list[CheckFinding] = []
        known = False
        for entry in inventory.entries(""):
            if any(self._knows(it, entry.key) for it in self._examinations):
                known = True
            elif len(strangers) < MAX_FINDINGS:
                strangers.append(found(UNKNOWN_OBJECT, entry.key, count(entry.size, "byte")))
        if known or self._found_outside():
            return strangers
        place = self._scope.prefix or self._scope.bucket.url
        return [found(NOTHING_HERE, place, "no document, no run and no group is there"), *strangers]

    def _knows(self, examination: Examination, key: str) -> bool:
        try:
            return examination.knows(key)
        except RetakeError as error:
            self._miss(examination.title, error)
            return False

    def _found_outside(self) -> bool:
        """Return whether rows in a database were looked at, which may have no files in the bucket yet."""
        return any(isinstance(it, LockFree) and self._looked_at[it.outside] for it in self._examinations)


def _changing(suspect: Suspect) -> Suspect:
    """Return the suspect with its findings replaced by STILL_CHANGING."""
    what = f"{suspect.examination.title} were being changed throughout the check"
    return suspect._replace(findings=[found(STILL_CHANGING, suspect.subject, what)])


def joined(reports: Sequence[CheckReport]) -> CheckReport:
    """Merge several reports into one."""
    looked_at: Counter[str] = Counter()
    for it in reports:
        looked_at.update(it.looked_at)
    findings = sorted((it for report in reports for it in report.findings), key=lambda it: _WORST_FIRST.index(it.level))
    done = [words for it in reports for words in it.done]
    return CheckReport(findings, dict(looked_at), all(it.complete for it in reports), done)
