"""Paid calls for a program that has no pipeline of its own: each key is paid for once, however often the program dies.

    with PaidCalls(bucket, "posters", {"poster": 0.04}, daily_cap_usd=1.0) as paid:
        poster = paid.call("aurora", "poster", lambda: order("aurora"))

    paid/NAME/state.json       the pending call, the last one that ended, the last reservation of money
    paid/NAME/calls/KEY.json   all calls that were made for one key, and their answers

Each change of state is one write of state.json. A call that has ended is then filed under its key. A crash in between
leaves it in state.json, and the next start files it.
"""

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from logging import getLogger
from threading import TIMEOUT_MAX, Lock
from types import TracebackType
from typing import Any, NamedTuple

from retake import strict_json
from retake.bucket import ABSENT, Bucket, Conflict, Expect, Lease, NotFound, Room, check_key, this_process
from retake.bucket.contract import is_key
from retake.clock import Clock, SystemClock, parse_stamp, stamp
from retake.document_schema import WHOLE, DocumentSchema, InvalidDocument
from retake.errors import (
    Code,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    Refused,
    RetakeError,
    StateError,
    TaskFailed,
    VendorError,
    message_of,
)
from retake.paid.day_book import Fate, Known, is_amount
from retake.paid.guard import DROP, HOLD, RETRY, Intent, PaidCallGuard, PayingProcess
from retake.paid.mode_budget import ModeBudget
from retake.paid.plain_process import PlainProcess as PlainProcess
from retake.paid.spending import Spending

FOLDER = "paid/"
"""The folder of a bucket that holds these calls, in a folder for each name."""

ANSWER_ROOM = 64 * 1024
"""Bytes set aside for an answer before the call, on top of the size of state.json."""

ACCEPTED, WASTED, UNKNOWN, GIVEN_UP = "accepted", "wasted", "unknown", "given_up"
"""How a call ended. After `wasted` and `unknown` the key may be paid for again."""

_log = getLogger(__name__)


class BegunCall(NamedTuple):
    """A call that has begun and has no result on record."""

    key: str
    step: str
    price_usd: float
    began_at: datetime
    held: bool  # nothing more is paid for until `PaidCalls.resolve`


