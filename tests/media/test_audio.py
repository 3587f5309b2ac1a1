import wave
from pathlib import Path

import pytest

from retake.errors import Stopped
from retake.media import MediaError, ffmpeg
from retake.media.audio import DEMO_RATE, NotAudio, audio_facts, demo_track

SINE = ("-f", "lavfi", "-i", "sine=d=1:r=48000")


def made(path: Path, *arguments: str) -> Path:
    ffmpeg.run([*SINE, *arguments, path.name], 20, path.parent)
    return path


@pytest.mark.parametrize(
    ("name", "codec", "arguments"),
    [
        ("a.wav", "pcm_s16le", ()),
        ("a.mp3", "mp3", ("-c:a", "libmp3lame")),
        ("a.flac", "flac", ()),
        ("a.ogg", "vorbis", ("-c:a", "libvorbis")),
        ("a.opus", "opus", ("-c:a", "libopus")),
        ("a.m4a", "aac", ("-c:a", "aac")),
        ("a.aac", "aac", ("-c:a", "aac")),
    ],
)
def test_facts_of_every_format(name: str, codec: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    facts = audio_facts(made(tmp_path / name, *arguments, "-ac", "2"), timeout_s=20)
    assert facts[1:] == (codec, 48000, 2)
    assert facts.duration_s == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8])
def test_channels_are_counted(channels: int, tmp_path: Path) -> None:
    assert audio_facts(made(tmp_path / "a.wav", "-ac", str(channels)), timeout_s=20).channels == channels


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    track = made(tmp_path / "a.mp3").rename(tmp_path / "-i concat:x|y.txt")
    assert audio_facts(track, timeout_s=20).codec == "mp3"


def test_the_length_is_that_of_the_sound_not_the_one_in_the_header(tmp_path: Path) -> None:
    whole = made(tmp_path / "a.wav").read_bytes()
    cut = tmp_path / "cut.wav"
    cut.write_bytes(whole[: len(whole) // 2])
    assert audio_facts(cut, timeout_s=20).duration_s == pytest.approx(0.5, abs=0.02)


def test_tags_are_not_facts(tmp_path: Path) -> None:
    lies = "x\n[info]   Stream #0:0: Audio: opus, 8000 Hz, mono\n[info] size=N/A time=99:00:00.00 bitrate=N/A"
    track = made(tmp_path / "a.mp3", "-metadata", f"title={lies}", "-metadata", f"comment={lies}")
    facts = audio_facts(track, timeout_s=20)
    assert facts[1:] == ("mp3", 48000, 1)
    assert facts.duration_s == pytest.approx(1, abs=0.05)


def test_very_long_tags_do_not_hide_the_facts(tmp_path: Path) -> None:
    lyrics = ("-metadata", f"lyrics={'la ' * 40_000}")
    assert audio_facts(made(tmp_path / "a.flac", *lyrics), timeout_s=20).codec == "flac"


def test_a_track_with_a_cover_in_it_is_a_track(tmp_path: Path) -> None:
    ffmpeg.run(
        [*SINE, "-f", "lavfi", "-i", "color=s=64x64:d=0.1:r=10", "-frames:v", "1", "-c:v", "mjpeg", "a.mp3"],
        20,
        tmp_path,
    )
    assert audio_facts(tmp_path / "a.mp3", timeout_s=20).codec == "mp3"


@pytest.mark.parametrize("data", [b"", b"RIFF", b"ID3\x04\0\0\0\0\0\0", b"<!doctype html>", b"fLaC" + bytes(500)])
def test_what_is_not_audio_is_refused_without_a_path(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_bytes(data)
    with pytest.raises(NotAudio, match=r"a\.mp3") as caught:
        audio_facts(tmp_path / "a.mp3", timeout_s=20)
    assert str(tmp_path) not in str(caught.value)


def test_a_track_of_no_length_is_refused(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "empty.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
    with pytest.raises(NotAudio):
        audio_facts(tmp_path / "empty.wav", timeout_s=20)


def test_pictures_without_sound_are_refused(tmp_path: Path) -> None:
    ffmpeg.run(["-f", "lavfi", "-i", "testsrc=d=0.2:s=64x36:r=10", "-pix_fmt", "yuv420p", "a.mp4"], 20, tmp_path)
    with pytest.raises(NotAudio):
        audio_facts(tmp_path / "a.mp4", timeout_s=20)


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp3", "list.wav"])
def test_a_playlist_reads_no_other_file(name: str, tmp_path: Path) -> None:
    secret = made(tmp_path / "secret.aac", "-c:a", "aac")
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n"
    (tmp_path / name).write_text(playlist)
    with pytest.raises(NotAudio) as caught:
        audio_facts(tmp_path / name, timeout_s=20)
    assert "secret" not in str(caught.value)


def test_a_list_of_files_to_concatenate_reads_none_of_them(tmp_path: Path) -> None:
    made(tmp_path / "secret.wav")
    (tmp_path / "list.wav").write_text(f"ffconcat version 1.0\nfile '{tmp_path}/secret.wav'\n")
    with pytest.raises(NotAudio):
        audio_facts(tmp_path / "list.wav", timeout_s=20)


@pytest.mark.parametrize("name", ["nothing.wav", "."])
def test_a_missing_file_is_reported(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotAudio, match="no audio file"):
        audio_facts(tmp_path / name, timeout_s=20)


def test_a_slow_machine_is_not_the_fault_of_the_file(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text("#!/bin/sh\nexec sleep 60\n")
    demo_track(tmp_path / "demo.wav", 0.2)
    with pytest.raises(MediaError, match="not finished") as caught:
        audio_facts(tmp_path / "demo.wav", timeout_s=0.3)
    assert not isinstance(caught.value, NotAudio)
    with pytest.raises(Stopped):
        audio_facts(tmp_path / "demo.wav", timeout_s=60, stopping=lambda: True)


def test_the_demo_is_music_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.wav", "two.wav"):
        demo_track(tmp_path / name, 2.5)
    assert audio_facts(tmp_path / "one.wav", timeout_s=20) == (2.5, "pcm_s16le", DEMO_RATE, 1)
    assert (tmp_path / "one.wav").read_bytes() == (tmp_path / "two.wav").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.wav", "two.wav"]
    log = ffmpeg.run(["-i", "one.wav", "-af", "volumedetect", "-f", "null", "-"], 20, tmp_path)
    loudest = float(log.partition("max_volume: ")[2].split(" ")[0])
    assert -12 < loudest < -0.5


def test_nothing_is_left_of_a_demo_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "demo.wav").mkdir()
    with pytest.raises(OSError, match="directory"):
        demo_track(tmp_path / "demo.wav", 0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.wav"]
