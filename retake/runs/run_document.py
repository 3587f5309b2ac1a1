"""A run and all its events as one JSON document: what a bucket keeps of it, so that a transition and its event are one
write.

A document is readable for people, keys that nobody here knows stay as they are, and it does not grow without end: of
more than `MOST_EVENTS` events the oldest and the newest stay, and one in their midst says how many were let go.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from retake.clock import parse_stamp
from retake.errors import StateError
from retake.runs.bucket_names import run_key
from retake.runs.run import Event, Run, run_id_of
from retake.runs.states import RunStatus

MOST_EVENTS = 1000
"""A run in a bucket keeps no more: some half a megabyte, written anew with each event."""

OLDEST_KEPT = 100
"""Of them, the oldest: how it began. All others are the newest."""

DROPPED = "run.events.dropped"
"""The event in place of those that were let go. Its payload: `count`, and `until`, the time of the last of them."""


class RunDocument(NamedTuple):
    """A run with its events, and whatever else its document holds."""

    run: Run
    raw: Mapping[str, Any]  # as it was read

    @property
    def next_seq(self) -> int:
        """The number of the event that comes next."""
        events = self.raw["events"]
        return int(events[-1]["seq"]) + 1 if events else 1

    def events(self, key: str) -> list[Event]:
        """Raises StateError, which names `key`, for an event that makes no sense."""
        return [_event(key, number, self.run.run_id, it) for number, it in enumerate(self.raw["events"])]

    def after(self, run: Run, events: Sequence[Event] = ()) -> "RunDocument":
        """The document of the run as it is now, with further events."""
        grown = [*self.raw["events"], *(_as_json(event) for event in events)]
        return RunDocument(run, {**self.raw, **_fields(run), "events": bounded(grown)})

    def encode(self) -> bytes:
        """The document as it is stored: readable JSON, UTF-8, a key a line and an event a line."""
        try:
            return _lines(self.raw, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON can carry and UTF-8 cannot
            return _lines(self.raw, ensure_ascii=True).encode()
        except RecursionError:
            _refuse(run_key(self.run.run_id), "the whole document", "is nested too deep to be saved")


def _lines(raw: Mapping[str, Any], *, ensure_ascii: bool) -> str:
    """`indent=2` would do nearly the same in Python instead of C: many times as slow, at each event of each run."""

    def written(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii)

    def shown(key: str, value: Any) -> str:
        if key != "events" or not value:
            return written(value)
        return "[\n    " + ",\n    ".join(map(written, value)) + "\n  ]"

    return "{\n  " + ",\n  ".join(f"{written(key)}: {shown(key, value)}" for key, value in raw.items()) + "\n}\n"


def new_document(run: Run, events: Sequence[Event]) -> RunDocument:
    """The first document of a run."""
    return RunDocument(run, {"events": []}).after(run, events)


def bounded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`events`, without those in their midst if they are more than `MOST_EVENTS`. Numbers are not given anew: a gap
    stays a gap."""
    excess = len(events) - MOST_EVENTS
    if excess <= 0:
        return events
    oldest, newest = events[: OLDEST_KEPT - 1], events[OLDEST_KEPT + excess :]
    gone = events[OLDEST_KEPT - 1 : OLDEST_KEPT + excess]
    count = sum(it["payload"].get("count", 1) if it["kind"] == DROPPED else 1 for it in gone)
    last = gone[-1]
    mark = {**gone[0], "kind": DROPPED, "payload": {"count": count, "until": last["payload"].get("until", last["at"])}}
    return [*oldest, mark, *newest]


def parse_run(key: str, data: bytes) -> RunDocument:
    """The document that lies under `key`. Raises StateError, which names the key, the field, and what is wrong."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        _refuse(key, "the whole document", f"not JSON ({error})")
    if not isinstance(raw, dict):
        _refuse(key, "the whole document", "is no object")
    values = {field: _read(key, raw, field, read) for field, read in _READERS.items()}
    events = raw.get("events")
    if not isinstance(events, list) or not events:
        _refuse(key, "events", "is no list with the event of its creation in it")
    for number, event in enumerate(events):
        _event(key, number, "", event)
    run = Run(**values)
    if run_key(run.run_id) != key or run_id_of(run.idempotency_key) != run.run_id:
        _refuse(key, "run_id", "is not what the key, and the idempotency_key, say")
    if (run.next_retry_at is not None) != (run.status is RunStatus.RETRY_SCHEDULED):
        _refuse(key, "next_retry_at", f"is for {RunStatus.RETRY_SCHEDULED} alone, and needed there")
    return RunDocument(run, raw)


def exact(moment: datetime) -> str:
    """`moment` to the microsecond: what is read is what was written."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _fields(run: Run) -> dict[str, Any]:
    return {field: exact(value) if isinstance(value, datetime) else value for field, value in run._asdict().items()} | {
        "status": run.status.value
    }


def _as_json(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "kind": event.kind,
        "at": exact(event.at),
        "trace_id": event.trace_id,
        "payload": event.payload,
    }


def _event(key: str, number: int, run_id: str, raw: Any) -> Event:
    if not isinstance(raw, dict):
        _refuse(key, f"events[{number}]", "is no object")
    values = {field: _read(key, raw, field, read, f"events[{number}].") for field, read in _EVENT_READERS.items()}
    return Event(run_id, **values)


def _read(key: str, raw: Mapping[str, Any], field: str, read: Callable[[Any], Any], prefix: str = "") -> Any:
    try:
        return read(raw.get(field))
    except (ValueError, TypeError) as error:
        _refuse(key, prefix + field, str(error))


def _refuse(key: str, field: str, what: str) -> NoReturn:
    raise StateError(f"{key}: {field}: {what}. It is left as it is; mend it or remove it")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{_shown(value)} is no text")
    return value


def _any_text(value: Any) -> str:
    return _text(value) if value else ""


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _count_from(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or value < least:
            raise ValueError(f"{_shown(value)} is no whole number from {least} up")
        return value

    return read


def _moment(value: Any) -> datetime:
    try:
        return parse_stamp(_text(value))
    except ValueError:
        raise ValueError(f"{_shown(value)} is no time (ISO 8601)") from None


def _moment_or_none(value: Any) -> datetime | None:
    return None if value is None else _moment(value)


def _status(value: Any) -> RunStatus:
    if value not in list(RunStatus):
        raise ValueError(f"{_shown(value)} is none of {', '.join(RunStatus)}")
    return RunStatus(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is no object")  # noqa: TRY004  one kind of refusal for all of them
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "run_id": _text,
    "task_id": _text,
    "attempt": _count_from(1),
    "idempotency_key": _text,
    "status": _status,
    "created_at": _moment,
    "updated_at": _moment,
    "version": _count_from(1),
    "pipeline": _any_text,
    "next_retry_at": _moment_or_none,
    "error_code": _text_or_none,
    "worker": _text_or_none,
    "heartbeat_at": _moment_or_none,
    "resumes": _count_from(0),
}

_EVENT_READERS: Mapping[str, Callable[[Any], Any]] = {
    "seq": _count_from(1),
    "kind": _text,
    "at": _moment,
    "trace_id": _text,
    "payload": _object,
}
