"""The JSON document of a run in a bucket.

It contains the run's last events, so that a transition and its events are one write. Older events are in segments:
documents that are written once and never changed. The document names its segments; any other was left behind by a crash
and is ignored. The document is readable for people, and unknown keys are kept.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from retake.clock import exact_stamp, parse_stamp
from retake.errors import StateError
from retake.runs.run import BY_WORKER, CHANGED, ERROR, Event, Run, run_id_of
from retake.runs.states import RunStatus

MAX_EVENTS = 400
"""Maximum number of events in a run's document: some 200 kB, rewritten with each event."""

MAX_DOCUMENT_BYTES = 1_000_000
"""Maximum bytes of a run's document, unless a single event is larger."""

MAX_SEGMENTS = 100
"""From this number of segments on, a run keeps transitions, errors, results and completed steps, but no plain notes."""

DROPPED = "run.events.dropped"
"""The event in place of dropped notes: their number (`count`), the time of the last one (`until`), and `text`."""

KEPT = (CHANGED, ERROR, "run.result", "run.step.")
"""Prefixes of the kinds of event that are never dropped."""


def run_key(run_id: str) -> str:
    return f"runs/{run_id}.json"


def segment_key(run_id: str, segment: str) -> str:
    return f"runs/events/{run_id}/{segment}.json"


class RunDocument(NamedTuple):
    """The document of a run, parsed."""

    run: Run
    raw: Mapping[str, Any]  # as read

    @property
    def next_seq(self) -> int:
        """The number of the next event."""
        events = self.raw["events"]
        return int(events[-1]["seq"]) + 1 if events else 1

    @property
    def segments(self) -> list[str]:
        """The names of the segments with the older events, in order."""
        return list(self.raw.get("segments", []))

    def events(self, key: str) -> list[Event]:
        """Return the events in the document itself. Raises StateError, naming `key`, if one is invalid."""
        return events_in(key, self.run.run_id, self.raw["events"])

    def after(self, run: Run, events: Sequence[Event] = ()) -> "RunDocument":
        """Return the document with `run` in its new state and `events` appended."""
        grown = [*self.raw["events"], *(_as_json(event) for event in events)]
        return RunDocument(run, {**self.raw, **_fields(run), "events": grown})

    def encode(self) -> bytes:
        """Return the document as stored. Raises StateError."""
        return _encoded(run_key(self.run.run_id), self.raw)


class Segment(NamedTuple):
    """A document with the older events of a run, to be written."""

    key: str
    data: bytes


