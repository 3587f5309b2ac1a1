"""Files over HTTP: the whole one, or the part that a player asks for."""

import re

from fastapi.responses import Response
from starlette.exceptions import HTTPException

TYPES = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp", "mp4": "video/mp4"}

_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})", re.ASCII)


def file_answer(name: str, data: bytes, wanted: str | None) -> Response:
    """Return the file, or the part of it that the header Range asks for (`wanted`, None for no header).

    Several parts in one request are not given: that is then answered with the whole file. Raises HTTPException (416).
    """
    headers = {
        "content-disposition": f'inline; filename="{name}"',
        "x-content-type-options": "nosniff",
        "accept-ranges": "bytes",
        "cache-control": "private, max-age=86400, immutable",  # another take has another name
    }
    media_type = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    part = wanted_part(wanted, len(data)) if wanted else None
    if part is None:
        return Response(data, headers=headers, media_type=media_type)
    first, last = part
    if first > last:
        raise HTTPException(416, "there is no such part", {"content-range": f"bytes */{len(data)}"})
    headers["content-range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], 206, headers=headers, media_type=media_type)


def wanted_part(wanted: str, size: int) -> tuple[int, int] | None:
    """Return the first and the last byte that the header Range asks for, or None for all of them. Where the last one
    is before the first, there is no such part."""
    found = _RANGE.fullmatch(wanted.strip())
    if not found or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size - 1 if int(found[2]) else -1
    first, last = int(found[1]), int(found[2]) if found[2] else size - 1
    if last < first:
        return None if found[2] else (size, -1)
    return (first, min(last, size - 1)) if first < size else (size, -1)
