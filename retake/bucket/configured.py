"""The bucket that the settings name."""

from retake.bucket import Bucket, LeaseTerms, open_bucket
from retake.settings.shared import StorageSettings, Workflow


def open_configured(storage: StorageSettings, workflow: Workflow, *, dead_mans_switch: bool = False) -> Bucket:
    """Open the bucket that STORAGE names, with leases by WORKFLOW. With the switch, the kernel ends this process when
    its lease runs out. Raises SettingsError."""
    from retake.logs import diagnosing

    ttl, skew = workflow.lock_ttl_seconds, workflow.lock_skew_seconds
    skew = min(30.0, ttl / 4) if skew is None else skew
    bucket = open_bucket(
        storage.url,
        lease_terms=LeaseTerms(ttl_s=ttl, skew_s=skew, margin_s=min(5.0, ttl / 24)),
        dead_mans_switch=dead_mans_switch,
        umask=int(storage.umask, 8),
        follow_links=storage.follow_links,
    )
    if diagnosing():
        from retake.bucket.diagnosed import DiagnosedBucket

        return DiagnosedBucket(bucket)
    return bucket
