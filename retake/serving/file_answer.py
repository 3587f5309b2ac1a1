"""Files over HTTP: the whole file, or the range that a player asks for."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from fastapi import Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from retake.serving.answers import refused
from retake.serving.streamed_answer import StreamedAnswer

PIECE = 2 * 2**20
"""Bytes of a file held in memory at a time."""

TYPES = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp", "mp4": "video/mp4"}

_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})", re.ASCII)


def file_answer(
    request: Request, name: str, size: int, read: Callable[[int, int], bytes], headers: Mapping[str, str]
) -> Response:
    """Return a file of `size` bytes, or the range of it in the Range header, sent PIECE bytes at a time.

    `read(first, last)` returns these bytes of the file, or b"" if it is gone. `headers` are added to the response. A
    request for several ranges gets the whole file. Raises HTTPException (404).
    """
    answer_headers = {"content-disposition": f'inline; filename="{name}"', "accept-ranges": "bytes", **headers}
    wanted = request.headers.get("range")
    if request.headers.get("if-range", answer_headers.get("etag")) != answer_headers.get("etag"):
        wanted = None
    part = wanted_part(wanted, size) if wanted else None
    first, last = part or (0, size - 1)
    if part and first > last:
        refusal = refused(416, "there is no such part")
        refusal.headers.update({**answer_headers, "content-range": f"bytes */{size}"})
        return refusal
    answer_headers["content-length"] = str(last + 1 - first)
    if part:
        answer_headers["content-range"] = f"bytes {first}-{last}/{size}"
    status, kind = 206 if part else 200, TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    if request.method == "HEAD":
        return Response(status_code=status, headers=answer_headers, media_type=kind)
    pieces = _pieces(read, first, last)
    begun = next(pieces, b"")  # before the status is sent: the file may be gone
    return StreamedAnswer(chain([begun], pieces), status, answer_headers, kind)


def _pieces(read: Callable[[int, int], bytes], first: int, last: int) -> Iterator[bytes]:
    while first <= last:
        until = min(last, first + PIECE - 1)
        data = read(first, until)
        if len(data) != until + 1 - first:
            raise HTTPException(404, "there is no such file")
        yield data
        first = until + 1


def wanted_part(wanted: str, size: int) -> tuple[int, int] | None:
    """Return the first and last byte that the Range header asks for, or None for the whole file.

    If the last byte is before the first, the range cannot be satisfied.
    """
    found = _RANGE.fullmatch(wanted.strip())
    if not found or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size - 1 if int(found[2]) else -1
    first, last = int(found[1]), int(found[2]) if found[2] else size - 1
    if last < first:
        return None if found[2] else (size, -1)
    return (first, min(last, size - 1)) if first < size else (size, -1)
