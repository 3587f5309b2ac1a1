"""Stores the board in a document changed by compare-and-set, and the alerts that are over in one document per day."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from logging import getLogger
from typing import TypeVar

from retake.alerts.board import BOARD, FOLDER, Alert, Board, decoded, decoded_alert, encoded, encoded_alert
from retake.bucket import Bucket
from retake.clock import Clock, stamp
from retake.errors import RetakeError, StateError
from retake.retrying.state_store import BucketStateStore, Raw, StateCell, unreadable

_log = getLogger(__name__)

T = TypeVar("T")

_RETENTION = timedelta(days=30)
_MIN_DAYS = 31  # documents of days that are kept however old they seem: the clock may be wrong
_MAX_ALERTS_A_DAY = 1000


class BoardStore:
    """The board of `bucket`, which is the whole bucket. Every method may raise StateError and StorageError."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self._states = BucketStateStore(bucket, FOLDER, clock)
        self._cell = StateCell(self._states, BOARD, decoded, encoded)

    def read(self) -> Board:
        """Return the board, which is empty if there is none yet."""
        return self._cell.get()

    def change(self, step: Callable[[Board], tuple[Board, T]]) -> T:
        """Replace the board by what `step` makes of it, and return the result of `step`. Alerts that are over are moved
        to the documents of their days."""
        ended: tuple[Alert, ...] = ()

        def change(board: Board) -> tuple[Board, T]:
            nonlocal ended
            new, result = step(board)
            ended = new.ended
            return new, result

        result = self._cell.change(change)
        if ended:
            try:
                self._file(ended)
            except RetakeError as error:  # they stay on the board until the next change
                _log.error("ended alerts could not be filed: %s", error)
        return result

    def history(self, now: datetime, *, tolerant: bool = False) -> list[Alert]:
        """Return the alerts of the last thirty days that are over, the last first.

        With `tolerant` an invalid document of a day is logged and left out.
        """
        first = stamp(now - _RETENTION)[:10]
        found: list[Alert] = []
        for day in [name for name in self._states.names() if name != BOARD and name >= first]:
            try:
                found += self._day(day)
            except StateError as error:
                if not tolerant:
                    raise
                _log.error("the alerts of a day are left out: %s", error)
        return sorted(found, key=lambda it: (it.closed_at or "", it.id), reverse=True)

    def _day(self, day: str) -> list[Alert]:
        raw = self._states.read(day) or {}
        try:
            return [decoded_alert(it) for it in raw.get("alerts") or []]
        except (ValueError, TypeError) as error:
            raise unreadable(self._states.where(day), str(error)) from error

    def _file(self, ended: Iterable[Alert]) -> None:
        """Move alerts to the documents of the days on which they ended. They are added there before they are removed
        from the board, so that a crash loses none."""
        by_day: dict[str, dict[str, Alert]] = {}
        filed: set[str] = set()
        for alert in ended:
            by_day.setdefault((alert.closed_at or alert.last_at)[:10], {})[alert.id] = alert
        for day, alerts in by_day.items():
            try:
                self._states.change(day, lambda raw, alerts=alerts: (_added(raw, alerts), None))  # type: ignore[misc]
            except StateError as error:  # only the alerts of this day stay on the board
                _log.error("ended alerts could not be filed: %s", error)
            else:
                filed |= alerts.keys()
        self._cell.change(lambda board: (_without(board, filed), None))
        self._forget(stamp(self._clock.now() - _RETENTION)[:10])

    def _forget(self, first: str) -> None:
        days = sorted(name for name in self._states.names() if name[:4].isdigit())
        for name in days[:-_MIN_DAYS]:
            if name < first:
                self._bucket.delete(f"{FOLDER}{name}.json")


def _added(raw: Raw | None, alerts: dict[str, Alert]) -> Raw:
    day = (raw or {}).get("alerts") or []
    if not isinstance(day, list) or not all(isinstance(it, dict) for it in day):
        raise StateError("the document of a day is invalid: alerts: is not a list of objects. Fix it or remove it")
    kept = [it for it in day if it.get("id") not in alerts]
    return {"alerts": [*kept, *map(encoded_alert, alerts.values())][-_MAX_ALERTS_A_DAY:]}


def _without(board: Board, filed: set[str]) -> Board:
    return board._replace(ended=tuple(it for it in board.ended if it.id not in filed))
