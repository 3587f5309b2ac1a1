"""Pictures and videos that are fake or too large: bombs, disguised playlists, and what ffmpeg may read and use."""

import random
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from hostile import Hostile, answers
from PIL import Image

from retake.media import MediaError, ffmpeg
from retake.media.picture import MAX_PIXELS, Size, check_picture, data_uri, fit, quarters
from retake.media.video import check_video, facts_in

LOOKS: dict[str, Callable[[bytes], object]] = {
    "check_picture": check_picture,
    "fit": lambda data: fit(data, Size(64, 36)),
    "quarters": quarters,
    "data_uri": lambda data: data_uri(data, 5_000_000),
}


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, extra: bytes = b"", rows: int | None = None) -> bytes:
    """Return a PNG of black pixels, compressed a thousandfold, with the `extra` chunks in front."""
    packer = zlib.compressobj(9)
    line = bytes(1 + width * 3)
    body = b"".join([*(packer.compress(line) for _ in range(rows if rows is not None else height)), packer.flush()])
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    """Return a JPEG whose header claims another size."""
    target = BytesIO()
    Image.new("RGB", (16, 16)).save(target, "JPEG")
    data = bytearray(target.getvalue())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def gif(width: int, height: int) -> bytes:
    target = BytesIO()
    Image.new("P", (16, 16)).save(target, "GIF")
    data = bytearray(target.getvalue())
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def webp(width: int, height: int) -> bytes:
    target = BytesIO()
    Image.new("RGB", (16, 16)).save(target, "WEBP", lossless=True)
    data = bytearray(target.getvalue())
    at = data.index(b"VP8L") + 9
    rest = int.from_bytes(data[at : at + 4], "little") >> 28 << 28
    data[at : at + 4] = (rest | (height - 1) << 14 | (width - 1)).to_bytes(4, "little")
    return bytes(data)


@cache
def zeros() -> bytes:
    """Return 200 MB of zeros, compressed piece by piece so that making the bomb does not hide the cost of unpacking
    it."""
    packer = zlib.compressobj(9)
    return b"".join([*(packer.compress(bytes(2**20)) for _ in range(200)), packer.flush()])


BOMBS: dict[str, Callable[[], bytes]] = {
    "png of 100,000 by 100,000": lambda: png(100_000, 100_000, rows=0),
    "png a row above the limit": lambda: png(8000, MAX_PIXELS // 8000 + 1, rows=0),
    "png of 2^31 by 2^31": lambda: png(2**31 - 1, 2**31 - 1, rows=0)[:60],
    "jpeg of 65,000 by 65,000": lambda: jpeg(65_000, 65_000),
    "gif of 65,000 by 65,000": lambda: gif(65_000, 65_000),
    "webp of 16,000 by 16,000": lambda: webp(16_000, 16_000),
}
HARMLESS = {
    "png with 200 MB of comment": lambda: png(64, 36, chunk(b"zTXt", b"Comment\0\0" + zeros())),
    "png with 200 MB of profile": lambda: png(64, 36, chunk(b"iCCP", b"p\0\0" + zeros())),
}
PROGRAM = """
import resource, sys
from test_attack_media import BOMBS, HARMLESS, LOOKS, png
from retake.media import MediaError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

for look in LOOKS.values():
    look(png(64, 36))
for name, make in {**BOMBS, **HARMLESS}.items():
    data = make()
    begun = peak()
    for look in LOOKS.values():
        try:
            look(data)
            assert name in HARMLESS, name
        except MediaError as error:
            assert len(str(error)) < 300
    assert peak() - begun < 150, (name, peak() - begun)
"""


def test_a_picture_bomb_is_refused_before_it_is_unpacked() -> None:
    here = Path(__file__).parent
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={"PYTHONPATH": f"{here}:{here.parent}:{here.parents[1]}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.filterwarnings("ignore")  # Pillow warns about odd metadata
@pytest.mark.parametrize("seed", range(4))
def test_a_picture_with_wrong_bytes_is_a_media_error_or_a_picture(seed: int) -> None:
    print(f"seed {seed}")  # noqa: T201
    luck = random.Random(seed)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a cat"
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        target = BytesIO()
        extra = {"exif": exif} if kind != "GIF" else {}
        Image.effect_noise((24, 16), 90).convert("RGB").save(target, kind, **extra)
        whole = target.getvalue()
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(luck.choice((1, 2, 8))):
                data[luck.randrange(min(len(data), luck.choice((64, 400, len(data)))))] = luck.randrange(256)
            if kind == "PNG" and luck.random() < 0.7:
                data = mended(data)
            for look in LOOKS.values():
                with suppress(MediaError):
                    look(bytes(data))


def mended(data: bytearray) -> bytearray:
    """Return the PNG with correct checksums, whatever its chunks hold."""
    at, out = 8, bytearray(data[:8])
    while at + 12 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        size = min(size, len(data) - at - 12)
        out += chunk(bytes(data[at + 4 : at + 8]), bytes(data[at + 8 : at + 8 + size]))
        at += 12 + size
    return out


# --- ffmpeg -------------------------------------------------------------------------------------------------------


def test_ffmpeg_sees_no_key(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNWAYML_API_SECRET", "OPENAI_API_KEY", "MIDJOURNEY_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "hunter2hunter2")
    monkeypatch.setenv("SOMETHING_NEW", "hunter2hunter2")
    stand_in.write_text(f'#!/bin/sh\nenv > {tmp_path}/env\necho "$@" > {tmp_path}/arguments\n')

    ffmpeg.run(["-i", "video"], 10)

    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} <= {
        "PATH",
        "TMPDIR",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LD_LIBRARY_PATH",
    }
    assert "hunter2" not in (tmp_path / "env").read_text()
    assert "-protocol_whitelist file,pipe -i video" in (tmp_path / "arguments").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="limits are set on Linux")
