"""A cache of what pages read, until something changes, so that twenty viewers cost no more reads than one."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from retake.errors import RetakeError
from retake.exit_codes import ExitCode

READ_S = 4.0
"""Seconds that a page waits for a read; after that it says that the bucket does not answer."""

MAX_KEPT = 200
"""Maximum number of results that are kept; the least recently used go."""

SLOW_S = 0.25
"""A read that takes longer, in seconds, is slow: its previous result is shown while it is repeated."""

REST_FACTOR = 5
"""A read is repeated after this many times its duration, if that is longer than the shelf's `seconds`."""

MAX_AGE_S = 30.0
"""The age in seconds up to which a previous result is shown, if nothing has changed since."""

_MAX_READERS = 4
"""Maximum number of concurrent reads; one that hangs occupies its thread until the store gives up."""


class BucketSilent(RetakeError):
    """A read took too long. It goes on, and a later request may find its result."""

    exit_code = ExitCode.TRY_LATER


class _Kept(NamedTuple):
    change: int  # the shelf's count of changes when it was read
    at: float
    value: "Future[_Value]"
    before: "Future[_Value] | None" = None  # the previous result, shown while `value` is being read
    basis: int = 0


class _Value(NamedTuple):
    found: Any
    at: float  # when its read began
    took_s: float


class _Readers:
    """A pool of up to `most` daemon threads. Unlike an executor's, a thread that hangs does not keep the process
    alive."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name, self._number, self._under_way = most, name, 0, 0
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[tuple[Future[_Value], Callable[[], _Value]] | None] = SimpleQueue()

    def submit(self, read: Callable[[], _Value]) -> "Future[_Value]":
        """Call `read` once a thread is free."""
        future: Future[_Value] = Future()
        with self._lock:
            self._waiting.put((future, read))
            self._under_way += 1
            if self._number < min(self._under_way, self._most):
                self._number += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """Start no more reads, and cancel those that wait."""
        with suppress(Empty):
            while waiting := self._waiting.get_nowait():
                waiting[0].cancel()
        for _ in range(self._most):
            self._waiting.put(None)

    def _run(self) -> None:
        while asked := self._waiting.get():
            future, read = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(read())
                except BaseException as error:  # noqa: BLE001  the caller gets it from the future
                    future.set_exception(error)
            with self._lock:
                self._under_way -= 1


class Shelf:
    """Keeps the result of a read for each key, until `forget` is called or `seconds` have passed. Thread safe."""

    def __init__(
        self, seconds: float, monotonic: Callable[[], float] = time.monotonic, *, readers: int = _MAX_READERS
    ) -> None:
        self._seconds, self._monotonic = seconds, monotonic
        self._children: list[Shelf] = []
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._asked: dict[Hashable, float] = {}
        self._lock = threading.Lock()
        self._change = 0
        self._pool, self._later = _Readers(readers, "dashboard"), _Readers(1, "dashboard again")
        self.closed = False
        """Whether the dashboard is stopping, so that long reads give up."""

    def child(self) -> "Shelf":
        """Return a shelf with a thread of its own, which is closed with this one. It is for reads that are so slow that
        they must not block others, and that are not repeated at each change."""
        self._children.append(Shelf(self._seconds, self._monotonic, readers=1))
        return self._children[-1]

    def get(self, key: Hashable, read: Callable[[], Any], wait_s: float | None = None, basis: int = 0) -> Any:
        """Return the result of `read` for this key, kept or read now. Raises what `read` raises, and BucketSilent after
        `wait_s`, by default READ_S. A result on another `basis` is read again."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or not self._fresh(kept) or kept.basis != basis:
                before = self._stale_value(kept)
                pool = self._pool if before is None else self._later
                kept = _Kept(self._change, self._monotonic(), pool.submit(lambda: self._timed(read)), before, basis)
            self._put(key, kept)
            self._asked[key] = self._monotonic()
        if kept.before is not None and not kept.value.done() and self._young(kept.before):
            return kept.before.result().found
        try:
            return kept.value.result(READ_S if wait_s is None else wait_s).found
        except NotYet:
            raise BucketSilent("the bucket does not answer; try again in a moment") from None

    def renew(self, key: Hashable, read: Callable[[], Any]) -> Any:
        """Call `read` now, in this thread, and keep its result for all later requests. Requests in the meantime get the
        previous result, or wait for this one. A read under way is joined. Raises what `read` raises."""
        with self._lock:
            kept = self._kept.get(key)
        if kept and not kept.value.done() and kept.change == self._change:
            return kept.value.result().found
        return self._read_inline(key, read)

    def _read_inline(self, key: Hashable, read: Callable[[], Any]) -> Any:
        reading: Future[_Value] = Future()
        with self._lock:
            self._put(key, _Kept(self._change, self._monotonic(), reading, self._stale_value(self._kept.get(key))))
        try:
            reading.set_result(self._timed(read))
        except BaseException as error:
            reading.set_exception(error)
            raise
        return reading.result().found

    def get_inline(self, key: Hashable, read: Callable[[], Any]) -> Any:
        """Return the same as `get`, at most `MAX_AGE_S` old, but call `read` in this thread if need be: for use inside
        another read. Raises what `read` raises."""
        with self._lock:
            kept = self._kept.get(key)
            known = (kept.value, kept.before) if kept and kept.change == self._change else ()
            for value in known:
                if value and value.done() and value.exception() is None and self._young(value):
                    return value.result().found
        return self._read_inline(key, read)

    def is_wanted(self, key: Hashable, seconds: float) -> bool:
        """Return whether the key was requested in the last `seconds`."""
        with self._lock:
            return self._monotonic() - self._asked.get(key, -math.inf) < seconds

    def forget(self, keep: Collection[Hashable] = ()) -> None:
        """Drop all results because something has changed, except those of `keep`, which have just been read."""
        with self._lock:
            self._change += 1
            for key, kept in [(key, self._kept[key]) for key in self._kept.keys() & keep]:
                if kept.change == self._change - 1:  # else it was read before an earlier change
                    self._kept[key] = kept._replace(change=self._change)

    def close(self) -> None:
        """Stop the threads, without waiting for reads under way."""
        self.closed = True
        for pool in (self._pool, self._later):
            pool.close()
        for shelf in self._children:
            shelf.close()

    def _put(self, key: Hashable, kept: _Kept) -> None:
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            gone, _ = self._kept.popitem(last=False)
            self._asked.pop(gone, None)

    def _fresh(self, kept: _Kept) -> bool:
        """Return whether a result may be used. A read under way is joined unless something has changed since it
        began."""
        if kept.change != self._change:
            return False
        if not kept.value.done():
            return True
        if kept.value.cancelled() or kept.value.exception() is not None:
            return False
        return self._monotonic() - kept.at < max(self._seconds, REST_FACTOR * kept.value.result().took_s)

    def _timed(self, read: Callable[[], Any]) -> _Value:
        began = self._monotonic()
        found = read()
        return _Value(found, began, self._monotonic() - began)

    def _stale_value(self, kept: _Kept | None) -> "Future[_Value] | None":
        """Return the result to show while a slow read is repeated, if there is one and it may be shown."""
        if kept is None or kept.change != self._change or not kept.value.done() or kept.value.exception() is not None:
            return None
        slow = kept.value.result().took_s > SLOW_S
        return kept.value if slow and self._young(kept.value) else None

    def _young(self, value: "Future[_Value]") -> bool:
        return self._monotonic() - value.result().at < MAX_AGE_S
