"""A lease in a store without locks: list, claim, list again, and withdraw if in doubt.

Two processes that claim at the same time both see this in their second listings, in whatever order the store took the
claims, because each lists after its own claim. Age is judged by the store's clock alone, and a holder counts its term
from before its claim was sent. So a claim is called dead only after its holder has stopped.

Compare restic's `internal/repository/lock.go` (list, write, list) and borg's `storelocking.py` (age by the store's
clock, after #10077). Here the earliest version does not win, age is not taken from our own clock, and claims are not
deleted together with their tokens. For each of these tests/bucket/lease_model.py shows how two processes would
otherwise hold the lease.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from retake.attempts import attempts
from retake.bucket import Holder, LeaseTerms
from retake.bucket.claims.lease import ClaimLease, ClockReading, JoinedLease, LeaseClock, store_now
from retake.bucket.claims.names import (
    Record,
    Stem,
    dead_after,
    highest,
    last_end,
    live,
    nonce_of,
    not_below,
    owner_of,
    parse,
    parse_handed,
    place_of,
)
from retake.bucket.claims.store import Claims, ClaimStore
from retake.clock import stamp
from retake.errors import LeaseHeld, LeaseLost, StorageError

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6)  # between listings, until rivals have withdrawn


class _Claim(NamedTuple):
    """A claim of ours that is not yet a lease."""

    stem: Stem
    name: str
    sent: ClockReading  # before the request
    answered: ClockReading
    stamp: float | None  # from the answer


class ClaimVerdict(Enum):
    """What a listing that contains our claim means."""

    HOLD = "the lease is ours"
    WAIT = "all rivals must withdraw"
    WITHDRAW = "somebody else may hold it"


def take(
    store: ClaimStore,
    name: str,
    owner: str,
    *,
    clock: LeaseClock,
    terms: LeaseTerms = LeaseTerms(),  # noqa: B008  immutable
    random: Callable[[int], bytes] = os.urandom,
) -> ClaimLease:
    """Take the lease `name` without waiting. Raises LeaseHeld, which names the holder; StorageError.

    Until `ClaimLease.keep` and `ClaimLease.arm` are called, nothing renews the lease or kills the process at its end.
    """
    place = place_of(name)
    seen = store.claims(place)
    records = parse(place, seen)
    _refuse_if_held(store, name, records, seen, terms)
    stem = Stem(place, highest(records) + 1, nonce_of(random(8), owner))
    claim = _claim(store, name, stem, clock)
    try:
        records = _alone(store, name, claim, clock, terms)
    except (LeaseHeld, StorageError):
        with suppress(StorageError):  # it never held the lease: if it cannot be removed, it expires
            store.withdraw(claim.name)
        raise
    lower = [record.name for record in records if record.token < stem.token]
    return ClaimLease(store, stem, claim.name, claim.sent, clock=clock, terms=terms, lower=lower)


def holder(store: ClaimStore, name: str, *, now: float, terms: LeaseTerms) -> Holder | None:
    """Return who may hold the lease, by one listing. Raises StorageError.

    `now`, in seconds since the epoch, is used if the store's answer has no date.
    """
    place = place_of(name)
    seen = store.claims(place)
    holders = live(parse(place, seen), now if seen.date is None else seen.date, terms)
    return Holder(*_newest(store, holders, terms)) if holders else None


def join(
    store: ClaimStore,
    name: str,
    handed: str,
    *,
    clock: LeaseClock,
    terms: LeaseTerms = LeaseTerms(),  # noqa: B008  immutable
) -> JoinedLease:
    """Act under the lease that a parent process took and handed over. Raises LeaseLost, StorageError."""
    stem = parse_handed(place_of(name), handed)
    if stem is None:
        raise LeaseLost(f"the lease {name!r} was not handed over: {handed!r}")
    lease = JoinedLease(store, stem, clock=clock, terms=terms)
    lease.check()
    return lease


def break_lease(store: ClaimStore, name: str, owner: str) -> int:
    """End the lease `name`, for an operator who knows that its holder is gone, and return the token that ended it.

    Nothing is deleted. If the holder is alive after all, its scripts notice before their next write or payment, and the
    holder at its next renewal, at most a third of the term later.
    """
    place = place_of(name)
    stem = Stem(place, highest(parse(place, store.claims(place))) + 1, nonce_of(os.urandom(8), owner))
    store.claim(stem.end)
    return stem.token


def _refuse_if_held(store: ClaimStore, name: str, records: list[Record], seen: Claims, terms: LeaseTerms) -> None:
    """Raise LeaseHeld if a living holder is listed. A wrong date in the listing only costs an attempt."""
    end = last_end(records)
    if any(record.token > end for record in records):
        holders = live(records, store_now(store, seen), terms)
        if holders:
            raise _held(store, name, holders, terms)


def _claim(store: ClaimStore, name: str, stem: Stem, clock: LeaseClock) -> _Claim:
    """Store our claim. Raises LeaseHeld if somebody else took the number first."""
    sent = clock.mark()
    if store.conditional:
        if not store.claim_if_absent(stem.numbered, stem.nonce):
            raise LeaseHeld(f"the lease {name!r} has just been taken by {_owner(store, stem.numbered)}")
        return _Claim(stem, stem.numbered, sent, clock.mark(), None)
    claimed = stem.renewal(0)
    try:
        stored = store.claim(claimed)
    except StorageError:
        with suppress(StorageError):  # it may be stored all the same, now or later: then it expires
            store.withdraw(claimed)
        raise
    return _Claim(stem, claimed, sent, clock.mark(), stored)


def _alone(store: ClaimStore, name: str, claim: _Claim, clock: LeaseClock, terms: LeaseTerms) -> list[Record]:
    """List until our claim stands alone, and return the records. Raises LeaseHeld if it does not, StorageError."""
    for attempt in attempts(_PAUSES_S, clock.sleep):
        records = parse(claim.stem.place, store.claims(claim.stem.place))
        now = _own_stamp(claim, records) + clock.at_least(claim.answered)
        verdict = judge(claim.stem, claim.name, records, now, terms)
        if clock.at_most(claim.sent) >= terms.ttl_s - terms.margin_s:
            raise LeaseHeld(f"the lease {name!r} was not taken: the store took longer to answer than a lease lasts")
        if verdict is ClaimVerdict.HOLD:
            return records
        if verdict is ClaimVerdict.WITHDRAW or attempt.last:
            raise _held(store, name, [it for it in records if it.name != claim.name], terms)
    raise AssertionError("the last attempt returns or raises")


def judge(stem: Stem, mine: str, records: list[Record], now: float, terms: LeaseTerms) -> ClaimVerdict:
    """Decide what to do about our claim `mine`. `now` is the store's time, or earlier."""
    others = [record for record in records if record.name != mine]
    rivals = {*live(others, now, terms), *not_below(others, stem.token)}
    if not rivals:
        return ClaimVerdict.HOLD
    # One claim must stay, or all would withdraw because of each other; it holds the lease only once it is alone.
    ours = min((record.stamp, stem.nonce) for record in records if record.name == mine)
    may_wait = all(it.token <= stem.token and not it.ended and ours < (it.stamp, it.nonce) for it in rivals)
    return ClaimVerdict.WAIT if may_wait else ClaimVerdict.WITHDRAW


