"""The lease of a bucket in a store without locks."""

from retake.bucket.claim_store import Claims, ClaimStore, Stamped

__all__ = ["ClaimStore", "Claims", "Stamped"]
