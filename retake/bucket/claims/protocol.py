"""The lease of a bucket in a store without locks: list, claim, list again, and withdraw from any doubt.

Two who claim at the same time both see it in their second listing, whatever the order in which the store took the
claims, for the listing comes after one's own claim. Age is judged by the store's clock alone, and one's own term is
counted from before the claim was sent. So a claim is called dead only after its holder has stopped.

Compare restic's `internal/repository/lock.go` (list, write, list) and borg's `storelocking.py` (age by the store's
clock, after #10077). Why there are no «earliest version wins», no ages by our own clock and no claims deleted with
their tokens: tests/bucket/lease_model.py shows for each how two then hold the lease.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from retake.bucket import Holder, LeaseTerms
from retake.bucket.claims.lease import ClaimLease, JoinedLease, store_now
from retake.bucket.claims.lease_clock import LeaseClock, Moment
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
from retake.bucket.kill_timer import Switch, no_switch
from retake.clock import stamp
from retake.errors import LeaseHeld, LeaseLost, StorageError

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 1.6)  # between looks while rivals, who must give way, have not yet


class _Claim(NamedTuple):
    """Our claim while it is not yet a lease."""

    stem: Stem
    name: str
    sent: Moment  # before the request
    answered: Moment
    stamp: float | None  # as the answer had it


class Verdict(Enum):
    """What a listing with our claim in it says."""

    HOLD = "the lease is ours"
    WAIT = "all rivals must give way to us"
    WITHDRAW = "somebody else may hold it"


def take(
    store: ClaimStore,
    name: str,
    owner: str,
    *,
    clock: LeaseClock,
    terms: LeaseTerms = LeaseTerms(),  # noqa: B008  immutable
    renewing: Callable[[], ClaimStore] | None = None,
    switch: Switch = no_switch,
    random: Callable[[int], bytes] = os.urandom,
) -> ClaimLease:
    """Take the lease called `name`, at once or not at all. Raises LeaseHeld, naming the holder; StorageError.

    `renewing` makes a second client of the same store: then a thread renews the lease until it is given back.
    `switch` is the dead-man's switch: `retake.bucket.kill_timer.set_switch` in a process that is lost with its lease.
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
        with suppress(StorageError):  # it was never a holder's: it may go, and if it stays it dies
            store.withdraw(claim.name)
        raise
    lower = [record.name for record in records if record.token < stem.token]
    lease = ClaimLease(store, stem, claim.name, claim.sent, clock=clock, terms=terms, lower=lower, switch=switch)
    if renewing:
        lease.keep(renewing)
    return lease


def holder(store: ClaimStore, name: str, *, now: float, terms: LeaseTerms) -> Holder | None:
    """Who may hold the lease, by one listing. `now` (seconds since the epoch) counts where the store does not say what
    time it is. Raises StorageError."""
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


def break_lease(store: ClaimStore, name: str, owner: str, *, random: Callable[[int], bytes] = os.urandom) -> int:
    """End whatever lease of that name there is, for an operator who knows that its holder is gone. Its new token.

    Nothing is deleted. Should the holder be alive after all, its scripts notice before their next write or payment,
    and it notices at its next renewal, a third of the term later at most.
    """
    place = place_of(name)
    stem = Stem(place, highest(parse(place, store.claims(place))) + 1, nonce_of(random(8), owner))
    store.claim(stem.end)
    return stem.token


def _refuse_if_held(store: ClaimStore, name: str, records: list[Record], seen: Claims, terms: LeaseTerms) -> None:
    """The time by the listing's own date is a hint here: a wrong one costs a try."""
    end = last_end(records)
    if any(record.token > end for record in records):
        holders = live(records, store_now(store, seen), terms)
        if holders:
            raise _held(store, name, holders, terms)


