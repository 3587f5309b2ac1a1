"""Dead letters: work that failed for good, kept with everything that belongs to it until an operator decides.

    dead_letters/ID/report.json     what failed, when, and why; the other files of the folder belong to it

Letters of every kind can be listed, shown and dropped here. Requeueing is up to the component that wrote the letter.

Writes are ordered so that a crash in between does no harm. The report is written last and removed last. To remove a
letter, its report is first marked, with one write: before that write the letter is complete, after it only remains are
left. Remains are still listed, and dropping them again removes them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, islice
from typing import Any, NamedTuple

from retake import strict_json
from retake.bucket import ANY, Bucket, Entry, Lease, NotFound, check_key
from retake.clock import Clock, parse_stamp, stamp
from retake.errors import StateError, StorageError
from retake.retrying.kept_counts import CountedFolder, KeptCounts, Row, days_ago, mark_changes

DEAD_LETTERS = "dead_letters/"
REPORT = "report.json"

REQUEUED = "requeued"
DROPPED = "dropped"


class NoSuchLetter(StateError):
    """There is no dead letter with this id."""


class DeadLetter(NamedTuple):
    """One letter. Its report is read tolerantly: programs of several kinds and versions write reports."""

    id: str
    report: Mapping[str, Any]  # {} if it cannot be read
    files: tuple[str, ...]  # the names of the other files in its folder
    fault: str = ""  # why there is no readable report

    @property
    def failed_at(self) -> datetime | None:
        for value in (self.report.get("failed_at_utc"), self.error.get("timestamp")):
            if isinstance(value, str):
                with suppress(ValueError):
                    return parse_stamp(value)
        return None

    @property
    def error(self) -> Mapping[str, Any]:
        """The standard error record of the last failure, or {}."""
        error = self.report.get("last_error")
        return error if isinstance(error, Mapping) else {}

    @property
    def error_code(self) -> str | None:
        code = self.error.get("error_code") or self.error.get("code")
        return str(code) if code else None

    @property
    def kind(self) -> str:
        """The kind of work that failed; "generation" for the story, whose reports name no kind."""
        default = "generation" if "generation_id" in self.report else ""
        return str(self.report.get("kind") or default)

    @property
    def item(self) -> Any:
        """The work that failed, as passed to `put`; None if it is in the files."""
        return self.report.get("item")

    @property
    def ended(self) -> str:
        """REQUEUED or DROPPED if only remains of the letter are left, otherwise ""."""
        return str(self.report.get("ended") or "")


class LetterFolder(NamedTuple):
    """The folder of a letter whose report has not been read. Sorts by time."""

    modified: float  # seconds since the epoch, by the store's clock
    id: str
    files: Mapping[str, Entry]


class DeadLetters:
    """The letters in `folder` (which ends in "/") of `bucket`. Changes check `lease` first, if given.

    With `counted`, old letters are counted once instead of listed each time (`retake.retrying.kept_counts`), so that
    reading and counting letters costs the same however many there are.

    Every method may raise StorageError. Those that change something may raise LeaseLost.

    >>> from retake.bucket.memory import MemoryBucket
    >>> from retake.clock import SystemClock
    >>> letters = DeadLetters(MemoryBucket(), SystemClock())
    >>> letters.put("letter-1", "poster", {"title": "aurora"}, {"error_code": "ERR_BUSINESS_REJECTED"})
    >>> [(letter.id, letter.error_code) for letter in letters.list()]
    [('letter-1', 'ERR_BUSINESS_REJECTED')]
    """

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        *,
        lease: Lease | None = None,
        folder: str = DEAD_LETTERS,
        counted: bool = False,
    ) -> None:
        self._folders, self._clock = _LetterFolders(bucket, clock, lease, folder, counted=counted), clock

    def put(
        self,
        letter_id: str,
        kind: str,
        item: Any,
        error: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Store a letter about `item` (JSON), with the standard error record of its last failure and its files by name.

        Storing it twice leaves one letter, the later one, with the files of both. Raises ValueError for an id or name
        that cannot be a file name.
        """
        files = files or {}
        for name in files:
            self._folders.key(letter_id, _file_name(name))
        now = stamp(self._clock.now())
        report = {"id": letter_id, "kind": kind, "failed_at_utc": now, "last_error": dict(error), "item": item}
        data = strict_json.encode({**report, "files": [*files]})
        if (there := self._folders.files(letter_id)) and self._letter(letter_id, there).ended:
            self.remove(letter_id, DROPPED)  # the remains of an earlier letter do not belong to this one
        for name, content in files.items():
            self._folders.write(letter_id, name, content)
        self._folders.write(letter_id, REPORT, data)

    def add_files(self, letter_id: str, copies: Mapping[str, str], files: Mapping[str, bytes]) -> list[str]:
        """Begin a letter whose report the caller writes itself, and return the names of all files in its folder.

        `copies` maps names in the letter to keys of the bucket. These objects are copied within the store, and stay
        where they are. `files` maps names to contents. Call `write_report` next: until then the letter is not complete.
        """
        for name, key in copies.items():
            self._folders.copy(key, letter_id, _file_name(name))
        for name, content in files.items():
            self._folders.write(letter_id, _file_name(name), content)
        return [name for name in self._folders.files(letter_id) if name != REPORT]

    def write_report(self, letter_id: str, report: Mapping[str, Any]) -> None:
        """Complete a letter that `add_files` began. `report` (JSON) is written unchanged."""
        self._folders.write(letter_id, REPORT, strict_json.encode(report))

    def list(self, limit: int | None = 50) -> list[DeadLetter]:
        """Return the last `limit` letters, the newest first by the store's clock. Reads only their reports."""
        letters = (letter for it in self._folders.newest() if (letter := self._existing(it)))
        return [*islice(letters, limit)]

    def folders(self) -> Sequence[LetterFolder]:
        """Return the folders of all letters, the newest first, without reading the reports."""
        return [*self._folders.newest()]

    def of(self, folder: LetterFolder) -> DeadLetter:
        """Return the letter in `folder`, with its report read."""
        return self._letter(folder.id, folder.files)

    def count(self, *, reported: bool = False) -> int:
        """Return the number of letters, including remains and, unless `reported`, letters without a report."""
        return self._folders.count("reports" if reported else "letters")

    def show(self, letter_id: str) -> DeadLetter:
        """Return one letter. Raises NoSuchLetter."""
        files = self._folders.files(letter_id)
        if not files:
            raise NoSuchLetter(f"there is no dead letter {self._folders.folder}{letter_id}. Nothing was changed")
        return self._letter(letter_id, files)

    def read(self, letter_id: str, name: str) -> bytes:
        """Return the content of one of its files. Raises NoSuchLetter."""
        try:
            return self._folders.read(letter_id, name)
        except (NotFound, ValueError):
            raise NoSuchLetter(f"there is no file {name} in the dead letter {letter_id}") from None

    def requeue(self, letter_id: str, take_up: Callable[[DeadLetter], None]) -> None:
        """Pass the letter to `take_up`, and remove it once that has succeeded.

        `take_up` may be called again for the same letter if the program died before the letter was removed. Raises
        what `take_up` raises, NoSuchLetter, and StateError for a letter that is not complete.
        """
        letter = self.show(letter_id)
        if letter.fault:
            raise StateError(f"{letter_id} cannot be taken up again: {letter.fault}. Nothing was changed")
        if letter.ended:
            raise StateError(f"{letter_id} was {letter.ended} before, these are the remains: drop them")
        take_up(letter)
        self.remove(letter_id, REQUEUED)

    def drop(self, letter_id: str) -> None:
        """Remove the letter, or its remains. Raises NoSuchLetter."""
        self.show(letter_id)
        self.remove(letter_id, DROPPED)

    def remove(self, letter_id: str, how: str) -> None:
        """Remove the letter, which was REQUEUED or DROPPED (`how`). It is marked first, so that after a crash its
        remains are recognised."""
        files = self._folders.files(letter_id)  # `take_up` may have removed them already
        if REPORT in files:
            letter = self._letter(letter_id, files)
            if not letter.fault and not letter.ended:
                marked = {**letter.report, "ended": how, "ended_at_utc": stamp(self._clock.now())}
                self.write_report(letter_id, marked)
        for name in sorted(files, key=lambda name: name == REPORT):
            self._folders.delete(letter_id, name)

    def _existing(self, folder: LetterFolder) -> DeadLetter | None:
        """Return the letter in a folder, or None if another program has removed it since it was counted."""
        letter = self.of(folder)
        if not letter.fault or REPORT not in folder.files:
            return letter
        if files := self._folders.files(folder.id):
            return self._letter(folder.id, files)
        self._folders.gone(folder.id)
        return None

    def _letter(self, letter_id: str, files: Mapping[str, Entry]) -> DeadLetter:
        report, fault = self._folders.report(letter_id) if REPORT in files else ({}, f"it has no {REPORT}")
        return DeadLetter(letter_id, report, tuple(name for name in files if name != REPORT), fault)


