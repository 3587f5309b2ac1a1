"""The paid calls of one pipeline: in the records of ended generations, in dead letters, and in its document.

The calls of a generation are in the document while it is under way, and in spend/ID.json once it has ended. Calls in
the document for work that belonged to no generation are kept in dead_letters/before-ID/.
"""

import json
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from retake.bucket import ABSENT, Conflict, Entry, this_process
from retake.bucket.contract import is_key
from retake.bucket.wrappers import LeasedBucket
from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.view import CheckView, Unparsable
from retake.clock import parse_stamp
from retake.document_schema import DocumentSchema, InvalidDocument
from retake.foreign_text import shown
from retake.paid.bills import Call, calls_of, day_of
from retake.paid.day_book import Known, is_day
from retake.retrying.dead_letters import DEAD_LETTERS, REPORT
from retake.retrying.kept_counts import mark_changes
from retake.strict_json import encode

OUTCOMES = frozenset({"accepted", "done", "wasted", "unknown"})
"""The outcomes of paid calls that count."""

_ENDINGS = frozenset({"done", "failed", "cancelled"})
_NOBODYS = f"{DEAD_LETTERS}before-"


class BillPlaces(NamedTuple):
    """Where a pipeline records its payments. Keys are relative to its part of the bucket."""

    pipeline: str  # as in the day books: "story", "story/CHANNEL"
    prefix: str  # of the pipeline's part; "" or ending in "/"
    lease: str  # the lease that guards that part
    document: str  # with "paid_calls" and "pending_call"
    present: str  # the document with "generation_id", which names the generation under way
    flag: str  # the document whose "processing_lock" is true while a tick works
    known: Callable[[Mapping[str, Any]], Known]  # maps the document to what it says about its last reservation
    spend: str = "spend/"

    def record_of(self, generation_id: object) -> str:
        """Return the key of a generation's record."""
        return f"{self.spend}{generation_id}.json"

    def is_record(self, key: str) -> bool:
        name = key.removeprefix(self.spend)
        return key.startswith(self.spend) and name.endswith(".json") and "/" not in name

    def is_nobodys(self, key: str) -> bool:
        """Return whether the object holds calls for work that belonged to no generation."""
        return key.startswith(_NOBODYS) and key.endswith(f"/{self.document.rpartition('/')[2]}")

    def owner_of(self, key: str) -> str:
        """Return the generation of a record, or "" for work that belonged to none."""
        return key.removeprefix(self.spend).removesuffix(".json") if self.is_record(key) else ""

    def under_way(self, part: CheckView) -> str:
        """Return the generation under way, or "" if there is none or the document does not say."""
        value = (_object_or_none(part, self.present) or {}).get("generation_id")
        return value if isinstance(value, str) and is_key(self.record_of(value)) else ""


class PaidSoFar(NamedTuple):
    """What a pipeline's document says about its payments now."""

    known: Known
    pending_usd: float  # the price of the call under way
    interrupted: bool  # a tick is working or died: the next one enters what this one did not enter into the book


