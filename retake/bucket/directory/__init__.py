"""The bucket in a local directory, with durable files and kernel locks. The default."""

from retake.bucket.directory.bucket import DirectoryBucket

__all__ = ["DirectoryBucket"]
