"""Alerts, the mode, breakers and snapshots of figures: small documents at the bucket's root that all pipelines
share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from retake.alerts.board import BOARD, Board, decoded, decoded_alert
from retake.alerts.board import FOLDER as ALERTS
from retake.bucket import NotFound
from retake.checking.examination import CheckFinding, Examination, found
from retake.checking.view import MAX_DOCUMENT_BYTES, CheckView
from retake.clock import parse_stamp, stamp
from retake.degraded.mode import ModeState
from retake.degraded.mode import decoded as decoded_mode
from retake.degraded.mode import encoded as encoded_mode
from retake.degraded.store import FOLDER as MODE
from retake.degraded.store import ModeStore
from retake.kpi.facts import Source, micros
from retake.kpi.sheet import Index, Sheet, decode_index, decode_sheet, parts_of, summed
from retake.kpi.snapshots import KPI, KpiSnapshots
from retake.plural import count
from retake.retrying.breaker import BREAKERS, BreakerState, breakers_of, released
from retake.retrying.breaker import decoded as decoded_breaker
from retake.retrying.breaker import encoded as encoded_breaker
from retake.runs.history import together

_DAY = timedelta(days=1)
_BOARD = f"{ALERTS}{BOARD}.json"
_MODE = f"{MODE}state.json"

_INVALID = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The errors that readers raise for an invalid document. Unparsable is a ValueError."""


class AlertExamination(Examination):
    """The open alerts, the queues of the channels, and the alerts of each day. `channels` are those in the settings."""

    title = "alerts"

    def __init__(self, channels: Iterable[str]) -> None:
        self._channels = frozenset(channels)

    def subjects(self, view: CheckView) -> Iterator[str]:
        return (it.key for it in view.entries(ALERTS) if self.knows(it.key))

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        view.looked_at["alert_documents"] += 1
        try:
            raw = view.document(subject)
            if subject == _BOARD:
                yield from self._queues(view, decoded(raw))
            else:
                for alert in (raw or {}).get("alerts") or []:
                    decoded_alert(alert)
        except _INVALID as error:
            code = "alerts-unreadable" if subject == _BOARD else "alert-day-unreadable"
            yield found(code, view.where(subject), str(error))

    def knows(self, key: str) -> bool:
        name = key.removeprefix(ALERTS).removesuffix(".json")
        return key == f"{ALERTS}{name}.json" and (name == BOARD or _is_day(name))

    def _queues(self, view: CheckView, board: Board) -> Iterator[CheckFinding]:
        now = view.scope.clock.now()
        for name, channel in sorted(board.channels.items()):
            old = [it for it in channel.queue if now - parse_stamp(it.at) > _DAY]
            if old:
                gone = "" if name in self._channels else ", which is no longer a channel of the settings"
                what = (
                    f"{count(len(old), 'message')} waiting for {name}{gone}, the first since {min(it.at for it in old)}"
                )
                yield found("messages-waiting", view.where(_BOARD), what)


class ModeExamination(Examination):
    """The degraded mode, and its copy among the alerts, which ticks read."""

    title = "mode"
    apart_s = 1.0  # between the two writes of a change

    def subjects(self, view: CheckView) -> Iterator[str]:
        yield _MODE

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        try:
            state = decoded_mode(view.document(_MODE))
        except _INVALID as error:
            yield found("mode-unreadable", view.where(_MODE), str(error))
            return
        try:
            copy = decoded(view.document(_BOARD)).mode
        except _INVALID:
            return  # found by the examination of alerts
        if copy != (encoded_mode(state) if state != ModeState() else None):
            yield found("mode-copy-old", view.where(_BOARD), f"its mode is not that of {view.where(_MODE)}")

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        ModeStore(view.bucket, view.scope.clock).repeat()
        return [f"the mode was copied to {_BOARD}"]

    def knows(self, key: str) -> bool:
        return key == _MODE