def _claim(store: ClaimStore, name: str, stem: Stem, clock: LeaseClock) -> _Claim:
    """Put our claim there. Raises LeaseHeld if somebody else had the number first."""
    sent = clock.mark()
    if store.conditional:
        if not store.claim_if_absent(stem.numbered, stem.nonce):
            raise LeaseHeld(f"the lease {name!r} has just been taken by {_owner(store, stem.numbered)}")
        return _Claim(stem, stem.numbered, sent, clock.mark(), None)
    claimed = stem.renewal(0)
    try:
        stored = store.claim(claimed)
    except StorageError:
        with suppress(StorageError):  # it may be there all the same, or come later: then it dies
            store.withdraw(claimed)
        raise
    return _Claim(stem, claimed, sent, clock.mark(), stored)


def _alone(store: ClaimStore, name: str, claim: _Claim, clock: LeaseClock, terms: LeaseTerms) -> list[Record]:
    """List until our claim stands alone. What there is then; raises LeaseHeld if it does not, StorageError."""
    for pause in (*_PAUSES_S, None):
        records = parse(claim.stem.place, store.claims(claim.stem.place))
        now = _own_stamp(claim, records) + clock.at_least(claim.answered)
        verdict = judge(claim.stem, claim.name, records, now, terms)
        if clock.at_most(claim.sent) >= terms.ttl_s - terms.margin_s:
            raise LeaseHeld(f"the lease {name!r} was not had: the store took longer to answer than a lease lasts")
        if verdict is Verdict.HOLD:
            return records
        if verdict is Verdict.WITHDRAW or pause is None:
            raise _held(store, name, [it for it in records if it.name != claim.name], terms)
        clock.sleep(pause)
    raise AssertionError


def judge(stem: Stem, mine: str, records: list[Record], now: float, terms: LeaseTerms) -> Verdict:
    """What to do about our claim `mine`. `now` is the store's time, or earlier."""
    others = [record for record in records if record.name != mine]
    rivals = {*live(others, now, terms), *not_below(others, stem.token)}
    if not rivals:
        return Verdict.HOLD
    # Somebody must stay, else all give way to each other; but it holds only when it is alone.
    ours = min((record.stamp, stem.nonce) for record in records if record.name == mine)
    may_wait = all(it.token <= stem.token and not it.ended and ours < (it.stamp, it.nonce) for it in rivals)
    return Verdict.WAIT if may_wait else Verdict.WITHDRAW


def _own_stamp(claim: _Claim, records: list[Record]) -> float:
    """The earliest stamp of our claim: a request that the network doubled may have been stored later once more.

    Raises StorageError if the listing lacks it: a store that forgets what it has just taken cannot keep a lease.
    """
    stamps = [record.stamp for record in records if record.name == claim.name]
    if not stamps:
        if highest(records) > claim.stem.token:  # we were so slow that others came and went, and tidied up
            raise LeaseHeld(f"the lease {claim.stem.place} was taken by others meanwhile")
        raise StorageError(
            "the store's listing lacks a claim that the store has just taken, so it cannot tell who else is at work: "
            "use a store whose listings are strongly consistent"
        )
    return min(stamps) if claim.stamp is None else min(claim.stamp, *stamps)


def _held(store: ClaimStore, name: str, holders: list[Record], terms: LeaseTerms) -> LeaseHeld:
    who, since, until = _newest(store, holders, terms)
    return LeaseHeld(
        f"the lease {name!r} is held by {who}, seen at {stamp(since)}; if it was not given back or renewed, it is "
        f"free at {stamp(until)}"
    )


def _newest(store: ClaimStore, holders: list[Record], terms: LeaseTerms) -> tuple[str, datetime, datetime]:
    """Who made the newest of the claims, when, and when it is dead."""
    newest = max(holders, key=lambda record: record.stamp)
    who = owner_of(newest.nonce) if newest.nonce else _owner(store, newest.name)
    seen = datetime.fromtimestamp(newest.stamp, UTC)
    return who, seen, seen + timedelta(seconds=dead_after(terms))


def _owner(store: ClaimStore, numbered: str) -> str:
    try:
        return owner_of(store.nonce(numbered) or "")
    except StorageError:
        return "somebody"
