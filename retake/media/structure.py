"""Structural checks of PNG and MP4 files, without decoding and in constant memory.

    fault = png_fault(lambda first, last: data[first : last + 1], len(data))    # "" if nothing is wrong

Files are read in parts, as a bucket returns them, and each part once. A PNG is read completely, for its checksums, an
MP4 only at its box headers. Each length stated in a file is checked against the file's size before it is used.
"""

from collections.abc import Callable
from zlib import crc32

ReadPart = Callable[[int, int], bytes]
"""Returns the bytes from the first to the last position, fewer at the end of the file."""

PNG_PART = 2**20
MP4_PART = 2**16
"""Bytes per read."""

MAX_PARTS = 100_000
"""Maximum number of chunks in a PNG or boxes in an MP4. Real files have thousands; checking more takes too long."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_WEBM = b"\x1aE\xdf\xa3"


def png_fault(read: ReadPart, size: int) -> str:
    """Return what is wrong with the PNG of `size` bytes behind `read`, or ""."""
    file = _ReadAhead(read, size, PNG_PART)
    if file.at(0, 8) != _SIGNATURE:
        return "it does not begin like a PNG"
    start, kinds = 8, set[bytes]()
    for number in range(MAX_PARTS):
        head = file.at(start, 8)
        length, kind = int.from_bytes(head[:4]), head[4:]
        if len(head) < 8 or start + 12 + length > size:
            return f"it is cut short: the chunk at byte {start} extends past its end"
        if not kind.isalpha() or (kind == b"IHDR") != (number == 0):
            return f"no valid chunk begins at byte {start}"
        if kind == b"IHDR" and (length != 13 or not all(_sides(file.at(start + 8, 8)))):
            return "its header gives no size"
        if file.crc(start + 4, 4 + length) != int.from_bytes(file.at(start + 8 + length, 4)):
            return f"the checksum of the chunk at byte {start} does not match"
        kinds.add(kind)
        start += 12 + length
        if kind == b"IEND":
            return _end_fault(start, size, has_pixels=b"IDAT" in kinds)
    return f"it has more than {MAX_PARTS} chunks"


def mp4_fault(read: ReadPart, size: int) -> str:
    """Return what is wrong with the MP4 of `size` bytes behind `read`, or "".

    A WebM, which vendors may also deliver, is not examined.
    """
    file = _ReadAhead(read, size, MP4_PART)
    if file.at(0, 4) == _WEBM:
        return ""
    if file.at(4, 4) != b"ftyp":
        return "it does not begin like an MP4"
    boxes, fault = _boxes(file, 0, size)
    if fault:
        return fault
    lacking = [name for name in ("moov", "mdat") if name.encode() not in boxes]
    if lacking:
        return f"it has no {' and no '.join(lacking)} box"
    inner, fault = _boxes(file, *boxes[b"moov"])
    return fault or ("" if {b"mvhd", b"trak"} <= inner.keys() else "its moov box describes no track")


def _sides(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[:4]), int.from_bytes(data[4:])


def _end_fault(end: int, size: int, *, has_pixels: bool) -> str:
    if not has_pixels:
        return "it has no pixels"
    return f"{size - end} bytes follow its end" if size > end else ""


def _boxes(file: "_ReadAhead", start: int, end: int) -> tuple[dict[bytes, tuple[int, int]], str]:
    """Return the start and end of the content of each box between `start` and `end`, and what is wrong, or "".

    A box begins with its length and its name. Length 1 means that a 64-bit length follows the name, length 0 that the
    box extends to the end of the file [ISO/IEC 14496-12, 4.2].
    """
    found: dict[bytes, tuple[int, int]] = {}
    for _ in range(MAX_PARTS):
        if start == end:
            return found, ""
        head = file.at(start, 16)
        length, name, begin = int.from_bytes(head[:4]), head[4:8], 8
        if length == 1:
            length, begin = int.from_bytes(head[8:16]), 16
        elif length == 0:
            length = end - start
        if length > end - start or end - start < 8:
            return found, f"it is cut short: the box at byte {start} extends past its end"
        if length < begin:
            return found, f"no valid box begins at byte {start}"
        found.setdefault(name, (start + begin, start + length))
        start += length
    return found, f"it has more than {MAX_PARTS} boxes"


class _ReadAhead:
    """A file that is read part by part. Only the last part is kept."""

    def __init__(self, read: ReadPart, size: int, part: int) -> None:
        self._read, self._size, self._part = read, size, part
        self._start, self._kept = 0, b""

    def at(self, start: int, length: int) -> bytes:
        """Return a few bytes, fewer at the end of the file."""
        first = self._some(start, length)
        return first if len(first) in (0, length) else first + self._some(start + len(first), length - len(first))

    def crc(self, start: int, length: int) -> int:
        """Return the checksum of any number of bytes."""
        end, found = start + length, 0
        while start < end and (some := self._some(start, end - start)):
            found, start = crc32(some, found), start + len(some)
        return found

    def _some(self, start: int, most: int) -> bytes:
        """Return at least one byte starting at `start`, unless the file ends there."""
        if not self._start <= start < self._start + len(self._kept):
            last = min(start + self._part, self._size) - 1
            self._start, self._kept = start, self._read(start, last) if last >= start else b""
        offset = start - self._start
        return self._kept[offset : offset + most]
