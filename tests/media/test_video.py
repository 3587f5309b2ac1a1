from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageDraw, ImageStat

from retake.media import MediaError, ffmpeg, video
from retake.media.picture import Size
from retake.media.structure import MAX_PARTS
from retake.media.video import VideoFacts, check_video, facts_in, is_video_file, missing_bytes, mock_video

SMALL = Size(160, 90)


def a_picture(size: Size = SMALL) -> bytes:
    """Return a black bar on white, left of the middle."""
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).rectangle((size.width // 4, 0, size.width // 4 + 3, size.height), fill="black")
    target = BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def frames(data: bytes, folder: Path) -> list[Image.Image]:
    folder.joinpath("video.mp4").write_bytes(data)
    ffmpeg.run(["-i", "video.mp4", "-fps_mode", "passthrough", "%04d.png"], 30, folder)
    return [Image.open(BytesIO(path.read_bytes())).convert("L") for path in sorted(folder.glob("*.png"))]


def bar(frame: Image.Image) -> float:
    """Return the position of the bar in `frame`, in fractions of pixels."""
    row = ImageChops.invert(frame).resize((frame.width, 1), Image.Resampling.BOX).tobytes()
    dark = [max(0, value - 20) for value in row]
    return sum(x * value for x, value in enumerate(dark)) / sum(dark)


@pytest.fixture(scope="module")
def whole() -> bytes:
    return mock_video(a_picture(), SMALL, 2, 24)


def test_a_mock_is_a_real_video(whole: bytes) -> None:
    assert check_video(whole) == VideoFacts(160, 90, 2.0, 24.0, "h264", "yuv420p")


def test_a_mock_starts_playing_before_all_of_it_is_there(whole: bytes) -> None:
    assert whole.index(b"moov") < whole.index(b"mdat")


def test_a_mock_tells_in_which_colours_it_is(whole: bytes, tmp_path: Path) -> None:
    tmp_path.joinpath("v.mp4").write_bytes(whole)
    assert "yuv420p(tv, bt709" in ffmpeg.run(["-i", "v.mp4", "-frames:v", "1", "-f", "null", "-"], 20, tmp_path)


def test_the_length_that_a_title_tells_is_not_the_videos(whole: bytes, tmp_path: Path) -> None:
    tmp_path.joinpath("v.mp4").write_bytes(whole)
    title = ("-metadata", "title=Duration: 11:11:11.11", "-metadata", "comment=a\n  Duration: 11:11:11.11")
    ffmpeg.run(["-i", "v.mp4", "-c", "copy", *title, "titled.mp4"], 20, tmp_path)
    assert check_video(tmp_path / "titled.mp4").duration_s == 2.0


def test_the_same_picture_gives_the_same_video(whole: bytes) -> None:
    assert mock_video(a_picture(), SMALL, 2, 24) == whole


@pytest.mark.parametrize(
    ("duration_s", "fps"), [(1, 12), (0.5, 30), (1.3, 25), (1, 29.97), (1, 23.976), (0.1, 60), (0.04, 24)]
)
def test_length_and_rate_are_as_asked(duration_s: float, fps: float) -> None:
    facts = check_video(mock_video(a_picture(), Size(64, 36), duration_s, fps))
    assert facts.duration_s == pytest.approx(duration_s, abs=1 / fps)
    assert facts.fps == pytest.approx(fps, abs=0.01)


@pytest.mark.parametrize(
    ("asked", "made"), [((65, 37), (64, 36)), ((36, 64), (36, 64)), ((2, 2), (2, 2)), ((3, 19), (2, 18))]
)
def test_sizes_are_rounded_down_to_even_ones(asked: tuple[int, int], made: tuple[int, int]) -> None:
    assert check_video(mock_video(a_picture(), Size(*asked), 0.2, 10))[:2] == made


def test_every_frame_is_there_and_the_first_is_the_picture(whole: bytes, tmp_path: Path) -> None:
    seen = frames(whole, tmp_path)
    assert len(seen) == 48
    difference = ImageChops.difference(seen[0], Image.open(BytesIO(a_picture())).convert("L"))
    assert ImageStat.Stat(difference).mean[0] < 2


def test_the_zoom_is_slow_and_does_not_tremble(tmp_path: Path) -> None:
    """From frame to frame the bar moves outwards by nearly the same fraction of a pixel, and never jumps."""
    size = Size(320, 180)
    places = [bar(frame) for frame in frames(mock_video(a_picture(size), size, 2, 24), tmp_path)]
    middle = size.width / 2
    moves = [before - after for before, after in pairwise(places)]
    end = video.ZOOM_PER_SECOND * 2
    assert (middle - places[-1]) / (middle - places[0]) == pytest.approx(1 + end, abs=0.006)
    assert max(moves) < 0.12
    assert min(moves) > -0.05


def test_a_long_video_zooms_no_further_than_margins_allow(tmp_path: Path) -> None:
    places = [bar(frame) for frame in frames(mock_video(a_picture(), SMALL, 60, 1), tmp_path)]
    assert (80 - places[-1]) / (80 - places[0]) == pytest.approx(1 + video.MAX_ZOOM, abs=0.01)


def test_another_codec_may_be_asked_for() -> None:
    assert check_video(mock_video(a_picture(), SMALL, 0.2, 10, "mpeg4")).codec == "mpeg4"


def test_a_codec_that_does_not_exist_is_named_as_the_reason() -> None:
    with pytest.raises(MediaError, match=r"(?i)encoder"):
        mock_video(a_picture(), SMALL, 0.2, 10, "libx999")


@pytest.mark.parametrize(
    ("size", "duration_s", "fps"),
    [((1, 90), 2, 24), (SMALL, 0, 24), (SMALL, 2, 0), (SMALL, -1, 24), (SMALL, 2, float("nan")), (SMALL, 1e9, 24)],
)
def test_numbers_that_make_no_video_are_refused(size: tuple[int, int], duration_s: float, fps: float) -> None:
    with pytest.raises(MediaError, match="no video"):
        mock_video(a_picture(), Size(*size), duration_s, fps)


def test_no_video_is_made_of_what_is_not_a_picture() -> None:
    with pytest.raises(MediaError, match="Not a picture"):
        mock_video(b"<html>", SMALL, 1, 10)


def test_a_mock_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(MediaError, match="not finished after"):
        mock_video(a_picture(), Size(640, 360), 600, 60, timeout_s=0.3)


def test_a_video_cut_short_is_refused_wherever_it_was_cut(whole: bytes) -> None:
    """This includes cuts between two frames, which ffmpeg itself does not notice."""
    for end in [*range(0, len(whole), len(whole) // 7), *range(len(whole) - 5, len(whole))]:
        with pytest.raises(MediaError):
            check_video(whole[:end])


def test_every_missing_byte_is_counted(whole: bytes) -> None:
    first_of_last_box = whole.index(b"mdat") + 4
    assert missing_bytes(whole) == 0
    for end in range(first_of_last_box, len(whole)):
        assert missing_bytes(whole[:end]) == len(whole) - end


@pytest.mark.parametrize(
    ("mp4", "missing"),
    [
        (b"\0\0\0\x08ftyp", 0),
        (b"\0\0\0\x10ftyp", 8),
        (b"\0\0\0\x08ftyp\0\0\0\x01mdat\0\0\0\0\0\0\0\x18only8bytes"[:32], 0),
        (b"\0\0\0\x08ftyp\0\0\0\x01mdat\0\0\0\x01\0\0\0\0", 2**32 - 16),
        (b"\0\0\0\x08ftyp\0\0\0\0mdat and so on to the end", 0),
        (b"\0\0\0\x08ftyp\0\0", 0),
        pytest.param(b"\0\0\0\x08ftyp" + b"\0\0\0\x08free" * MAX_PARTS + b"\0\0\0\x10mdat", 0, id="too many boxes"),
        (b"<html>busy</html>", 0),
        (b"", 0),
    ],
)
def test_boxes_of_every_kind_are_counted(mp4: bytes, missing: int) -> None:
    assert missing_bytes(mp4) == missing


def test_a_video_damaged_inside_is_refused(whole: bytes) -> None:
    middle = whole.index(b"mdat") + 60
    with pytest.raises(MediaError):
        check_video(whole[:middle] + bytes(len(whole) - middle))


@pytest.mark.parametrize(
    "data", [b"", b"<!doctype html><html>busy</html>", a_picture(), b"\0\0\0\x14ftypisom\0\0\2\0isom"]
)
def test_what_is_not_a_video_is_refused_without_a_path(data: bytes) -> None:
    with pytest.raises(MediaError, match="not a video") as caught:
        check_video(data)
    assert "/tmp" not in str(caught.value)


def test_a_playlist_is_not_followed(tmp_path: Path) -> None:
    tmp_path.joinpath("secret.ts").write_bytes(b"G" * 188)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/secret.ts\n#EXT-X-ENDLIST\n"
    with pytest.raises(MediaError) as caught:
        check_video(playlist.encode())
    assert "secret" not in str(caught.value)


def test_sound_alone_is_not_a_video(tmp_path: Path) -> None:
    ffmpeg.run(["-f", "lavfi", "-i", "sine=d=0.2", "sound.mp4"], 20, tmp_path)
    with pytest.raises(MediaError, match="not a video"):
        check_video(tmp_path.joinpath("sound.mp4").read_bytes())


def test_a_video_with_sound_is_fine(tmp_path: Path) -> None:
    sources = ["-f", "lavfi", "-i", "sine=d=0.5", "-f", "lavfi", "-i", "testsrc=d=0.5:s=64x36:r=10"]
    ffmpeg.run([*sources, "-pix_fmt", "yuv420p", "both.mp4"], 20, tmp_path)
    assert check_video(tmp_path.joinpath("both.mp4").read_bytes())[:2] == (64, 36)


def test_nothing_is_left_behind(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check_video(whole)
    with pytest.raises(MediaError):
        check_video(b"no")
    mock_video(a_picture(), SMALL, 0.1, 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (
            "h264 (High) (avc1 / 0x31637661), yuv420p(tv, bt709, progressive), 1280x720 [SAR 1:1 DAR 16:9], 638 kb/s, "
            "23.98 fps, 24 tbr, 12288 tbn (default)",
            (1280, 720, 3723.5, 23.98, "h264", "yuv420p"),
        ),
        (
            "hevc (Main 10), yuv420p10le(pc), 720x1280, 1k fps, 1k tbr, 1k tbn",
            (720, 1280, 3723.5, 1000.0, "hevc", "yuv420p10le"),
        ),
        ("vp9 (Profile 0), yuv420p(tv), 64x36, SAR 1:1 DAR 16:9, 10 fps", (64, 36, 3723.5, 10.0, "vp9", "yuv420p")),
    ],
)
def test_facts_are_read_from_ffmpegs_words(stream: str, expected: tuple[object, ...]) -> None:
    log = f"[info]   Duration: 01:02:03.50, start: 0.0\n[info]   Stream #0:1[0x1](und): Video: {stream}\n"
    assert facts_in(log) == expected


def test_a_video_without_a_length_is_refused() -> None:
    with pytest.raises(MediaError, match="known length"):
        facts_in("Duration: N/A\nStream #0:0: Video: h264, yuv420p, 64x36, 24 fps")


def test_a_broken_video_is_distinguished_from_what_is_not_a_video_at_all() -> None:
    assert is_video_file(b"\x00\x00\x00\x20ftypisom and then rubbish")
    assert not is_video_file(b"<!doctype html><title>404</title>")
    assert not is_video_file(b"")
