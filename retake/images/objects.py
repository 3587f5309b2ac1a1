"""The files of jobs in the bucket: the pictures that came with a job, and the one that it made."""

from typing import NamedTuple

from retake.bucket import Bucket
from retake.bucket.empty_folders import remove_folder
from retake.media.structure import png_fault

FOLDER = "jobs/"


class PictureKind(NamedTuple):
    """A picture format, identified by the first bytes of a file."""

    ending: str  # file name extension, without the dot
    media_type: str


_PNG, _JPEG, _WEBP = (
    PictureKind("png", "image/png"),
    PictureKind("jpg", "image/jpeg"),
    PictureKind("webp", "image/webp"),
)


def picture_of(data: bytes) -> PictureKind | None:
    """Return the format of a picture, or None if it is not a PNG, JPEG or WebP. Only the first bytes are examined."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _PNG
    if data.startswith(b"\xff\xd8\xff"):
        return _JPEG
    return _WEBP if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def fault_of(data: bytes) -> str:
    """Return why a PNG is not complete, or ""; a file of another format is not examined."""
    return png_fault(lambda first, last: data[first : last + 1], len(data)) if picture_of(data) is _PNG else ""


def media_type_of(key: str, data: bytes) -> str:
    """Return the media type of a file: of a picture by its first bytes, of other files by the extension of its key."""
    if kind := picture_of(data):
        return kind.media_type
    ending = key.rpartition(".")[2].lower()
    known = {it.ending: it.media_type for it in (_PNG, _JPEG, _WEBP)} | {"jpeg": _JPEG.media_type}
    return known.get(ending, "application/octet-stream")


def folder_of(job_id: str) -> str:
    """Return the common prefix of the keys of a job's files."""
    return f"{FOLDER}{job_id}/"


def output_key(job_id: str, kind: PictureKind) -> str:
    """Return the key of the picture that a job made."""
    return f"{folder_of(job_id)}output.{kind.ending}"


def input_key(job_id: str, which: str, kind: PictureKind) -> str:
    """Return the key of a picture that came with a job; `which` is "person" or "garment"."""
    return f"{folder_of(job_id)}input_{which}.{kind.ending}"


def remove_files(bucket: Bucket, job_id: str) -> None:
    """Delete all files of a job, and their folder. Raises StorageError; a repeated call does the rest."""
    for entry in bucket.list(folder_of(job_id)):
        bucket.delete(entry.key)
    remove_folder(bucket, folder_of(job_id))