class _LetterFolders:
    """The folders of the letters, and their files by name. Changes check the lease first, and mark letters that may
    already be counted (`retake.retrying.kept_counts`)."""

    def __init__(self, bucket: Bucket, clock: Clock, lease: Lease | None, folder: str, *, counted: bool) -> None:
        self._bucket, self._lease, self.folder, self._counted = bucket, lease, folder, counted
        self._clock, self._kept, self._marked = clock, KeptCounts(bucket, clock, LettersKept(folder)), set[str]()
        self._marked_on = ""  # the day of those marks, which expire

    def newest(self) -> Iterator[LetterFolder]:
        """Yield the folders, the newest first."""
        found = self._read()
        fresh = (LetterFolder(_newest(files), letter_id, files) for letter_id, files in found.fresh.items())
        yield from self._kept.merged(found, fresh, lambda sums: sums["newest"], self._folder_of_row)

    def count(self, what: str) -> int:
        """Return the number of "letters" or "reports" (`what`)."""
        found = self._read()
        fresh = LettersKept(self.folder).sums({it: _row(files) for it, files in found.fresh.items()})
        return sum(int(sums[what]) for sums in chain(found.stored.months.values(), [fresh]))

    def gone(self, letter_id: str) -> None:
        """Mark a letter that another program has removed, so that its count is corrected."""
        with suppress(StorageError):
            mark_changes(self._bucket, self._clock, self.folder, [letter_id])

    def files(self, letter_id: str) -> dict[str, Entry]:
        try:
            prefix = self._prefix(letter_id)
        except ValueError:
            return {}
        return {entry.key.removeprefix(prefix): entry for entry in self._bucket.list(prefix)}

    def read(self, letter_id: str, name: str) -> bytes:
        return self._bucket.read(self.key(letter_id, name))[0]

    def report(self, letter_id: str) -> tuple[Mapping[str, Any], str]:
        try:
            value = json.loads(self.read(letter_id, REPORT))
        except NotFound:
            return {}, f"it has no {REPORT}"
        except (ValueError, RecursionError) as error:
            return {}, f"{REPORT} is not JSON ({error})"
        return (value, "") if isinstance(value, dict) else ({}, f"{REPORT} is not an object")

    def write(self, letter_id: str, name: str, data: bytes) -> None:
        self._check(letter_id)
        self._bucket.write(self.key(letter_id, name), data, ANY)

    def copy(self, source: str, letter_id: str, name: str) -> None:
        self._check(letter_id)
        self._bucket.copy(source, self.key(letter_id, name))

    def delete(self, letter_id: str, name: str) -> None:
        self._check(letter_id)
        self._bucket.delete(self.key(letter_id, name))

    def key(self, letter_id: str, name: str) -> str:
        """Return the key of a file. Raises ValueError for an id or name that cannot be a file name."""
        return check_key(f"{self._prefix(letter_id)}{name}")

    def _prefix(self, letter_id: str) -> str:
        if "/" in letter_id:
            raise ValueError(f"not the id of a dead letter: {letter_id!r}")
        check_key(f"{self.folder}{letter_id}/{REPORT}")
        return f"{self.folder}{letter_id}/"

    def _check(self, letter_id: str) -> None:
        if self._lease:
            self._lease.check()
        if self._marked_on != (today := days_ago(self._clock, 0)):
            self._marked_on, self._marked = today, set()
        if letter_id not in self._marked and self._prefix(letter_id):
            mark_changes(self._bucket, self._clock, self.folder, [letter_id])
            self._marked.add(letter_id)

    def _read(self) -> CountedFolder:
        found = self._kept.read() if self._counted else self._kept.uncounted()
        if self._counted:
            self._kept.count_settled(found)
        return found

    def _folder_of_row(self, letter_id: str, row: Mapping[str, Sequence[float]]) -> LetterFolder:
        prefix = f"{self.folder}{letter_id}/"
        files = {name: Entry(f"{prefix}{name}", size, at) for name, (size, at) in _read_row(row).items()}
        return LetterFolder(_newest(files), letter_id, files)


