"""Checking PNG and MP4 files by their structure, without decoding them and in constant memory.

    fault = png_fault(lambda first, last: data[first : last + 1], len(data))    # "" where nothing is wrong

Files are read in parts, as a bucket gives them, and each part once. A PNG is read from one end to the other, for its
checksums; of an MP4 only the heads of its boxes. What a file says of its own lengths is compared with its size before
anything is read by it.
"""

from collections.abc import Callable
from zlib import crc32

ReadPart = Callable[[int, int], bytes]
"""Returns the bytes from the first to the last position; fewer where the file ends before."""

PNG_PART = 2**20
MP4_PART = 2**16
"""Bytes that are read at once."""

MOST_PARTS = 100_000
"""Chunks of a PNG and boxes of an MP4. Real files have thousands at most; checking more takes too long."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_WEBM = b"\x1aE\xdf\xa3"


def png_fault(read: ReadPart, size: int) -> str:
    """Return what is wrong with the PNG of `size` bytes that `read` reads, or ""."""
    file = _ReadAhead(read, size, PNG_PART)
    if file.at(0, 8) != _SIGNATURE:
        return "it does not begin as a PNG does"
    start, kinds = 8, set[bytes]()
    for number in range(MOST_PARTS):
        head = file.at(start, 8)
        length, kind = int.from_bytes(head[:4]), head[4:]
        if len(head) < 8 or start + 12 + length > size:
            return f"it is cut short: the chunk at byte {start} goes on past its end"
        if not kind.isalpha() or (kind == b"IHDR") != (number == 0):
            return f"no valid chunk begins at byte {start}"
        if kind == b"IHDR" and (length != 13 or not all(_sides(file.at(start + 8, 8)))):
            return "its header names no size"
        if file.crc(start + 4, 4 + length) != int.from_bytes(file.at(start + 8 + length, 4)):
            return f"the checksum of the chunk at byte {start} does not fit"
        kinds.add(kind)
        start += 12 + length
        if kind == b"IEND":
            return _end_fault(start, size, has_pixels=b"IDAT" in kinds)
    return f"it has more than {MOST_PARTS} chunks"


def mp4_fault(read: ReadPart, size: int) -> str:
    """Return what is wrong with the MP4 of `size` bytes that `read` reads, or "". A WebM, which vendors may deliver
    too, is not looked into."""
    file = _ReadAhead(read, size, MP4_PART)
    if file.at(0, 4) == _WEBM:
        return ""
    if file.at(4, 4) != b"ftyp":
        return "it does not begin as an MP4 does"
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
    """Return where the content of each box between `start` and `end` begins and ends, and what is wrong, or "".

    Each box begins with its length and its name; 1 stands for a length of 64 bits behind the name, 0 for all the rest
    of the file [ISO/IEC 14496-12, 4.2].
    """
    found: dict[bytes, tuple[int, int]] = {}
    for _ in range(MOST_PARTS):
        if start == end:
            return found, ""
        head = file.at(start, 16)
        length, name, begin = int.from_bytes(head[:4]), head[4:8], 8
        if length == 1:
            length, begin = int.from_bytes(head[8:16]), 16
        elif length == 0:
            length = end - start
        if length > end - start or end - start < 8:
            return found, f"it is cut short: the box at byte {start} goes on past its end"
        if length < begin:
            return found, f"no valid box begins at byte {start}"
        found.setdefault(name, (start + begin, start + length))
        start += length
    return found, f"it has more than {MOST_PARTS} boxes"


class _ReadAhead:
    """A file that is read part by part. The last part is kept."""

    def __init__(self, read: ReadPart, size: int, part: int) -> None:
        self._read, self._size, self._part = read, size, part
        self._start, self._kept = 0, b""

    def at(self, start: int, length: int) -> bytes:
        """Return a few bytes, fewer where the file ends before."""
        first = self._some(start, length)
        return first if len(first) in (0, length) else first + self._some(start + len(first), length - len(first))

    def crc(self, start: int, length: int) -> int:
        """Return the checksum of so many bytes, however many they are."""
        end, found = start + length, 0
        while start < end and (some := self._some(start, end - start)):
            found, start = crc32(some, found), start + len(some)
        return found

    def _some(self, start: int, most: int) -> bytes:
        """Return at least one byte from `start` on, unless the file ends there."""
        if not self._start <= start < self._start + len(self._kept):
            last = min(start + self._part, self._size) - 1
            self._start, self._kept = start, self._read(start, last) if last >= start else b""
        offset = start - self._start
        return self._kept[offset : offset + most]