class PaidCalls:
    """The paid calls called `name`, in `bucket`.

    A context manager that holds their lease: only one process, and one thread in it, can make calls at a time. No
    pipeline that shares the bucket may have the same name ("story", "music").

    `prices` are in US dollars, by step. `daily_cap_usd` is what everything that pays through this bucket may spend in a
    day, `own_daily_cap_usd` what this name may; None means no cap. `find(call)` asks the vendor, for free, for the
    lost answer of a call. It returns None if the vendor cannot tell; what it raises is passed on, and the call stays
    undecided. `on_unknown` says what follows if it cannot tell: HOLD (a person decides, by `resolve`), RETRY
    (the call may be made, and billed, again) or DROP (the key is given up). `call_timeout_s` is the longest time in
    seconds that one call may take. On B2 and S3 it must be shorter than the term of the lease
    (`open_bucket(url, lease_terms=...)`, 115 s by default).

    >>> from retake.bucket.memory import MemoryBucket
    >>> with PaidCalls(MemoryBucket(), "posters", {"poster": 0.04}, daily_cap_usd=1.0) as paid:
    ...     paid.call("aurora", "poster", lambda: "poster-1")
    ...     paid.call("aurora", "poster", lambda: "poster-2")
    'poster-1'
    'poster-1'
    """

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        prices: Mapping[str, float],
        *,
        daily_cap_usd: float | None = None,
        own_daily_cap_usd: float | None = None,
        find: Callable[[BegunCall], Any] | None = None,
        on_unknown: str = HOLD,
        call_timeout_s: float = 90.0,
        clock: Clock | None = None,
        process: PayingProcess | None = None,
    ) -> None:
        if on_unknown not in (HOLD, RETRY, DROP):
            raise ValueError(f"on_unknown is {HOLD!r}, {RETRY!r} or {DROP!r}; found {on_unknown!r}")
        for step, usd in prices.items():
            if not isinstance(usd, int | float) or not is_amount(usd):
                raise ValueError(f"the price of {step!r} is not an amount: {usd!r}; give a float, in US dollars")
        for cap in (daily_cap_usd, own_daily_cap_usd):
            if cap is not None and (isinstance(cap, str) or not cap >= 0):  # NaN is refused too
                raise ValueError(f"a daily cap is not an amount: {cap!r}")
        self._name, self._prices = name, dict(prices)
        self._find, self._on_unknown, self._call_timeout_s = find, on_unknown, call_timeout_s
        self._clock = clock or SystemClock()
        self._process = process or PlainProcess()
        self._bucket = bucket.part(check_key(f"{FOLDER}{name}") + "/")
        self._entered_by: int | None = None  # process id
        self._under_way = Lock()
        price, own_usd = self._prices.__getitem__, own_daily_cap_usd
        self._spending = Spending(bucket, self._clock, name, price, bucket_usd=daily_cap_usd, pipeline_usd=own_usd)
        self._budget = ModeBudget(self._spending, lambda: self._state.known, bucket, self._clock)

    def __enter__(self) -> "PaidCalls":
        """Take the lease. Raises LeaseHeld while another process makes these calls, StateError, StorageError, and
        ValueError for a `call_timeout_s` beyond the lease's term."""
        self._lease = self._bucket.lease("calls", this_process())
        try:
            self._check_term()
            self._state = CallsState(self._bucket, self._name, self._lease)
            journal = KeyedJournal(self._state, self._clock, self._find, self._on_unknown)
            self._guard = PaidCallGuard(
                journal,
                self._budget,
                lease=self._lease,
                clock=self._clock,
                process=self._process,
                call_timeout_s=self._call_timeout_s,
                on_unknown=self._on_unknown,
                how_to_decide="decide (PaidCalls.resolve)",
            )
            self._spending.heal(self._state.known)
        except BaseException:
            self._lease.release()
            raise
        self._entered_by = os.getpid()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        ended = self._under_way.acquire(blocking=False) or self._wait_for_call()
        try:
            if ended:
                self._state.file()
        except RetakeError as fault:
            _log.warning("%s: the last call is filed by the next start: %s", self._name, fault)
        finally:
            self._entered_by = None
            self._lease.release()
            if ended:
                self._under_way.release()

    def call(self, key: str, step: str, ask: Callable[[], Any]) -> Any:
        """Return the answer for `key`, a name of your choice: from the record, or else from `ask()`, which is paid for.

        The key alone identifies what is paid for; `step` only determines the price. Two steps of one piece of work need
        two keys. `ask` makes the call once and returns a JSON value; anything else is kept as its `repr`. It raises
        Refused if the call was certainly not carried out, and TaskFailed if it was billed and has no result. Any other
        exception counts as OutcomeUnknown: the call may have been paid for. Returns None for a key that was given up. A
        call that an earlier process left pending is reconciled first, whatever its key.

        Raises Refused, TaskFailed, OutcomeUnknown, CapReached and Degraded (the call was not made), LeaseLost,
        StateError, StorageError, LeaseHeld while another call of this object is under way (in another thread, or around
        this one), and ValueError for a key that cannot be a file name or a step without a price.

        >>> from retake.bucket.memory import MemoryBucket
        >>> from retake.errors import CapReached
        >>> with PaidCalls(MemoryBucket(), "posters", {"poster": 0.04}, daily_cap_usd=0.05) as paid:
        ...     paid.call("aurora", "poster", lambda: "poster-1")
        ...     try:
        ...         paid.call("comet", "poster", lambda: "poster-2")
        ...     except CapReached:
        ...         "tomorrow"
        'poster-1'
        'tomorrow'
        """
        if not isinstance(key, str):
            raise TypeError(f"a key is a text; found {key!r}")
        if "/" in check_key(key):
            raise ValueError(f"{key!r}: a key has no slash")
        if step not in self._prices:
            raise ValueError(f"{step!r} has no price")
        if not callable(ask):
            raise TypeError(f"ask is to be a function that makes the call; found {type(ask).__name__}")
        with self._exclusive():
            self._reconcile_pending()
            self._state.file()
            if done := self._state.done(key):
                return done.get("answer")
            try:
                self._guard.call(step, {"key": key}, lambda: self._answer(key, step, ask))
            except BaseException:
                self._update_book(self._spending.heal)  # its intent may not be on record
                raise
            self._update_book(self._spending.settle)
            return self._state.raw["ended"]["answer"]

    @property
    def pending(self) -> BegunCall | None:
        """The call that has begun and has no result on record, or None."""
        if not hasattr(self, "_state"):
            self._check_entered()
        return self._state.pending

    def resolve(self, how: str) -> BegunCall:
        """Decide about a call of unknown outcome, and return it.

        RETRY allows its key to be paid for again, DROP gives the key up. The call counts as billed either way. Raises
        StateError if no call is pending.

        >>> from retake.bucket.memory import MemoryBucket
        >>> from retake.errors import OutcomeUnknown
        >>> def cut() -> str:
        ...     raise ConnectionError("the connection was cut")
        >>> with PaidCalls(MemoryBucket(), "posters", {"poster": 0.04}) as paid:
        ...     try:
        ...         paid.call("aurora", "poster", cut)
        ...     except OutcomeUnknown:
        ...         paid.resolve("retry").key
        ...     paid.call("aurora", "poster", lambda: "poster-2")
        'aurora'
        'poster-2'
        """
        if how not in (RETRY, DROP):
            raise ValueError(f"{how!r} is neither {RETRY!r} nor {DROP!r}")
        with self._exclusive():
            if (pending := self.pending) is None:
                raise StateError(f"{self._name}: no call is pending, so there is nothing to decide")
            self._state.end(self._clock, UNKNOWN if how == RETRY else GIVEN_UP)
            self._update_book(self._spending.settle)
            return pending

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the record, up to date with the bucket. Raises LeaseHeld while another call holds it: a second caller
        would take a call that is under way for one that was left pending."""
        self._check_entered()
        if not self._under_way.acquire(blocking=False):
            raise LeaseHeld(f"{self._name}: another call is under way, in another thread or around this one")
        try:
            self._state.reread()
            yield
        finally:
            self._under_way.release()

    def _wait_for_call(self) -> bool:
        """Wait for the call of a thread that was abandoned at a time limit, since its answer is saved under our lease.
        Return whether it has ended."""
        longest_s = min(max(0.0, self._call_timeout_s), TIMEOUT_MAX)
        _log.warning("%s: a paid call is under way, and waited for, %g s at most", self._name, longest_s)
        return self._under_way.acquire(timeout=longest_s)

    def _check_entered(self) -> None:
        if self._entered_by != os.getpid():  # a fork inherits everything, even the lease in a directory
            why = "which takes their lease for this process"
            raise RuntimeError(f"{self._name}: make paid calls inside of `with PaidCalls(…)`, {why}")

    def _update_book(self, update: Callable[[Known], None]) -> None:
        """Update the day's book from the record, which is read again if a write has failed.

        If another process has taken over the lease, it does this from its own record: in ours, what it has reserved
        would look like a reservation that was never used.
        """
        try:
            self._lease.check()
            self._state.reread()
            update(self._state.known)
        except LeaseLost:
            pass
        except RetakeError as error:
            _log.warning("%s: the day's book follows at the next call or start: %s", self._name, error)

    def _answer(self, key: str, step: str, ask: Callable[[], Any]) -> Any:
        """Return what `ask` returns. An exception that does not say what became of the call becomes OutcomeUnknown."""
        what = f"{self._name}: the {step} call for {key}"
        try:
            answer = ask()
        except (Refused, TaskFailed, OutcomeUnknown):
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {message_of(error)}"
            raise OutcomeUnknown(Code.NETWORK, f"{what} has no answer, and may have been paid for ({told})") from error
        if _discarded_coroutine(answer):
            raise Refused(Code.CONFIGURATION, f"{what} was not made: `ask` is async. Let it return asyncio.run(…)")
        return answer

    def _check_term(self) -> None:
        if (left := self._lease.left()) is not None and left <= self._call_timeout_s:
            raise ValueError(f"a call may take {self._call_timeout_s:g} s, and the lease ends in {left:.0f} s")

    def _reconcile_pending(self) -> None:
        """Find out what became of a pending call. Raises OutcomeUnknown if a person must decide."""
        if (pending := self.pending) is None:
            return
        try:
            self._guard.reconcile()
        except OutcomeUnknown as error:
            if self.pending:
                call = f"the {pending.step} call for {pending.key}, begun at {stamp(pending.began_at)}"
                what = f"{self._name}: nobody can tell whether {call}, was paid for"
                raise OutcomeUnknown(error.code, what) from error
        except Refused:
            if self.pending:
                raise
        finally:
            self._update_book(self._spending.settle)


class CallsState:
    """`state.json` in `bucket`. `raw` is what was last read or saved. Every write is made under `lease`."""

    def __init__(self, bucket: Bucket, name: str, lease: Lease) -> None:
        self.bucket, self._where, self._lease = bucket, f"{FOLDER}{name}/", lease
        self.raw, self._version = self._read("state.json", "paid_calls_state")
        self._filed = False
        self._unsure = False  # whether a write failed that may still have taken effect
        self._ended_at = ("", "")  # the id of the call that ended last, and when
        if not self.raw:  # the account distinguishes this document from one that was removed (see day_book)
            self.save(account=os.urandom(6).hex())

    def save(self, room: Room | None = None, **changes: Any) -> None:
        """Write the document with these changes, over the version that was read."""
        raw = {**self.raw, **changes}
        data, self._unsure = strict_json.encode(raw), True
        self._version = self._write("state.json", data, self._version, room)
        self.raw, self._filed, self._unsure = raw, False, False

    def reread(self) -> None:
        """Read the document again if a write has failed. Raises StateError."""
        if self._unsure:
            self.raw, self._version = self._read("state.json", "paid_calls_state")
            self._filed = self._unsure = False

    @property
    def pending(self) -> BegunCall | None:
        if not (call := self.raw.get("pending")):
            return None
        began_at = parse_stamp(call["requested_at_utc"])
        return BegunCall(call["key"], call["step"], call["price_usd"], began_at, bool(call.get("held")))

    @property
    def known(self) -> Known:
        """What the document says of its last reservation."""
        it = self.raw.get("reservation") or {}
        return Known(self.raw.get("account"), it.get("name"), it.get("day"), Fate(it.get("fate", Fate.OPEN)))

    def end(self, clock: Clock, outcome: str, room: Room | None = None, **facts: Any) -> None:
        """Record that the pending call has ended, and counts as billed.

        Another try writes exactly the same document, so that an earlier try that succeeded, but whose answer was lost,
        is recognised.
        """
        call = {key: value for key, value in self.raw["pending"].items() if key != "held"}
        if self._ended_at[0] != call["id"]:
            self._ended_at = call["id"], stamp(clock.now())
        ended = {**call, "ended_at_utc": self._ended_at[1], "outcome": outcome, **facts}
        self.save(room, pending=None, ended=ended, reservation=self.reservation(Fate.BILLED))

    def reservation(self, fate: Fate) -> dict[str, Any] | None:
        """Return the last reservation with what became of it."""
        return {**it, "fate": fate.value} if (it := self.raw.get("reservation")) else None

    def file(self) -> None:
        """File the call that ended last under its key, unless that is already done."""
        ended = self.raw.get("ended")
        if self._filed or not ended:
            return
        name = f"calls/{ended['key']}.json"
        raw, version = self._read(name, "paid_calls_key")
        calls = raw.get("calls", [])
        if ended["id"] not in [call["id"] for call in calls]:
            self._write(name, strict_json.encode({"key": ended["key"], "calls": [*calls, ended]}), version)
        self._filed = True

    def done(self, key: str) -> Mapping[str, Any] | None:
        """Return the filed call after which `key` is not paid for again, or None."""
        calls = self._read(f"calls/{key}.json", "paid_calls_key")[0].get("calls", [])
        return next((call for call in calls if call["outcome"] in (ACCEPTED, GIVEN_UP)), None)

    def _read(self, key: str, schema: str) -> tuple[dict[str, Any], str | Expect]:
        """Return a document, or {} if there is none, and its version. Raises StateError."""
        try:
            data, version = self.bucket.read(key)
        except NotFound:
            return {}, ABSENT
        try:
            raw = strict_json.parse(data)
            DocumentSchema(schema).check(raw)
            _check_keys(raw)
        except (ValueError, InvalidDocument) as error:
            wrong = error.args if isinstance(error, InvalidDocument) else (WHOLE, strict_json.what_is_wrong(error))
            what = f"{self._where}{key}: {wrong[0]} {wrong[1]}"
            raise StateError(f"{what}. It is left as it is, and nothing is paid for; fix it") from error
        return raw, version

    def _write(self, key: str, data: bytes, expect: str | Expect, room: Room | None = None) -> str:
        """Write a document and return its version. An equal document, from an earlier try, is not a conflict."""
        self._lease.check()
        try:
            return room.write(data, expect) if room else self.bucket.write(key, data, expect)
        except Conflict:
            found, version = self.bucket.read(key)
            if found != data:
                raise
            return version


class KeyedJournal:
    """The `retake.paid.guard.Journal` in state.json."""

    def __init__(
        self, state: CallsState, clock: Clock, find: Callable[[BegunCall], Any] | None, on_unknown: str
    ) -> None:
        self._state, self._clock, self._find, self._on_unknown = state, clock, find, on_unknown
        self._unasked = ""  # the id of a call that was not made because its intent could not be saved

    def set_aside(self) -> Room:
        return self._state.bucket.set_aside("state.json", len(strict_json.encode(self._state.raw)) + ANSWER_ROOM)

    def begin(self, intent: Intent) -> None:
        kept = intent.reservation
        self._unasked = name = os.urandom(6).hex()
        self._state.save(
            pending={
                "id": name,
                **intent.facts,
                "step": intent.step,
                "price_usd": intent.price_usd,
                "requested_at_utc": stamp(self._clock.now()),
            },
            ended=None,
            reservation={"name": kept.name, "day": kept.day, "fate": Fate.OPEN.value} if kept else None,
        )
        self._unasked = ""

    @property
    def pending(self) -> str | None:
        return it.step if (it := self._state.pending) else None

    def accepted(self, answer: Any, room: Room | None = None) -> None:
        self._state.end(self._clock, ACCEPTED, room, answer=_storable(answer))

    def refused(self, error: Refused) -> None:
        self._state.save(pending=None, reservation=self._state.reservation(Fate.RELEASED))

    def wasted(self, error: VendorError) -> None:
        self._state.end(self._clock, WASTED, message=str(error))

    def lost(self, error: OutcomeUnknown) -> None:
        self._state.end(self._clock, GIVEN_UP if self._on_unknown == DROP else UNKNOWN, message=str(error))

    def held(self, error: OutcomeUnknown) -> None:
        if not self._state.raw["pending"].get("held"):
            self._state.save(pending={**self._state.raw["pending"], "held": True})

    def find(self) -> Any | None:
        call = self._state.pending
        answer = self._find(call) if self._find and call else None
        if _discarded_coroutine(answer):
            raise TypeError("`find` is async, and asks for nothing. Let it return asyncio.run(…)")
        return answer

    def disproved(self) -> Refused | None:
        if self._unasked and self._state.raw["pending"]["id"] == self._unasked:
            return Refused(Code.NETWORK, "the call was not made: its intent could not be saved for sure")
        return None


def _check_keys(state: Mapping[str, Any]) -> None:
    for name in ("pending", "ended"):
        if (call := state.get(name)) and not is_key(f"calls/{call['key']}.json"):
            raise InvalidDocument(f"{name}.key", "is nothing that a file can be called")


def _discarded_coroutine(answer: Any) -> bool:
    """Return whether a call returned a coroutine, whose work has not begun, and close it."""
    if not isinstance(answer, Coroutine):
        return False
    answer.close()
    return True


def _storable(answer: Any) -> Any:
    """Return the answer as read back from JSON, or its `repr`: it is paid for, and must not be lost because of its
    type."""
    try:
        return strict_json.as_stored(answer)
    except Exception as error:  # noqa: BLE001  the object's own code may raise anything
        _log.warning("of a paid answer only its repr is kept: %s", message_of(error))
    try:
        return repr(answer)
    except Exception as error:  # noqa: BLE001
        return f"{object.__repr__(answer)}, whose repr raises {type(error).__name__}"
