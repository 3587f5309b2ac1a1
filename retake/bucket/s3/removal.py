"""Removes an object with all its versions."""

from contextlib import suppress

from retake.bucket.s3.client import S3Client
from retake.errors import StorageError


def remove(client: S3Client, key: str, doing: str) -> None:
    """Remove the object with every version that the store keeps, but none that somebody writes meanwhile. `doing`
    completes "cannot …". Raises StorageError."""
    answer = client.must(doing, "delete_object", Key=key)
    if "VersionId" not in answer and "DeleteMarker" not in answer:
        return
    versions, markers = _versions(client, key, doing)
    for version in [*versions, *markers]:  # delete markers go last, or an older version would come back
        client.must(doing, "delete_object", Key=key, VersionId=version)


def remove_quietly(client: S3Client, key: str) -> None:
    """Remove the object if possible. Nothing is raised, since an object that stays does no harm."""
    with suppress(StorageError):
        remove(client, key, f"delete {key}")


def _versions(client: S3Client, key: str, doing: str) -> tuple[list[str], list[str]]:
    """Return the versions before the last delete marker, and the markers."""
    versions: list[str] = []
    markers: list[str] = []
    more: dict[str, str] = {}
    while True:
        answer = client.must(doing, "list_object_versions", Prefix=key, **more)
        older = (it for it in answer.get("Versions", []) if not it.get("IsLatest"))
        versions += [it["VersionId"] for it in older if it["Key"] == key]
        markers += [it["VersionId"] for it in answer.get("DeleteMarkers", []) if it["Key"] == key]
        past = answer.get("NextKeyMarker", "")
        if not answer.get("IsTruncated") or past > key:
            return versions, markers
        more = {"KeyMarker": past, "VersionIdMarker": answer.get("NextVersionIdMarker", "")}