def shortened(doc: RunDocument, max_events: int, *, too_large: bool) -> tuple[RunDocument, Segment | None]:
    """Return `doc` with fewer events, and the segment to write before it, if any.

    The oldest three quarters of the events move to the segment, or half of them if the document is `too_large` without
    having more than `max_events`. A segment is named by its content, so that writing it twice does no harm.
    """
    from hashlib import sha256

    events, segments = doc.raw["events"], doc.segments
    split = max(1, len(events) // 2 if too_large else len(events) - max(1, max_events // 4))
    old, new = events[:split], events[split:]
    if len(segments) >= MAX_SEGMENTS:
        kept = without_notes(old)
        if len(kept) <= len(old) // 2 and not too_large:
            return RunDocument(doc.run, {**doc.raw, "events": [*kept, *new]}), None
        old = kept
    key, raw = run_key(doc.run.run_id), {"run_id": doc.run.run_id, "events": old}
    data = _encoded(key, raw)
    name = f"{len(segments) + 1:04}-{sha256(data).hexdigest()[:12]}"
    shorter = RunDocument(doc.run, {**doc.raw, "segments": [*segments, name], "events": new})
    return shorter, Segment(segment_key(doc.run.run_id, name), data)


def without_notes(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `events` without plain notes. An event in place of the first note says how many were dropped."""
    gone = [it for it in events if not it["kind"].startswith(KEPT)]
    if not gone:
        return [dict(it) for it in events]
    last, counts = gone[-1], [it["payload"].get("count") if it["kind"] == DROPPED else 1 for it in gone]
    count = sum(it if isinstance(it, int) else 1 for it in counts)
    until = last["payload"].get("until", last["at"]) if last["kind"] == DROPPED else last["at"]
    text = f"{count} notes were dropped, the last of them of {until}"
    mark = {**gone[0], "kind": DROPPED, "payload": {"count": count, "until": until, "text": text}}
    kept = (it for it in events if it is gone[0] or it["kind"].startswith(KEPT))
    return [mark if it is gone[0] else dict(it) for it in kept]


def parse_segment(key: str, run_id: str, data: bytes) -> list[Event]:
    """Return the events of the segment at `key`. Raises StateError."""
    raw = _object_of(key, data)
    events = raw.get("events")
    if raw.get("run_id") != run_id or not isinstance(events, list):
        _refuse(key, "events", f"are not those of {run_id}")
    return events_in(key, run_id, events)


def events_in(key: str, run_id: str, events: Sequence[Any]) -> list[Event]:
    """Return `events`, parsed. Raises StateError, naming `key`, if one is invalid."""
    return [_event(key, number, run_id, it) for number, it in enumerate(events)]


def _encoded(key: str, raw: Mapping[str, Any]) -> bytes:
    try:
        return _lines(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can represent and UTF-8 cannot
        return _lines(raw, ensure_ascii=True).encode()
    except RecursionError:
        _refuse(key, "the whole document", "is nested too deep to be saved")


_ASCII, _UNICODE = json.JSONEncoder().encode, json.JSONEncoder(ensure_ascii=False).encode
"""The same as `json.dumps`, which makes a new encoder for each call with options."""


def _lines(raw: Mapping[str, Any], *, ensure_ascii: bool) -> str:
    """Return readable JSON, with a line for each key and each event.

    `strict_json.encode` would be too slow for a document that is rewritten with each event: it encodes in Python, not
    in C. Lone surrogates are kept, as it does.
    """

    written = _ASCII if ensure_ascii else _UNICODE

    def shown(key: str, value: Any) -> str:
        if key != "events" or not value:
            return written(value)
        return "[\n    " + ",\n    ".join(map(written, value)) + "\n  ]"

    return "{\n  " + ",\n  ".join(f"{written(key)}: {shown(key, value)}" for key, value in raw.items()) + "\n}\n"


def new_document(run: Run, events: Sequence[Event]) -> RunDocument:
    """Return the first document of a run."""
    return RunDocument(run, {"events": []}).after(run, events)


def parse_run(key: str, data: bytes) -> RunDocument:
    """Return the run's document at `key`. Raises StateError, whose message has the key, the field and the fault."""
    raw = _object_of(key, data)
    events, segments = raw.get("events"), raw.get("segments", [])
    if not isinstance(events, list) or not events:
        _refuse(key, "events", "is not a list that begins with the creation")
    for number, event in enumerate(events):
        _event(key, number, "", event)
    if not isinstance(segments, list) or not all(isinstance(it, str) and _SEGMENT.fullmatch(it) for it in segments):
        _refuse(key, "segments", "is not a list of names of segments")
    counted = raw if "retries" in raw and "crashes" in raw else {**_counted(events), **raw}
    run = Run(**{field: _read(key, counted, field, read) for field, read in RUN_FIELDS.items()})
    if run_key(run.run_id) != key or run_id_of(run.idempotency_key) != run.run_id:
        _refuse(key, "run_id", "does not match the key and the idempotency_key")
    if (run.next_retry_at is not None) != (run.status is RunStatus.RETRY_SCHEDULED):
        _refuse(key, "next_retry_at", f"is for {RunStatus.RETRY_SCHEDULED} alone, and needed there")
    return RunDocument(run, raw)


_SEGMENT = re.compile(r"[0-9]{4,9}-[0-9a-f]{12}")


def _counted(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the counters that documents of an older version lack, counted from the events."""
    changes = [it["payload"] for it in events if it["kind"] == CHANGED]
    retries = [it for it in changes if it.get("status") == RunStatus.RETRY_SCHEDULED.value]
    cut = [it for it in changes if it.get("status") == RunStatus.INTERRUPTED.value]
    return {"retries": len(retries), "crashes": len([it for it in cut if it.get("actor") != BY_WORKER])}


def _object_of(key: str, data: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        _refuse(key, "the whole document", f"not JSON ({error})")
    if not isinstance(raw, dict):
        _refuse(key, "the whole document", "is not an object")
    return raw


def _fields(run: Run) -> dict[str, Any]:
    return {
        field: exact_stamp(value) if isinstance(value, datetime) else value for field, value in run._asdict().items()
    } | {"status": run.status.value}


def _as_json(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "kind": event.kind,
        "at": exact_stamp(event.at),
        "trace_id": event.trace_id,
        "payload": event.payload,
    }


def _event(key: str, number: int, run_id: str, raw: Any) -> Event:
    if not isinstance(raw, dict):
        _refuse(key, f"events[{number}]", "is not an object")
    values = {field: _read(key, raw, field, read, f"events[{number}].") for field, read in EVENT_FIELDS.items()}
    return Event(run_id, **values)


def _read(key: str, raw: Mapping[str, Any], field: str, read: Callable[[Any], Any], prefix: str = "") -> Any:
    try:
        return read(raw.get(field))
    except (ValueError, TypeError) as error:
        _refuse(key, prefix + field, str(error))


def _refuse(key: str, field: str, what: str) -> NoReturn:
    raise StateError(f"{key}: {field}: {what}. It is left as it is; fix it or remove it")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{_shown(value)} is not text")
    return value


def _any_text(value: Any) -> str:
    return _text(value) if value else ""


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def count_from(least: int) -> Callable[[Any], int]:
    """Return a reader of whole numbers that are not below `least`."""

    def read(value: Any) -> int:
        if type(value) is not int or value < least:
            raise ValueError(f"{_shown(value)} is not a whole number from {least} up")
        return value

    return read


def _moment(value: Any) -> datetime:
    try:
        return parse_stamp(_text(value))
    except ValueError:
        raise ValueError(f"{_shown(value)} is not a time (ISO 8601)") from None


def _moment_or_none(value: Any) -> datetime | None:
    return None if value is None else _moment(value)


def _status(value: Any) -> RunStatus:
    if value not in list(RunStatus):
        raise ValueError(f"{_shown(value)} is not one of {', '.join(RunStatus)}")
    return RunStatus(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is not an object")  # noqa: TRY004  the same error for every field
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "…"


RUN_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "run_id": _text,
    "task_id": _text,
    "attempt": count_from(1),
    "idempotency_key": _text,
    "status": _status,
    "created_at": _moment,
    "updated_at": _moment,
    "version": count_from(1),
    "pipeline": _any_text,
    "next_retry_at": _moment_or_none,
    "error_code": _text_or_none,
    "worker": _text_or_none,
    "heartbeat_at": _moment_or_none,
    "resumes": count_from(0),
    "retries": count_from(0),
    "crashes": count_from(0),
}
"""Readers of a run's fields. Each raises ValueError, whose message says what is wrong with the value."""

EVENT_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "seq": count_from(1),
    "kind": _text,
    "at": _moment,
    "trace_id": _text,
    "payload": _object,
}
