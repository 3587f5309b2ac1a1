"""Dead letters: what failed for good, kept with all that belongs to it until somebody decides what becomes of it.

    dead_letters/ID/report.json     what failed, when, and why; the other files of the folder belong to it

Seed 003, «NR.NSI.1 … Действия при неудаче»: «После 3 неудач: запись в Dead Letter Queue (DLQ)». Letters of any kind can
be listed, shown and dropped here; how one is taken up again is the affair of whoever wrote it.

The orders of writes are chosen for the crash in between. The report is written last, and removed last. What is to go is
marked in the report first, in one write: before that write the letter is whole, after it the letter is gone but for
files that lie about. Those are still seen, and dropping them again finishes it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from retake.bucket import ANY, Bucket, Entry, Lease, NotFound, check_key
from retake.clock import Clock, parse_stamp, stamp
from retake.errors import StateError

DEAD_LETTERS = "dead_letters/"
REPORT = "report.json"

REQUEUED = "requeued"
DROPPED = "dropped"


class NoSuchLetter(StateError):
    """There is no dead letter of that id."""


class DeadLetter(NamedTuple):
    """One letter. Its report is read tolerantly: programs of several kinds and ages write them."""

    id: str
    report: Mapping[str, Any]  # {} if there is none that can be read
    files: tuple[str, ...]  # the names of the others in its folder
    fault: str = ""  # why there is no report

    @property
    def failed_at(self) -> datetime | None:
        for value in (self.report.get("failed_at_utc"), self.error.get("timestamp")):
            if isinstance(value, str):
                with suppress(ValueError):
                    return parse_stamp(value)
        return None

    @property
    def error(self) -> Mapping[str, Any]:
        """The standard error record of the last failure; {} if the report has none."""
        error = self.report.get("last_error")
        return error if isinstance(error, Mapping) else {}

    @property
    def error_code(self) -> str | None:
        code = self.error.get("error_code") or self.error.get("code")
        return str(code) if code else None

    @property
    def kind(self) -> str:
        """What kind of thing failed; «generation» for the story's, whose reports say no kind."""
        default = "generation" if "generation_id" in self.report else ""
        return str(self.report.get("kind") or default)

    @property
    def item(self) -> Any:
        """What failed, as it was put here; None if it lies in the files."""
        return self.report.get("item")

    @property
    def ended(self) -> str:
        """REQUEUED or DROPPED if these are only the remains of a letter; else «»."""
        return str(self.report.get("ended") or "")


