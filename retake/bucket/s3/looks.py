"""Looks at several objects at once in an S3-compatible store, by concurrent requests. With a lease they are sent while
its claims are listed; retake.bucket.b2.looks says why that is safe."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from retake.bucket import Entry, Lease, LeaseTerms, NotFound
from retake.bucket.claims.lease import KillTimer
from retake.bucket.claims.names import place_of
from retake.bucket.claims.store import Claims
from retake.bucket.contract import Sight
from retake.bucket.s3.client import S3Client, S3Place
from retake.bucket.s3.conditions import conditions
from retake.bucket.s3.leases import S3ClaimStore, S3Leases
from retake.bucket.side_by_side import meanwhile, side_by_side
from retake.clock import Clock


class S3View(NamedTuple):
    """A `Sight` of `bucket` that answers from what was found."""

    bucket: Sight
    objects: Mapping[str, tuple[bytes, str] | None]  # by key; None: there is none
    entries: Mapping[str, list[Entry]]  # by prefix

    def read(self, key: str) -> tuple[bytes, str]:
        if key not in self.objects:
            return self.bucket.read(key)
        found = self.objects[key]
        if found is None:
            raise NotFound(key)
        return found

    def list(self, prefix: str) -> list[Entry]:
        for listed, entries in self.entries.items():
            if prefix.startswith(listed):
                return [entry for entry in entries if entry.key.startswith(prefix)]
        return self.bucket.list(prefix)


class S3Looks(S3Leases):
    """`Looks` (see retake.bucket.contract)."""

    def __init__(
        self, client: S3Client, place: S3Place, clock: Clock, terms: LeaseTerms, kill_timer: KillTimer
    ) -> None:
        super().__init__(client, place, clock, terms, kill_timer)
        self._prepared: dict[str, LookingS3Claims] = {}  # by the lease that is to be taken

    def look(self, keys: Sequence[str], prefixes: Sequence[str]) -> Sight:
        """See `Looks.look`."""
        bucket = cast("Sight", self)
        objects: dict[str, tuple[bytes, str] | None] = dict.fromkeys(keys)
        entries: dict[str, list[Entry]] = {}

        def read(key: str) -> None:
            try:
                objects[key] = bucket.read(key)
            except NotFound:
                objects[key] = None

        def listing(prefix: str) -> None:
            entries[prefix] = bucket.list(prefix)

        side_by_side([*(partial(read, key) for key in keys), *(partial(listing, it) for it in prefixes)])
        return S3View(bucket, objects, entries)

    def lease_and_look(
        self, name: str, owner: str, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple[Lease, Sight]:
        """See `Looks.lease_and_look`."""
        claims = self._prepared.pop(name, None) or LookingS3Claims(self._claim_client(), self._place)
        claims.look_beside(partial(self.look, keys, prefixes))
        lease = self.lease(name, owner, claims)
        return lease, claims.view or self.look(keys, prefixes)

    def prepare_lease(self, name: str) -> None:
        """See `Looks.prepare_lease`."""
        claims = LookingS3Claims(self._claim_client(), self._place)
        claims.list_ahead(name)
        self._prepared[name] = claims


class LookingS3Claims(S3ClaimStore):
    """Claims whose listing, once our own is stored, runs beside a look at other objects. The first listing runs beside
    the probe of conditional writes."""

    def __init__(self, client: S3Client, place: S3Place) -> None:
        super().__init__(client, place)
        self._look: Callable[[], Sight | None] = lambda: None
        self._ahead: Claims | None = None
        self._claimed = False
        self.view: Sight | None = None

    def look_beside(self, look: Callable[[], Sight]) -> None:
        """Call `look` while the claims are listed, once our own is stored."""
        self._look = look

    def list_ahead(self, name: str) -> None:
        """Make the first listing of the claims to the lease `name` now, before it is taken."""
        self._ahead = self.claims(place_of(name))

    def claims(self, prefix: str) -> Claims:
        ahead, self._ahead = self._ahead, None
        if ahead and not self._claimed:
            return ahead
        with meanwhile(self._look if self._claimed else self._try_out) as ended:
            claims = super().claims(prefix)
            self.view = ended()
        return claims

    def claim(self, name: str) -> float:
        stamp = super().claim(name)
        self._claimed = True
        return stamp

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        is_ours = super().claim_if_absent(name, nonce)
        self._claimed = self._claimed or is_ours
        return is_ours

    def _try_out(self) -> None:
        conditions(self._client, self._place)