class LettersKept(NamedTuple):
    """The kept counts of dead letters (`retake.retrying.kept_counts.KeptKind`): a row has each file's size and time."""

    folder: str = DEAD_LETTERS

    def stem(self, item_id: str) -> str:
        return f"{self.folder}{item_id}/"

    def name_of(self, key: str) -> tuple[str, str] | None:
        letter_id, slash, name = key.removeprefix(self.folder).partition("/")
        return (letter_id, name) if slash else None

    def row(self, bucket: Bucket, item_id: str, files: Mapping[str, Entry]) -> Row | None:
        return _row(files) or None

    def sums(self, rows: Mapping[str, Row]) -> Mapping[str, Any]:
        times = [_newest_of({name: at for name, (_, at) in _read_row(row).items()}) for row in rows.values()]
        reports = sum(REPORT in row for row in rows.values())
        return {"letters": len(rows), "reports": reports, "newest": max(times, default=0.0)}

    def check(self, sums: Mapping[str, Any]) -> None:
        _ = int(sums["letters"]) + int(sums["reports"]) + float(sums["newest"])


def _row(files: Mapping[str, Entry]) -> dict[str, tuple[int, float]]:
    return {name: (entry.size, entry.modified) for name, entry in files.items()}


def _read_row(row: Mapping[str, Sequence[float]]) -> dict[str, tuple[int, float]]:
    """Return the size and time of each file in a row. Raises one of DECODING_ERRORS for an invalid row."""
    return {name: (int(size), float(at)) for name, (size, at) in row.items()}


def _file_name(name: str) -> str:
    if name == REPORT:
        raise ValueError(f"{REPORT} is the report itself: give the file another name")
    return name


def _newest(files: Mapping[str, Entry]) -> float:
    return _newest_of({name: entry.modified for name, entry in files.items()})


def _newest_of(times: Mapping[str, float]) -> float:
    """Return the time of the report, or of the newest file if there is no report."""
    return times[REPORT] if REPORT in times else max(times.values())
