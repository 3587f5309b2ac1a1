"""The body of an answer, read with a limit on what comes over the wire and on what it unpacks to."""

import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO

import requests

from retake.errors import Code
from retake.vendors.answers import NoReply

_CHUNK = 64 * 2**10
_GZIP, _ZLIB = 31, 15  # what zlib calls `wbits`
_PACKED = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}


def read_body(response: requests.Response, limit: int) -> bytes:
    """All of the body, unpacked; one shorter than its Content-Length is an error of urllib3's. Raises NoReply for one
    of more than `limit` bytes, before it is read where its Content-Length says so.

    No compression is asked for. Some send it all the same: gzip and deflate are understood, nothing else is.
    """
    length = response.headers.get("Content-Length", "")
    if length.isascii() and length.isdigit() and _exceeds(length, limit):
        raise _too_large(limit)
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    chunks = _chunks(response, limit)
    if encoding in ("", "identity"):
        return _joined(chunks, limit)
    if encoding not in _PACKED:
        raise _useless("it is encoded in a way that was not asked for")
    return _joined(_unpacked(chunks, _PACKED[encoding]), limit)


def _exceeds(digits: str, limit: int) -> bool:
    digits = digits.lstrip("0")
    return len(digits) > 20 or int(digits or "0") > limit


def _chunks(response: requests.Response, limit: int) -> Iterator[bytes]:
    """What comes over the wire, at most `limit` bytes. `read1` (urllib3 2) comes back with what is there."""
    left = limit
    while chunk := response.raw.read1(_CHUNK, decode_content=False):
        left -= len(chunk)
        if left < 0:
            raise _too_large(limit)
        yield chunk


def _unpacked(chunks: Iterable[bytes], wbits: int) -> Iterator[bytes]:
    """`chunks` decompressed, a bounded piece at a time."""
    machine = zlib.decompressobj(wbits)
    try:
        for chunk in chunks:
            while chunk and not machine.eof:
                yield machine.decompress(chunk, _CHUNK)
                chunk = machine.unconsumed_tail
        yield machine.flush()  # the end of a match that had no room in the last piece: 258 bytes at most
    except zlib.error:
        raise _useless("it cannot be decompressed") from None
    if not machine.eof:
        raise _useless("it cannot be decompressed to its end")


def _joined(chunks: Iterable[bytes], limit: int) -> bytes:
    """Without a second copy: BytesIO gives away the bytes that it has."""
    whole = BytesIO()
    for chunk in chunks:
        if whole.tell() + len(chunk) > limit:
            raise _too_large(limit)
        whole.write(chunk)
    return whole.getvalue()


def _too_large(limit: int) -> NoReply:
    return NoReply(Code.BAD_ANSWER, f"the answer is larger than {limit:,} bytes", sent=True)


def _useless(why: str) -> NoReply:
    return NoReply(Code.BAD_ANSWER, f"the answer is of no use: {why}", sent=True)
