"""Leases in a store that has no locks (B2, S3): small objects, called claims, that never change, and true listings."""

from retake.bucket.claims.lease import ClaimLease, LeaseClock
from retake.bucket.claims.leases import ClaimLeases
from retake.bucket.claims.protocol import break_lease, holder, join, take
from retake.bucket.claims.store import Claims, ClaimStore, Stamped

__all__ = [
    "ClaimLease",
    "ClaimLeases",
    "ClaimStore",
    "Claims",
    "LeaseClock",
    "Stamped",
    "break_lease",
    "holder",
    "join",
    "take",
]