class BillExamination(Examination):
    """The paid calls of one pipeline. Its subjects are the documents that contain calls.

    They are read into a temporary table, from which the sums of the day books are computed; `refresh` brings the table
    up to date.
    """

    def __init__(self, places: BillPlaces) -> None:
        self.title = f"bills of {places.pipeline}"
        self.places = places
        self.table = BillTable()

    # --- an examination ---

    def subjects(self, view: CheckView) -> Iterator[str]:
        part = view.below(self.places.prefix)
        for entry in part.entries(self.places.spend):
            if self.places.is_record(entry.key):
                yield entry.key
        for entry in part.entries(DEAD_LETTERS):
            if entry.key.endswith(f"/{REPORT}") or self.places.is_nobodys(entry.key):
                yield entry.key
        yield self.places.document

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        part = view.below(self.places.prefix)
        if subject == self.places.document:
            yield from self._document(part)
        elif subject.endswith(f"/{REPORT}"):
            yield from self._letter(part, subject)
        else:
            yield from self._record(part, subject)

    def busy(self, view: CheckView) -> bool:
        return view.below(self.places.prefix).bucket.holder(self.places.lease) is not None

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        """Rewrite the record of a dead letter's generation from the calls in its report."""
        if not subject.endswith(f"/{REPORT}"):
            return []
        with self.leased(view) as bucket:
            part = view.below(self.places.prefix)
            report = _object_or_none(part, subject)
            if report is None or not any(it.repairable for it in self._letter(part, subject)):
                return []
            key = self.places.record_of(report["generation_id"])
            value = {
                "generation_id": report["generation_id"],
                "outcome": "cancelled" if report.get("cancelled") else "failed",
                "ended_at_utc": report.get("failed_at_utc"),
                "paid_calls": report.get("paid_calls"),
            }
            try:
                mark_changes(bucket, view.scope.clock, self.places.spend, [self.places.owner_of(key)])
                bucket.write(key, encode(value), ABSENT)
            except Conflict:
                return []
        return [f"{part.where(key)} was written from the dead letter's report"]

    def knows(self, key: str) -> bool:
        name = key.removeprefix(self.places.prefix)
        return key.startswith(self.places.prefix) and self.places.is_record(name)

    # --- for the day books ---

    def leased(self, view: CheckView) -> LeasedBucket:
        """Return the pipeline's part of the bucket under its lease. Raises LeaseHeld, StorageError."""
        bucket = view.below(self.places.prefix).bucket
        return LeasedBucket(bucket, bucket.lease(self.places.lease, this_process()))

    def refresh(self, view: CheckView) -> PaidSoFar | None:
        """Bring the table up to date, reading only what has changed. Return what the document says, or None if it is
        unreadable."""
        part = view.below(self.places.prefix)
        self.table.begin()
        for folder in (self.places.spend, _NOBODYS):
            for entry in part.entries(folder):
                if (self.places.is_record(entry.key) or self.places.is_nobodys(entry.key)) and not self.table.has(
                    entry
                ):
                    self._read(part, entry)
        self.table.end(self.places.document)
        try:
            document = self._read_document(part)
            known = self.places.known(document)
        except (Unparsable, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return None
        pending = document.get("pending_call")
        interrupted = (_object_or_none(part, self.places.flag) or {}).get("processing_lock") is True
        return PaidSoFar(known, usd_of(pending) if isinstance(pending, Mapping) else 0.0, interrupted)

    # --- one document each ---

    def _record(self, part: CheckView, key: str) -> Iterator[CheckFinding]:
        entry = part.entry(key)
        if entry is None:
            return
        where, owner = part.where(key), self.places.owner_of(key)
        part.looked_at["bills"] += 1
        try:
            value = self._read(part, entry)
        except Unparsable as error:
            yield found("spend-record-invalid", where, str(error))
            return
        if owner and value is not None:
            yield from (found("spend-record-invalid", where, it) for it in _faults_of_record(value, owner))
        yield from _faults_of_calls(where, calls_of(value))
        if owner:
            yield from self._paid_elsewhere(part, key)

    def _paid_elsewhere(self, part: CheckView, key: str) -> Iterator[CheckFinding]:
        for task, other in self.table.shared_tasks(key):
            if any(call.get("task_id") == task for call in calls_of(_object_or_none(part, other))):
                yield found("paid-twice", part.where(key), f"the task {task} is billed in {part.where(other)} too")

    def _letter(self, part: CheckView, key: str) -> Iterator[CheckFinding]:
        """Compare the calls in a generation's dead letter with those in its record."""
        report = _object_or_none(part, key)  # faults of letters are found by another examination
        if report is None or report.get("ended") or report.get("kind") not in (None, "generation"):
            return
        generation_id, calls = report.get("generation_id"), calls_of(report)
        record = self.places.record_of(generation_id)
        if generation_id != key.split("/")[-2] or (there := self._recorded(part, record)) == _texts(calls):
            return
        finished = (_object_or_none(part, record) or {}).get("outcome") == "done"
        if there and finished and there[: len(calls)] == _texts(calls):
            return  # a requeue died before it removed the letter ("letter-outlived")
        if self.places.under_way(part) == generation_id:
            return  # requeued: the letter is about to be removed or rewritten
        if there is not None:
            yield found("bills-disagree", part.where(key), _difference(calls, there, part.where(record)))
        elif calls and not part.entry(record):
            what = f"the dead letter of {generation_id} has {len(calls)} paid calls, and the record is not there"
            yield found("spend-record-missing", part.where(record), what)

    def _document(self, part: CheckView) -> Iterator[CheckFinding]:
        """Compare the calls in the document with those in the record from before the generation was requeued."""
        try:
            calls = calls_of(self._read_document(part))
        except Unparsable:
            return  # found by the examination of documents
        where, present = part.where(self.places.document), self.places.under_way(part)
        yield from _faults_of_calls(where, calls)
        before = self._recorded(part, record := self.places.record_of(present)) if present and calls else None
        if before is not None and _texts(calls)[: len(before)] != before:
            yield found("bills-disagree", where, _difference(calls, before, part.where(record)))

    def _recorded(self, part: CheckView, key: str) -> list[str] | None:
        """Return the calls in a record as texts, or None if there is no record or it is invalid."""
        entry = part.entry(key)
        if entry is None:
            return None
        if not self.table.has(entry):
            try:
                self._read(part, entry)
            except Unparsable:
                return None
        return self.table.texts(key)

    def _read(self, part: CheckView, entry: Entry) -> dict[str, Any] | None:
        """Read a record into the table. Raises Unparsable."""
        owner = self.places.owner_of(entry.key)
        try:
            value = part.document(entry.key)
        except Unparsable:
            self.table.put(entry, owner, None)
            raise
        self.table.put(entry, owner, calls_of(value) if value is not None and has_calls(value) else None)
        return value

    def _read_document(self, part: CheckView) -> dict[str, Any]:
        """Read the document into the table. Raises Unparsable."""
        document = part.document(self.places.document) or {}
        entry = Entry(self.places.document, 0, 0.0)
        self.table.put(entry, self.places.under_way(part), calls_of(document), under_way=True)
        return document


class BillTable:
    """The paid calls of one pipeline, in a temporary database so that memory does not grow with their number."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)  # "": a private file, deleted when it is closed
        weakref.finalize(self, self._db.close)
        self._db.executescript(
            "CREATE TABLE records (key TEXT PRIMARY KEY, size INTEGER, modified REAL, owner TEXT, under_way INTEGER,"
            " whole INTEGER, round INTEGER) WITHOUT ROWID;"
            "CREATE TABLE calls (key TEXT, number INTEGER, day TEXT, usd REAL, task TEXT, text TEXT,"
            " PRIMARY KEY (key, number)) WITHOUT ROWID;"
            "CREATE INDEX by_day ON calls (day); CREATE INDEX by_task ON calls (task);"
            "CREATE INDEX by_text ON calls (text); CREATE INDEX by_owner ON records (owner);"
        )
        self._round = 0

    def put(self, entry: Entry, owner: str, calls: Sequence[Call] | None, *, under_way: bool = False) -> None:
        """Replace the calls of a record (None: it is invalid). `owner` is its generation, or "" for nobody's work."""
        key = entry.key
        self._db.execute("DELETE FROM calls WHERE key = ?", (key,))
        row = (key, entry.size, entry.modified, owner, under_way, calls is not None, self._round)
        self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        rows = (
            (key, number, _storable(day_of(call)), usd_of(call), _storable(_task_of(call)), _text(call))
            for number, call in enumerate(calls or ())
        )
        self._db.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?)", rows)

    def has(self, entry: Entry) -> bool:
        """Return whether the current version of the record has been read, and mark it as existing."""
        sql = "UPDATE records SET round = ? WHERE key = ? AND size = ? AND modified = ?"
        return self._db.execute(sql, (self._round, *entry)).rowcount > 0

    def begin(self) -> None:
        """Begin a pass through all records."""
        self._round += 1

    def end(self, document: str) -> None:
        """End a pass: forget the records that neither `has` nor `put` has seen since `begin`, except `document`."""
        gone = "key IN (SELECT key FROM records WHERE round < ? AND key != ?)"
        self._db.execute(f"DELETE FROM calls WHERE {gone}", (self._round, document))  # noqa: S608
        self._db.execute("DELETE FROM records WHERE round < ? AND key != ?", (self._round, document))

    def texts(self, key: str) -> list[str] | None:
        """Return the calls of a record as texts, or None if it is invalid."""
        if not self._db.execute("SELECT 1 FROM records WHERE key = ? AND whole", (key,)).fetchone():
            return None
        return [text for (text,) in self._db.execute("SELECT text FROM calls WHERE key = ? ORDER BY number", (key,))]

    def shared_tasks(self, key: str) -> list[tuple[str, str]]:
        """Return the tasks that a record shares with other generations' records of lower keys, each with that key."""
        sql = (
            "SELECT DISTINCT a.task, b.key FROM calls a JOIN calls b ON b.task = a.task AND b.key < a.key"
            " JOIN records r ON r.key = b.key WHERE a.key = ? AND a.task != '' AND r.owner != '' AND NOT r.under_way"
            " ORDER BY a.task, b.key"
        )
        return self._db.execute(sql, (key,)).fetchall()

    def usd_of(self, day: str) -> float:
        """Return the sum of the calls that count on a day, in US dollars.

        The document of the generation under way contains all calls of its older record. A call for work of no
        generation counts unless a generation has the same call: a requeue that died leaves such a copy.
        """
        (usd,) = self._db.execute(f"SELECT coalesce(sum(c.usd), 0) {_COUNTED} AND c.day = ?", (day,)).fetchone()
        return round(float(usd), 6)

    def days(self) -> list[str]:
        """Return the days on which calls count."""
        return [day for (day,) in self._db.execute(f"SELECT DISTINCT c.day {_COUNTED} AND c.day != '' ORDER BY c.day")]

    @property
    def whole(self) -> bool:
        """Whether every record could be read."""
        return not self._db.execute("SELECT 1 FROM records WHERE NOT whole LIMIT 1").fetchone()


