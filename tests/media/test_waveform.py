import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from retake.errors import Stopped
from retake.media import MediaError, ffmpeg, waveform
from retake.media.audio import NotAudio, audio_facts, demo_track
from retake.media.video import check_video
from retake.media.waveform import waveform_video

COVER = Image.new("RGB", (64, 64), (40, 60, 120))


def never() -> bool:
    return False


def a_cover(picture: Image.Image = COVER) -> bytes:
    data = BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def frame(video: Path, at_s: float) -> Image.Image:
    ffmpeg.run(["-ss", f"{at_s}", "-i", video.name, "-frames:v", "1", "frame.png"], 20, video.parent)
    with Image.open(video.parent / "frame.png") as opened:
        return opened.convert("RGB")


@pytest.fixture(scope="module")
def track(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "demo.wav"
    demo_track(path, 3)
    return path


@pytest.fixture(scope="module")
def made(track: Path) -> Path:
    out = track.parent / "video.mp4"
    waveform_video(a_cover(), track, out, colour="#FF8000", stopping=never, timeout_s=60)
    return out


def test_the_video_is_what_youtube_takes(made: Path, track: Path) -> None:
    facts = check_video(made.read_bytes())
    assert facts._replace(duration_s=0, fps=0) == (1280, 720, 0, 0, "h264", "yuv420p")
    assert facts.duration_s == pytest.approx(audio_facts(track, timeout_s=20).duration_s, abs=0.2)
    sound = audio_facts(made, timeout_s=20)
    assert sound.codec == "aac"
    assert sound.duration_s == pytest.approx(3, abs=0.2)


def test_the_index_is_in_front(made: Path) -> None:
    data = made.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_the_waveform_moves_over_the_cover_in_its_colour(made: Path) -> None:
    early, late = frame(made, 0.5), frame(made, 1.1)
    changed = ImageChops.difference(early, late).convert("L").point(lambda value: 255 if value > 60 else 0)
    assert (box := changed.getbbox())
    assert box[1] >= 480
    assert box[3] <= 700
    middle = [early.getpixel((x, 590)) for x in range(1280)]
    assert sum(abs(red - 255) < 12 and abs(green - 128) < 12 and blue < 20 for red, green, blue in middle) > 400
    assert all(abs(part - want) < 6 for part, want in zip(early.getpixel((640, 100)), (40, 60, 120), strict=True))


@pytest.mark.parametrize("ground", ["white", "black"])
def test_a_white_waveform_is_seen_on_every_cover(ground: str, track: Path, tmp_path: Path) -> None:
    cover = a_cover(Image.new("RGB", (320, 180), ground))
    waveform_video(cover, track, tmp_path / "video.mp4", stopping=never, timeout_s=60)
    row = frame(tmp_path / "video.mp4", 0.5).crop((0, 588, 1280, 592)).convert("L")
    darkest, lightest = row.getextrema()
    assert lightest - darkest > 90


@pytest.mark.parametrize(
    ("name", "arguments", "seconds"),
    [
        ("short.mp3", ("-t", "0.05"), 0.05),
        ("rates.flac", ("-ar", "96000", "-ac", "6"), 1.7),
        ("slow.wav", ("-ar", "8000", "-ac", "1"), 1.7),
        ("speech.ogg", ("-c:a", "libopus"), 1.7),
        ("own.m4a", ("-c:a", "aac"), 1.7),
        ("silence.wav", ("-af", "volume=0"), 1.7),
    ],
)
def test_every_track_has_its_video(name: str, arguments: tuple[str, ...], seconds: float, tmp_path: Path) -> None:
    ffmpeg.run(["-f", "lavfi", "-i", "sine=d=1.7:r=48000", *arguments, name], 20, tmp_path)
    facts = waveform_video(a_cover(), tmp_path / name, tmp_path / "video.mp4", stopping=never, timeout_s=60)
    assert facts.duration_s == pytest.approx(seconds, abs=0.25)
    assert check_video((tmp_path / "video.mp4").read_bytes()).duration_s == facts.duration_s


def test_a_track_whose_header_lies_about_its_length(tmp_path: Path) -> None:
    demo_track(tmp_path / "a.wav", 2)
    whole = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "a.wav").write_bytes(whole[: len(whole) // 2])
    facts = waveform_video(a_cover(), tmp_path / "a.wav", tmp_path / "video.mp4", stopping=never, timeout_s=60)
    assert facts.duration_s == pytest.approx(1, abs=0.2)


def test_it_stops_within_a_second_and_leaves_nothing(tmp_path: Path) -> None:
    demo_track(tmp_path / "demo.wav", 60)
    asked: list[float] = []

    def stopping() -> bool:
        if list(tmp_path.glob("retake-*/video.mp4")):
            asked.append(time.monotonic())
        return bool(asked)

    with pytest.raises(Stopped):
        waveform_video(a_cover(), tmp_path / "demo.wav", tmp_path / "video.mp4", stopping=stopping, timeout_s=60)
    assert len(asked) == 1, "it stops at the first true answer"
    assert ffmpeg.STOP_S < 1, "it asks more often than once a second"
    assert time.monotonic() - asked[0] < 30
    assert [path.name for path in tmp_path.iterdir()] == ["demo.wav"]


def test_a_broken_cover_and_a_broken_track_are_told_apart(track: Path, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="picture"):
        waveform_video(b"no", track, tmp_path / "video.mp4", stopping=never, timeout_s=60)
    (tmp_path / "a.wav").write_bytes(b"no")
    with pytest.raises(NotAudio, match=r"a\.wav"):
        waveform_video(a_cover(), tmp_path / "a.wav", tmp_path / "video.mp4", stopping=never, timeout_s=60)
    assert not (tmp_path / "video.mp4").exists()


@pytest.mark.parametrize("colour", ["red", "#fff", "#gggggg", "#ff8800;null", ""])
def test_what_is_not_a_colour_is_refused(colour: str, track: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a colour"):
        waveform_video(a_cover(), track, tmp_path / "video.mp4", colour=colour, stopping=never, timeout_s=60)


def test_a_video_of_another_length_is_not_accepted(
    track: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = waveform._encode
    monkeypatch.setattr(waveform, "_encode", lambda duration_s: usual(duration_s / 2))
    with pytest.raises(MediaError, match="3 s of sound"):
        waveform_video(a_cover(), track, tmp_path / "video.mp4", stopping=never, timeout_s=60)
    assert not (tmp_path / "video.mp4").exists()


def test_memory_does_not_grow_with_the_track(tmp_path: Path) -> None:
    """The file is written, not returned: only ffmpeg's frames and the cover are held."""
    demo_track(tmp_path / "demo.wav", 20)
    program = (
        "import sys; from pathlib import Path; from resource import *;"
        "from retake.media.waveform import waveform_video;"
        "waveform_video(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), Path(sys.argv[3]),"
        " stopping=lambda: False, timeout_s=60);"
        # Not RUSAGE_SELF: after an exec it still counts the process that forked.
        "own = Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0];"
        "print(own, getrusage(RUSAGE_CHILDREN).ru_maxrss)"
    )
    (tmp_path / "cover.png").write_bytes(a_cover())
    names = [str(tmp_path / name) for name in ("cover.png", "demo.wav", "video.mp4")]
    done = subprocess.run([sys.executable, "-c", program, *names], check=True, capture_output=True, text=True)
    own_kb, ffmpeg_kb = map(int, done.stdout.split())
    assert own_kb < 150_000
    assert ffmpeg_kb < 300_000
