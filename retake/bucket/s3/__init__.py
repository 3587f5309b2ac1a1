"""The bucket in an S3-compatible store: Amazon S3, R2, MinIO and others (botocore)."""

from retake.bucket.s3.bucket import S3Bucket

__all__ = ["S3Bucket"]