_COUNTED = """FROM calls c JOIN records r ON r.key = c.key WHERE (
    (r.owner = '' AND NOT EXISTS (SELECT 1 FROM calls d JOIN records o ON o.key = d.key
                                  WHERE d.text = c.text AND o.owner != ''))
    OR (r.owner != '' AND (r.under_way OR NOT EXISTS (
            SELECT 1 FROM records u JOIN calls v ON v.key = u.key WHERE u.owner = r.owner AND u.under_way)))
    )"""


# --- calls ---


def has_calls(document: Mapping[str, Any]) -> bool:
    """Return whether `paid_calls` is a list of objects."""
    calls = document.get("paid_calls")
    return isinstance(calls, list) and all(isinstance(it, dict) for it in calls)


def is_price(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e9  # type: ignore[operator]


def usd_of(call: Call) -> float:
    """Return the price of a call in US dollars, or 0 if it has none."""
    price = call.get("price_usd")
    return float(price) if is_price(price) else 0.0  # type: ignore[arg-type]


def _task_of(call: Call) -> str:
    task = call.get("task_id")
    return task if isinstance(task, str) else ""


def _storable(text: str) -> str:
    """Return text that the table can hold: JSON may contain half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()


def _text(call: Call) -> str:
    return json.dumps(call, sort_keys=True)


def _texts(calls: Sequence[Call]) -> list[str]:
    return [_text(call) for call in calls]


@cache
def _schema() -> DocumentSchema:
    return DocumentSchema("own_paid_call")


def _faults_of_record(record: Mapping[str, Any], name: str) -> Iterator[str]:
    if (own := record.get("generation_id")) != name:
        yield f"it is the record of {shown(own)} by what it says, and that of {name} by its name"
    if record.get("outcome") not in sorted(_ENDINGS):
        yield f"outcome: {shown(record.get('outcome'))} is not one of {', '.join(sorted(_ENDINGS))}"
    if not has_calls(record):
        yield "paid_calls: not a list of objects"
    try:
        parse_stamp(record["ended_at_utc"])
    except (KeyError, TypeError, ValueError, AttributeError):
        yield "ended_at_utc: no time"


def _faults_of_calls(where: str, calls: Sequence[Call]) -> Iterator[CheckFinding]:
    intents: dict[tuple[object, ...], int] = {}
    tasks: dict[str, int] = {}
    for number, call in enumerate(calls, 1):
        if wrong := _fault_of_call(call):
            yield found("paid-call-invalid", where, f"call {number}: {wrong}")
        first = tasks.setdefault(task, number) if (task := _task_of(call)) else number
        if not call.get("possible_duplicate") and call.get("requested_at_utc"):
            intent = tuple(json.dumps(call.get(it)) for it in ("step", "call", "attempt", "requested_at_utc"))
            first = min(first, intents.setdefault(intent, number))
        if first != number:
            yield found("paid-twice", where, f"calls {first} and {number} are bills for one intent")


def _fault_of_call(call: Call) -> str:
    try:
        _schema().check(call)
    except InvalidDocument as error:
        return str(error)
    if "price_usd" in call and not is_price(call["price_usd"]):
        return f"price_usd: {shown(call['price_usd'])} is not a price"
    if "counted_on" in call and not is_day(call["counted_on"]):
        return f"counted_on: {shown(call['counted_on'])} is not a day, YYYY-MM-DD"
    if "outcome" in call and call["outcome"] not in sorted(OUTCOMES):
        return f"outcome: {shown(call['outcome'])} is not one of {', '.join(sorted(OUTCOMES))}"
    return ""


def _difference(calls: Sequence[Call], others: Sequence[str], where: str) -> str:
    """Return in words how two lists of a generation's calls differ."""
    if len(calls) != len(others):
        return f"it has {len(calls)} paid calls, {where} has {len(others)}"
    pairs = zip(_texts(calls), others, strict=True)
    return f"its paid call {next(n for n, (a, b) in enumerate(pairs, 1) if a != b)} is not that of {where}"


def _object_or_none(part: CheckView, key: str) -> dict[str, Any] | None:
    """Return a document, or None if it does not exist or cannot be parsed."""
    try:
        return part.document(key)
    except Unparsable:
        return None
