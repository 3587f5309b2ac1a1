import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from retake.errors import Stopped
from retake.media import MediaError, ffmpeg


def test_ffmpeg_is_found_and_runs() -> None:
    assert Path(ffmpeg.find()).is_absolute()
    assert "Output #0" in ffmpeg.run(["-f", "lavfi", "-i", "color=d=0.1", "-f", "null", "-"], 20)


def test_an_error_is_reported_in_ffmpegs_words_without_paths_or_addresses(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="No such file or directory") as caught:
        ffmpeg.run(["-i", "nothing.mp4", "-f", "null", "-"], 20, tmp_path)
    assert str(tmp_path) not in str(caught.value)
    assert "0x" not in str(caught.value)


def test_no_ffmpeg_for_this_machine_is_reported_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(ffmpeg, "get_ffmpeg_exe", none)
    with pytest.raises(MediaError, match="Install ffmpeg") as caught:
        ffmpeg.run([], 5)
    assert caught.value.exit_code == 75


def test_a_name_that_leads_nowhere_is_reported_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nowhere/ffmpeg")
    with pytest.raises(MediaError, match="IMAGEIO_FFMPEG_EXE"):
        ffmpeg.run([], 5)


def test_a_program_of_another_machine_is_reported_plainly(stand_in: Path) -> None:
    stand_in.write_bytes(b"\x7fELF of some other machine")
    with pytest.raises(MediaError, match="could not be started"):
        ffmpeg.run([], 5)


def test_an_end_without_a_word_has_its_exit_code_told(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(MediaError, match="exit code 3"):
        ffmpeg.run([], 5)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are found through /proc")
def test_when_time_is_up_ffmpeg_and_what_it_started_are_killed(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/child\nwait\n")
    begun = time.monotonic()
    with pytest.raises(MediaError, match="not finished after 4 s"):
        ffmpeg.run([], 4)  # time for it to start its child
    assert time.monotonic() - begun < 30
    assert is_gone_soon(int((tmp_path / "child").read_text()))


def test_ffmpeg_is_killed_within_a_second_when_asked_to_stop(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid\nexec sleep 60\n")
    asked: list[float] = []

    def stopping() -> bool:
        if (tmp_path / "pid").exists():
            asked.append(time.monotonic())
        return bool(asked)

    with pytest.raises(Stopped):
        ffmpeg.run([], 60, stopping=stopping)
    assert len(asked) == 1, "it is killed at the first true answer"
    assert ffmpeg.STOP_S < 1, "it asks more often than once a second"
    assert time.monotonic() - asked[0] < 30
    assert is_gone_soon(int((tmp_path / "pid").read_text()))


def test_one_that_is_not_asked_to_stop_ends_by_itself(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\nsleep 0.6\necho '[info] done' >&2\n")
    assert "done" in ffmpeg.run([], 10, stopping=lambda: False)


def test_time_is_up_also_for_one_that_can_be_stopped(stand_in: Path) -> None:
    stand_in.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(MediaError, match=r"not finished after 0\.4 s"):
        ffmpeg.run([], 0.4, stopping=lambda: False)


@pytest.mark.skipif(sys.platform != "linux", reason="the group is read from /proc")
def test_ffmpeg_stays_in_the_group_of_its_caller(stand_in: Path, tmp_path: Path) -> None:
    """Whoever ends a script and its group must end its ffmpeg, too."""
    stand_in.write_text(f"#!/bin/sh\ncut -d' ' -f5 /proc/$$/stat > {tmp_path}/group\n")
    ffmpeg.run([], 5)
    assert int((tmp_path / "group").read_text()) == os.getpgrp()


def test_the_beginning_and_end_of_a_very_long_log_are_kept(stand_in: Path) -> None:
    stand_in.write_text(
        "#!/bin/sh\necho '[info] first' >&2\nyes '[info] and so on and on and on' | head -n 20000 >&2\n"
        "echo '[error] last' >&2\n"
    )
    log = ffmpeg.run([], 10)
    assert log.startswith("[info] first\n")
    assert ffmpeg.errors_in(log) == ["last"]
    assert len(log) <= 2 * ffmpeg.LOG_TAIL


def test_only_errors_are_errors_and_lose_their_marks() -> None:
    log = (
        "[info] Input #0\n[warning] odd\n[h264 @ 0x55d3ab] [error] Invalid NAL unit\n"
        "[vist#0:0/h264 @ 0x55d3] [dec:h264 @ 0x55d4] [fatal] gone\n[info]   title : [error] not one\n"
    )
    assert ffmpeg.errors_in(log) == ["Invalid NAL unit", "gone"]


def test_the_temporary_folder_is_removed_also_on_errors() -> None:
    seen = []

    def fail() -> None:
        with ffmpeg.scratch() as folder:
            folder.joinpath("left.over").touch()
            seen.append(folder)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen
    assert not seen[0].exists()


def test_a_full_disk_is_a_media_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with pytest.raises(MediaError, match="temporary folder"), ffmpeg.scratch():
        pytest.fail("there is none")
    with pytest.raises(MediaError, match="temporary folder"):
        ffmpeg.run([], 5)


def is_gone_soon(pid: int) -> bool:
    """Return whether the process ends soon: `kill` returns before the signal arrives, on a busy machine a moment
    before."""
    end = time.monotonic() + 120
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
