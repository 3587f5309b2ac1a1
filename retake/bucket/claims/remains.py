"""Remnants among the claims of leases: expired claims, scratch objects, and objects of other programs."""

import re
from collections.abc import Callable, Iterator

from retake.bucket import LeaseTerms
from retake.bucket.claims.lease import LeaseClock
from retake.bucket.claims.names import dead_after, is_claim, last_end, lease_of, live, parse
from retake.bucket.claims.protocol import take
from retake.bucket.claims.store import Claims, ClaimStore, Stamped
from retake.bucket.scanning import CLAIM, SCRATCH, STRANGER, Remnant

_LEFTOVER_S = 24 * 3600.0  # the writer of a scratch object this old is gone
_OWN_FOLDER = ".retake/"
_PARTED = re.compile(r"((?:writes/)?)(leases/[^/]+/|scratch/)(.*)", re.DOTALL)


def claims_left(store: ClaimStore, terms: LeaseTerms) -> Iterator[Remnant]:
    """Yield the remnants in `store`, by one listing; nothing if the store does not tell the time.

    A lease has expired if its holder has neither released nor renewed it for longer than `terms` allow. It can then be
    taken, and the next holder removes what is left; until then the remnant shows who died.
    """
    seen = store.claims("")
    if seen.date is None:
        return
    places: dict[tuple[str, str], list[Stamped]] = {}
    for it in seen.found:
        if (parted := _PARTED.fullmatch(it.name)) is None:
            continue
        if parted[2] != "scratch/":
            places.setdefault((parted[1], parted[2]), []).append(it._replace(name=parted[2] + parted[3]))
        elif seen.date - it.stamp > _LEFTOVER_S:
            yield Remnant(_OWN_FOLDER + it.name, SCRATCH, 0, it.stamp, removable=True)
    for (above, place), found in sorted(places.items()):
        yield from _left_of(above, place, found, seen.date, terms)


def _left_of(above: str, place: str, found: list[Stamped], now: float, terms: LeaseTerms) -> Iterator[Remnant]:
    ours = [it for it in found if is_claim(place, it.name)]
    for it in found:
        if it not in ours:
            yield Remnant(f"{_OWN_FOLDER}{above}{it.name}", STRANGER, 0, it.stamp, removable=False)
    records = parse(place, Claims(tuple(ours), now))
    open_claims = [it for it in records if it.token > last_end(records)]
    if open_claims and not live(records, now, terms):
        newest = max(open_claims, key=lambda it: (it.stamp, it.name))
        removable = lease_of(place) is not None and len(ours) == len(found)
        yield Remnant(f"{_OWN_FOLDER}{above}{newest.name}", CLAIM, 0, newest.stamp, removable=removable)


def clear_claims(connect: Callable[[str], ClaimStore], remnant: Remnant, clock: LeaseClock, terms: LeaseTerms) -> None:
    """Remove a remnant from `connect("")`, or from `connect("writes/")`, the store of the short leases.

    An expired lease is taken and released, as its next holder would do, which keeps its token. Raises LeaseHeld.
    """
    parted = _PARTED.fullmatch(remnant.name.removeprefix(_OWN_FOLDER))
    if parted is None:
        raise ValueError(f"{remnant.name} is not ours")
    store = connect(parted[1])
    if parted[2] == "scratch/":
        store.withdraw(parted[2] + parted[3])
    elif (name := lease_of(parted[2])) is not None:
        take(store, name, "retake check", clock=clock, terms=terms).release()


def longest(*terms: LeaseTerms) -> LeaseTerms:
    """Return the terms by which a claim expires last."""
    return max(terms, key=dead_after)
