"""The names of claims. They contain all facts, so one listing is enough.

    leases/<lease>/<token, 12 digits>                            a claim made by create-if-absent
    leases/<lease>/<token, 12 digits>.<nonce>.<seq, 4 digits>    a claim or its renewal
    leases/<lease>/<token, 12 digits>.<nonce>.end                released; kept to remember the token

A nonce is `<16 hexadecimal digits>~<owner>`. No name is written twice, and the highest token is never deleted.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from retake.bucket import LeaseTerms, check_key
from retake.bucket.claims.store import Claims
from retake.errors import StorageError

_NAME = re.compile(r"(\d{12,18})(?:\.([0-9a-f]{16}~[^./]*)\.(\d{4,}|end))?")
_HANDED = re.compile(r"(\d{12,18})\.([0-9a-f]{16}~[^./\s]*)")
_MAX_NAME_BYTES = 200  # of a lease's quoted name; a longer one is cut and gets a hash


class Record(NamedTuple):
    """One object of a lease."""

    name: str
    stamp: float  # seconds since the epoch, by the store's clock
    token: int
    nonce: str  # "" if it was made by create-if-absent
    ended: bool


class Stem(NamedTuple):
    """The part of the name that all records of one holder share."""

    place: str
    token: int
    nonce: str

    @property
    def numbered(self) -> str:
        """The name of a claim made by create-if-absent."""
        return f"{self.place}{self.token:012d}"

    def renewal(self, seq: int) -> str:
        """Return the name of the claim (0) or of a renewal."""
        return f"{self.numbered}.{self.nonce}.{seq:04d}"

    @property
    def end(self) -> str:
        """The name of the record that ends the lease."""
        return f"{self.numbered}.{self.nonce}.end"

    @property
    def handed(self) -> str:
        """The content of `Handover.text`."""
        return f"{self.token:012d}.{self.nonce}"


def place_of(lease: str) -> str:
    """Return the folder of the lease's records. Raises ValueError if the name is not a key."""
    name = quote(check_key(lease), safe="")
    if len(name) > _MAX_NAME_BYTES:
        from hashlib import sha256

        name = f"{name[:100]}~{sha256(name.encode()).hexdigest()[:32]}"
    return f"leases/{name}/"


def nonce_of(random: bytes, owner: str) -> str:
    """Return a unique nonce: 8 random bytes, and the owner for people to read."""
    return f"{random[:8].hex()}~{quote(owner, safe='')[:60].replace('.', '%2E').replace('~', '%7E')}"


def owner_of(nonce: str) -> str:
    """Return the owner that a nonce names."""
    return unquote(nonce.partition("~")[2]) or "somebody"


def parse_handed(place: str, text: str) -> Stem | None:
    """Parse the text of `Stem.handed`; None if it is something else."""
    found = _HANDED.fullmatch(text)
    return Stem(place, int(found[1]), found[2]) if found else None


def parse(place: str, claims: Claims) -> list[Record]:
    """Return the records in a listing. Raises StorageError for an unknown name: never guess about a lock."""
    return [_record(place, name, stamp) for name, stamp in claims.found if name != place]


def is_claim(place: str, name: str) -> bool:
    """Return whether an object below `place` has the name of a claim."""
    return name == place or _NAME.fullmatch(name.removeprefix(place)) is not None


def lease_of(place: str) -> str | None:
    """Return the lease whose records are at `place`, or None if the folder's name does not tell (it was cut)."""
    name = unquote(place.removeprefix("leases/").rstrip("/"))
    try:
        return name if place_of(name) == place else None
    except ValueError:
        return None


def _record(place: str, name: str, stamp: float) -> Record:
    found = _NAME.fullmatch(name.removeprefix(place))
    if not found:
        raise StorageError(f".retake/{name} is not one of our claims: find out who put it there, and remove it")
    token, nonce, seq = found.groups()
    return Record(name, stamp, int(token), nonce or "", seq == "end")


def highest(records: Iterable[Record]) -> int:
    """Return the highest token, 0 if there are no records."""
    return max((record.token for record in records), default=0)


def last_end(records: Iterable[Record]) -> int:
    """Return the highest token that was released.

    It ends all claims up to it: its holder saw that they were over, and a later claim with a lower token sees it.
    """
    return highest(record for record in records if record.ended)


def dead_after(terms: LeaseTerms) -> float:
    """Return the seconds, by the store's clock, after which a claim's holder has certainly stopped.

    The skew counts twice: the claim's stamp may be early, and the current time late, by that much.
    """
    return terms.ttl_s + 2 * terms.skew_s


def live(records: Iterable[Record], now: float, terms: LeaseTerms) -> list[Record]:
    """Return the claims whose holders may still be alive. `now` is the store's time, or earlier."""
    records = list(records)
    end = last_end(records)
    return [it for it in records if it.token > end and now - it.stamp <= dead_after(terms)]


def not_below(records: Iterable[Record], token: int) -> list[Record]:
    """Return the records that rule out `token` however old they are: tokens only rise."""
    return [record for record in records if record.token >= token]
