"""Claims on B2: small files that are never overwritten, and one consistent listing.

B2 refuses conditional headers on its S3 API (501) and has none on its native one. So claims here are never made by
create-if-absent, whatever a server answers.
"""

from retake.bucket.b2.calls import B2Calls
from retake.bucket.claims.store import Claims, Stamped

DEADLINE_S = 15.0  # of one call for the lease, including repetitions and pauses


class B2ClaimStore:
    """A `ClaimStore` below `place` in the bucket of `calls`."""

    conditional = False

    def __init__(self, calls: B2Calls, place: str) -> None:
        self._calls, self._place = calls, place
        self._ids: dict[str, set[str]] = {}  # of what we have seen, so that removing it needs no listing

    def claims(self, prefix: str) -> Claims:
        with self._calls.within(DEADLINE_S):
            found = self._calls.versions(self._place + prefix)
        for version in found:
            self._ids.setdefault(version.name, set()).add(version.id)
        stamped = tuple(Stamped(it.name.removeprefix(self._place), it.stamp) for it in found if not it.hides)
        return Claims(stamped, self._calls.date)

    def claim(self, name: str) -> float:
        """See `ClaimStore.claim`. B2 gives stamps in milliseconds, but orders by seconds only."""
        with self._calls.within(DEADLINE_S):
            stored = self._calls.upload(self._place + name, b"", {}, once=True)
        self._ids.setdefault(stored.name, set()).add(stored.id)
        return stored.stamp

    def withdraw(self, name: str) -> None:
        whole = self._place + name
        with self._calls.within(DEADLINE_S):
            ids = self._ids.get(whole) or {version.id for version in self._calls.versions_of(whole)}
            for version_id in ids:
                self._calls.delete(version_id, whole)
        self._ids.pop(whole, None)

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        raise NotImplementedError("B2 has no conditional writes")

    def nonce(self, name: str) -> str | None:
        raise NotImplementedError("B2 has no conditional writes")