class BreakerExamination(Examination):
    """The breakers. A breaker opens for `open_s` seconds, and its probe may take `probe_s`."""

    title = "breakers"

    def __init__(self, open_s: float, probe_s: float) -> None:
        self._longest = max(timedelta(seconds=open_s), _DAY)
        self._probe = timedelta(seconds=max(probe_s, 900.0))

    def subjects(self, view: CheckView) -> Iterator[str]:
        return (it.key for it in view.entries(BREAKERS) if self.knows(it.key))

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        view.looked_at["breakers"] += 1
        where, now = view.where(subject), view.scope.clock.now()
        try:
            state = decoded_breaker(view.document(subject))
        except _INVALID as error:
            yield found("breaker-unreadable", where, str(error))
            return
        if state.open_until and state.open_until - now > self._longest:
            yield found("breaker-open-long", where, f"it is open until {stamp(state.open_until)}")
        if state.probe and now - state.probe.since > self._probe:
            yield found(
                "probe-left", where, f"a call that tries it began at {stamp(state.probe.since)} and never ended"
            )

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        clock, name = view.scope.clock, subject.removeprefix(BREAKERS).removesuffix(".json")

        def change(raw: Mapping[str, object] | None) -> tuple[Mapping[str, object] | None, list[str]]:
            state: BreakerState = decoded_breaker(raw)
            if state.probe is None or clock.now() - state.probe.since <= self._probe:
                return None, []
            return encoded_breaker(released(state, state.probe.who)), [f"another call may try {name}"]

        return breakers_of(view.bucket, clock).change(name, change)

    def knows(self, key: str) -> bool:
        name = key.removeprefix(BREAKERS)
        return key.startswith(BREAKERS) and name.endswith(".json") and "/" not in name


class KpiExamination(Examination):
    """The snapshots of figures. `sources()` yields the names of snapshots and the ledgers that they count."""

    title = "snapshots of figures"
    apart_s = 5.0  # a snapshot is several documents, and its index is written last

    def __init__(self, sources: Callable[[], Iterable[tuple[str, Source]]]) -> None:
        self._sources = sources

    def subjects(self, view: CheckView) -> Iterator[str]:
        return (it.key for it in view.entries(KPI) if self.knows(it.key) and "." not in _ledger(it.key))

    def examine(self, view: CheckView, subject: str) -> Iterator[CheckFinding]:
        view.looked_at["snapshots"] += 1
        try:
            data = view.read(subject)
            if data is None:
                return
            index = decode_index(data)
        except _INVALID as error:
            yield found("snapshot-unreadable", view.where(subject), str(error))
            return
        yield from self._sheets(view, subject, index)
        yield from self._age(view, subject, index)

    def repair(self, view: CheckView, subject: str) -> Sequence[str]:
        ledger = _ledger(subject)
        for name, source in self._sources():
            if name == ledger:
                KpiSnapshots(view.bucket, view.scope.clock).counted(ledger, source, rebuild=True)
                return [f"the snapshot {subject} was made again from the ledger"]
        return []

    def knows(self, key: str) -> bool:
        name = key.removeprefix(KPI)
        return key.startswith(KPI) and name.endswith(".json") and "/" not in name

    def _sheets(self, view: CheckView, subject: str, index: Index) -> Iterator[CheckFinding]:
        for part, kept in index.segments.items():
            stem = f"{KPI}{_ledger(subject)}.{part}"
            of_days = view.entries(f"{stem}-")  # if it is a month
            entries = [*view.find(f"{stem}.json", [""]), *of_days]
            where = view.where(f"{stem}.json")
            if not entries:
                yield found("snapshot-wrong", where, f"{view.where(subject)} has sums of it, but it does not exist")
                continue
            if any(it.size > MAX_DOCUMENT_BYTES for it in entries):
                continue  # too many runs: they are read only when somebody needs the figures
            sheets = list[Sheet]()
            try:
                for it in entries:
                    where = view.where(it.key)
                    sheets.append(decode_sheet(view.bucket.read(it.key)[0]))
            except NotFound:
                continue
            except _INVALID as error:
                yield found("snapshot-unreadable", where, str(error))
                continue
            sums = summed(it.sums() for it in sheets)
            if sums.fingerprint == kept.fingerprint and sums != kept:
                where = where if len(entries) == 1 else view.where(stem)
                yield found("snapshot-wrong", where, f"the sums of its runs are not those in {view.where(subject)}")

    def _age(self, view: CheckView, subject: str, index: Index) -> Iterator[CheckFinding]:
        """Yield a finding for an old snapshot. Reading the figures updates it, so nobody has read them."""
        moment = view.scope.clock.now()
        age_us = micros(moment) - (index.taken_at or 0)
        if index.taken_at is None or age_us <= _DAY.total_seconds() * 1e6:
            return
        for name, source in self._sources():
            if name != _ledger(subject):
                continue
            now, kept = (
                {part: together(several[it] for it in names) for part, names in parts_of(several, moment).items()}
                for several in (source.segments(), {name: it.fingerprint for name, it in index.segments.items()})
            )
            new = [it for it in now if it not in kept or not kept[it].agrees(now[it])]
            if new or kept.keys() - now.keys():
                what = f"it is more than a day old, and the ledger has changed since in {len(new)} of {len(now)} parts"
                yield found("snapshot-old", view.where(subject), what)


def _ledger(key: str) -> str:
    return key.removeprefix(KPI).removesuffix(".json")


def _is_day(name: str) -> bool:
    return len(name) == 10 and name[:4].isdigit()