def test_ffmpeg_is_limited_in_memory_and_processor_time(stand_in: Path, tmp_path: Path) -> None:
    # The limits are set one by one, a moment after the start.
    limited = "while [ $(ulimit -t) = unlimited ]; do sleep 0.05; done; sleep 0.3"
    stand_in.write_text(f"#!/bin/sh\n{limited}\n(ulimit -v; ulimit -t; ulimit -c) > {tmp_path}/limits\n")
    ffmpeg.run([], 60)
    assert (tmp_path / "limits").read_text().split() == [str(ffmpeg.MEMORY // 1024), "481", "0"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits are set on Linux")
def test_what_takes_too_much_memory_ends_with_a_reason(stand_in: Path) -> None:
    program = stand_in.with_name("greedy.py")
    program.write_text(
        "import resource, time\n"
        "while resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:\n"
        "    time.sleep(0.02)\n"
        "bytearray(3 << 30)\n"
    )
    stand_in.write_text(f"#!/bin/sh\nexec {sys.executable} {program}\n")
    with pytest.raises(MediaError, match="ended with an error"):
        ffmpeg.run([], 60)


def test_ffmpeg_that_kills_itself_is_told_for_what_it_is(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\nkill -KILL $$\n")
    with pytest.raises(MediaError, match="for the memory or processor time"):
        ffmpeg.run([], 10)


def playlists(url: str, secret: Path) -> dict[str, bytes]:
    head = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n"
    return {
        "hls over http": head + f"#EXTINF:10,\n{url}/a.ts\n#EXT-X-ENDLIST\n".encode(),
        "hls of a local file": head + f"#EXTINF:10,\nfile://{secret}\n#EXT-X-ENDLIST\n".encode(),
        "hls of a joined file": head + f"#EXTINF:10,\nconcat:{url}/a|{secret}\n#EXT-X-ENDLIST\n".encode(),
        "a list of files": f"ffconcat version 1.0\nfile '{secret}'\nfile '{url}/a.mp4'\n".encode(),
        "dash": f'<?xml version="1.0"?><MPD><Period><BaseURL>{url}</BaseURL></Period></MPD>'.encode(),
        "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n",
    }


@pytest.mark.parametrize("what", list(playlists("", Path())))
def test_a_playlist_in_disguise_makes_ffmpeg_ask_nobody_and_open_nothing(
    what: str, hostile: Callable[..., Hostile], tmp_path: Path
) -> None:
    secret = tmp_path / "secret.ts"
    secret.write_bytes(b"G" + b"secret" * 100)
    server = hostile(answers(b"x"))
    data = playlists(server.url, secret)[what]
    with pytest.raises(MediaError) as caught:
        check_video(data)
    assert server.seen == []
    assert "secret" not in str(caught.value).replace(repr(data[:12]), "")


@pytest.mark.parametrize("what", ["hls over http", "a list of files", "dash"])
def test_no_protocol_but_files_even_where_the_container_is_allowed(
    what: str, hostile: Callable[..., Hostile], tmp_path: Path
) -> None:
    """Tests the second lock without the first: `run` alone confines every input."""
    server = hostile(answers(b"x"))
    (tmp_path / "video").write_bytes(playlists(server.url, tmp_path / "none")[what])
    with pytest.raises(MediaError):
        ffmpeg.run(["-i", "video", "-f", "null", "-"], 20, tmp_path)
    assert server.seen == []


def test_a_log_full_of_streams_is_read_in_no_time() -> None:
    """ffmpeg's log contains the titles of a file verbatim."""
    log = "[info]     title : " + "Stream #0:0" * 12_000 + "\n" + "Stream #0:1, a(" * 9000
    begun = time.thread_time()
    with pytest.raises(MediaError):
        facts_in(log)
    assert time.thread_time() - begun < 2