def _own_stamp(claim: _Claim, records: list[Record]) -> float:
    """Return the earliest stamp of our claim: a request that the network duplicated may be stored again later.

    Raises StorageError if the listing lacks it: a store that forgets what it has just accepted cannot keep a lease.
    """
    stamps = [record.stamp for record in records if record.name == claim.name]
    if not stamps:
        if highest(records) > claim.stem.token:  # we were so slow that others came, went, and tidied up
            raise LeaseHeld(f"the lease {claim.stem.place} was taken by others meanwhile")
        raise StorageError(
            "the store's listing lacks a claim that it has just accepted, so it cannot tell who else is at work: "
            "use a store whose listings are strongly consistent"
        )
    return min(stamps) if claim.stamp is None else min(claim.stamp, *stamps)


def _held(store: ClaimStore, name: str, holders: list[Record], terms: LeaseTerms) -> LeaseHeld:
    who, since, until = _newest(store, holders, terms)
    return LeaseHeld(
        f"the lease {name!r} is held by {who}, seen at {stamp(since)}; unless it is released or renewed, it is "
        f"free at {stamp(until)}"
    )


def _newest(store: ClaimStore, holders: list[Record], terms: LeaseTerms) -> tuple[str, datetime, datetime]:
    """Return who made the newest of the claims, when, and when it expires for everyone."""
    newest = max(holders, key=lambda record: record.stamp)
    who = owner_of(newest.nonce) if newest.nonce else _owner(store, newest.name)
    seen = datetime.fromtimestamp(newest.stamp, UTC)
    return who, seen, seen + timedelta(seconds=dead_after(terms))


def _owner(store: ClaimStore, numbered: str) -> str:
    try:
        return owner_of(store.nonce(numbered) or "")
    except StorageError:
        return "somebody"
