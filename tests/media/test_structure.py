"""The structure of PNG and MP4: intact files have no fault, damaged ones have one, and little is read at a time."""

from collections.abc import Callable
from io import BytesIO
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retake.media.picture import Size
from retake.media.structure import MAX_PARTS, MP4_PART, PNG_PART, mp4_fault, png_fault
from retake.media.video import mock_video


def picture(width: int = 16, height: int = 16) -> bytes:
    kept = BytesIO()
    Image.effect_noise((width, height), 90).save(kept, "PNG")
    return kept.getvalue()


PNG = picture()


def box(name: bytes, content: bytes = b"", length: int | None = None) -> bytes:
    return (len(content) + 8 if length is None else length).to_bytes(4) + name + content


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return len(content).to_bytes(4) + kind + content + crc32(kind + content).to_bytes(4)


FTYP, MDAT = box(b"ftyp", b"isom" * 4), box(b"mdat", b"pictures")
MOOV = box(b"moov", box(b"mvhd", b"0" * 40) + box(b"trak", b"1" * 40))
MP4 = FTYP + MOOV + MDAT
LARGE = box(b"mdat", (16 + 8).to_bytes(8) + b"pictures", 1)


def fault(check: Callable[[Callable[[int, int], bytes], int], str], data: bytes) -> str:
    """Return the fault of the data; nothing may be read beyond its end."""

    def read(first: int, last: int) -> bytes:
        assert 0 <= first <= last < len(data)
        return data[first : last + 1]

    return check(read, len(data))


def test_a_picture_of_pillow_has_no_fault() -> None:
    assert fault(png_fault, PNG) == ""


def test_a_mock_video_has_no_fault() -> None:
    assert fault(mp4_fault, mock_video(PNG, Size(32, 32), 0.2, 10)) == ""


@pytest.mark.parametrize(
    "video",
    [MP4, FTYP + MDAT + MOOV, FTYP + MOOV + LARGE, FTYP + MOOV + box(b"mdat", b"to the end", 0), b"\x1aE\xdf\xa3webm"],
    ids=["moov first", "moov last", "64 bits", "to the end", "WebM"],
)
def test_every_arrangement_of_boxes_has_no_fault(video: bytes) -> None:
    assert fault(mp4_fault, video) == ""


SIGNATURE, HEADER, END = PNG[:8], PNG[8:33], chunk(b"IEND")


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (b"", "does not begin"),
        (b"<html>502</html>", "does not begin"),
        (PNG[:-1], "cut short"),
        (PNG[:40], "cut short"),
        (PNG[:60] + bytes([PNG[60] ^ 1]) + PNG[61:], "checksum"),
        (PNG + b"more", "4 bytes follow"),
        (SIGNATURE + HEADER + END, "no pixels"),
        (SIGNATURE + chunk(b"IDAT") + END, "no valid chunk"),
        (SIGNATURE + chunk(b"IHDR", bytes(13)) + END, "gives no size"),
        (SIGNATURE + HEADER + b"\xff\xff\xff\xffIDAT" + bytes(99), "cut short"),
        (SIGNATURE + HEADER + HEADER + END, "no valid chunk"),
        (SIGNATURE + HEADER + chunk(b"tEXt") * MAX_PARTS + END, "more than"),
    ],
    ids=map(str, range(12)),
)
def test_a_damaged_picture_is_reported(damaged: bytes, what: str) -> None:
    assert what in fault(png_fault, damaged)


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (b"", "does not begin"),
        (b"<html>502</html>", "does not begin"),
        (MP4[:-1], "cut short"),
        (FTYP + MOOV, "no mdat"),
        (FTYP + MDAT, "no moov"),
        (FTYP, "no moov and no mdat"),
        (FTYP + MDAT + box(b"moov"), "describes no track"),
        (FTYP + MDAT + box(b"moov", box(b"trak", length=99)), "cut short"),
        (FTYP + MDAT + box(b"moov", length=7), "no valid box"),
        (FTYP + (1).to_bytes(4) + b"mdat" + b"\xff" * 8, "cut short"),
        (FTYP + (1).to_bytes(4) + b"mdat" + bytes(8), "no valid box"),
        (FTYP + b"\0\0", "cut short"),
        (FTYP + box(b"free") * MAX_PARTS, "more than"),
    ],
    ids=map(str, range(13)),
)
def test_a_damaged_video_is_reported(damaged: bytes, what: str) -> None:
    assert what in fault(mp4_fault, damaged)


@given(st.data())
def test_no_cut_of_a_file_is_overlooked_and_nothing_fails_on_damage(data: st.DataObject) -> None:
    check, whole = data.draw(st.sampled_from([(png_fault, PNG), (mp4_fault, MP4)]))
    assert fault(check, whole[: data.draw(st.integers(0, len(whole) - 1))])
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    damaged = whole[:at] + bytes([byte]) + whole[at + 1 :]
    found = fault(check, damaged)
    assert found or check is mp4_fault or damaged == whole


def test_a_picture_is_read_once_from_end_to_end_and_of_a_video_only_the_heads() -> None:
    png, parts = picture(1500, 1500), list[tuple[int, int]]()
    assert len(png) > 2 * PNG_PART

    def read(first: int, last: int) -> bytes:
        parts.append((first, last))
        return png[first : last + 1]

    assert png_fault(read, len(png)) == ""
    assert [last + 1 - first for first, last in parts[:-1]] == [PNG_PART] * (len(parts) - 1)
    assert [first for first, _ in parts] == [0, *(last + 1 for _, last in parts[:-1])]
    video, parts = FTYP + box(b"mdat", bytes(10_000_000)) + MOOV, []

    def look(first: int, last: int) -> bytes:
        parts.append((first, last))
        return video[first : last + 1]

    assert mp4_fault(look, len(video)) == ""
    assert len(parts) == 2
    assert all(last + 1 - first <= MP4_PART for first, last in parts)
