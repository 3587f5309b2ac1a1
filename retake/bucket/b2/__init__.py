"""The bucket on Backblaze B2, by its native API (b2sdk)."""

from retake.bucket.b2.bucket import B2Bucket

__all__ = ["B2Bucket"]