class DeadLetters:
    """The letters in `folder` (which ends in «/») of `bucket`. Changes are made under `lease`, where there is one.

    Every method may raise StorageError, and those that change something LeaseLost.
    """

    def __init__(self, bucket: Bucket, clock: Clock, *, lease: Lease | None = None, folder: str = DEAD_LETTERS) -> None:
        self._bucket, self._clock, self._lease, self._folder = bucket, clock, lease, folder

    def put(
        self,
        letter_id: str,
        kind: str,
        item: Any,
        error: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Keep `item` (JSON) with the standard error record of what it failed of, and its files, by name.

        Putting it twice leaves one letter, the later one, with the files of both. Raises ValueError for an id or a name
        that no file can have.
        """
        files = files or {}
        for name in files:
            if name == REPORT:
                raise ValueError(f"{REPORT} is the report itself: give the file another name")
            self._key(letter_id, name)
        now = stamp(self._clock.now())
        report = {"id": letter_id, "kind": kind, "failed_at_utc": now, "last_error": dict(error), "item": item}
        data = _encoded({**report, "files": [*files]})
        if (there := self._files(letter_id)) and self._letter(letter_id, there).ended:
            self._remove(letter_id, DROPPED)  # the remains of another letter are no part of this one
        for name, content in files.items():
            self._write(letter_id, name, content)
        self._write(letter_id, REPORT, data)

    def list(self, limit: int | None = 50) -> list[DeadLetter]:
        """The letters, the newest first by the store's clock. Reads no more than the reports of these."""
        folders = sorted(self._folders().items(), key=lambda it: (_newest(it[1]), it[0]), reverse=True)
        return [self._letter(letter_id, files) for letter_id, files in folders[:limit]]

    def count(self) -> int:
        return len(self._folders())

    def show(self, letter_id: str) -> DeadLetter:
        """Raises NoSuchLetter."""
        files = self._files(letter_id)
        if not files:
            raise NoSuchLetter(f"there is no dead letter {self._folder}{letter_id}. Nothing was changed")
        return self._letter(letter_id, files)

    def read(self, letter_id: str, name: str) -> bytes:
        """One of its files. Raises NoSuchLetter."""
        try:
            return self._bucket.read(self._key(letter_id, name))[0]
        except (NotFound, ValueError):
            raise NoSuchLetter(f"there is no file {name} in the dead letter {letter_id}") from None

    def requeue(self, letter_id: str, take_up: Callable[[DeadLetter], None]) -> None:
        """Have it taken up again; it goes once that has succeeded.

        `take_up` may be called a second time for the same letter, if the program died before the letter was gone.
        Raises what `take_up` raises; NoSuchLetter; StateError for what is not, or not any more, a whole letter.
        """
        letter = self.show(letter_id)
        if letter.fault:
            raise StateError(f"{letter_id} cannot be taken up again: {letter.fault}. Nothing was changed")
        if letter.ended:
            raise StateError(f"{letter_id} was {letter.ended} before, these are the remains: drop them")
        take_up(letter)
        self._remove(letter_id, REQUEUED)

    def drop(self, letter_id: str) -> None:
        """Remove it, or what is left of it. Raises NoSuchLetter."""
        self.show(letter_id)
        self._remove(letter_id, DROPPED)

    def _remove(self, letter_id: str, how: str) -> None:
        files = self._files(letter_id)  # who took it up may have removed it already
        if REPORT in files:
            letter = self._letter(letter_id, files)
            if not letter.fault and not letter.ended:
                marked = {**letter.report, "ended": how, "ended_at_utc": stamp(self._clock.now())}
                self._write(letter_id, REPORT, _encoded(marked))
        for name in sorted(files, key=lambda name: name == REPORT):
            self._check()
            self._bucket.delete(self._key(letter_id, name))

    def _letter(self, letter_id: str, files: Mapping[str, Entry]) -> DeadLetter:
        report, fault = self._report(letter_id) if REPORT in files else ({}, f"it has no {REPORT}")
        return DeadLetter(letter_id, report, tuple(name for name in files if name != REPORT), fault)

    def _report(self, letter_id: str) -> tuple[Mapping[str, Any], str]:
        try:
            value = json.loads(self._bucket.read(self._key(letter_id, REPORT))[0])
        except NotFound:
            return {}, f"it has no {REPORT}"
        except (ValueError, RecursionError) as error:
            return {}, f"{REPORT} is not JSON ({error})"
        return (value, "") if isinstance(value, dict) else ({}, f"{REPORT} is no object")

    def _folders(self) -> dict[str, dict[str, Entry]]:
        return _by_id(self._folder, self._bucket.list(self._folder))

    def _files(self, letter_id: str) -> dict[str, Entry]:
        try:
            prefix = self._prefix(letter_id)
        except ValueError:
            return {}
        return _by_id(self._folder, self._bucket.list(prefix)).get(letter_id, {})

    def _write(self, letter_id: str, name: str, data: bytes) -> None:
        self._check()
        self._bucket.write(self._key(letter_id, name), data, ANY)

    def _check(self) -> None:
        if self._lease:
            self._lease.check()

    def _key(self, letter_id: str, name: str) -> str:
        """Raises ValueError."""
        return check_key(f"{self._prefix(letter_id)}{name}")

    def _prefix(self, letter_id: str) -> str:
        """Raises ValueError."""
        if "/" in letter_id:
            raise ValueError(f"not the id of a dead letter: {letter_id!r}")
        check_key(f"{self._folder}{letter_id}/{REPORT}")
        return f"{self._folder}{letter_id}/"


def _by_id(folder: str, entries: Iterable[Entry]) -> dict[str, dict[str, Entry]]:
    found: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        letter_id, slash, name = entry.key.removeprefix(folder).partition("/")
        if slash:
            found.setdefault(letter_id, {})[name] = entry
    return found


def _newest(files: Mapping[str, Entry]) -> float:
    report = files.get(REPORT)
    return report.modified if report else max(entry.modified for entry in files.values())


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n"
