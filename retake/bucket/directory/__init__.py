"""The bucket in a local directory: durable files, locks of the kernel. The default."""

from retake.bucket.directory.bucket import DirectoryBucket

__all__ = ["DirectoryBucket"]
