"""Files named by the user are read within bounds."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retake.errors import SettingsError
from retake.settings.reader import MAX_FILE_BYTES, read_file
from retake.story.content import load_prompts
from retake.story.settings import load_settings


def settings(path: str) -> object:
    return load_settings({"RETAKE_CONFIG": path})


@pytest.mark.parametrize("read", [settings, load_prompts], ids=["settings", "prompts"])
def test_a_file_without_end_is_refused(tmp_path: Path, read: Callable[[str], object]) -> None:
    pipe, huge = tmp_path / "pipe.json", tmp_path / "huge.json"
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(2**40)
    for path, told in (
        (pipe, "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (huge, "larger than 4,096 KiB"),
    ):
        with pytest.raises(SettingsError, match=f"{path}: the .* cannot be read: {told}"):
            read(str(path))


def test_a_file_of_the_greatest_length_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a" * MAX_FILE_BYTES)
    assert len(read_file(file)) == MAX_FILE_BYTES
    (tmp_path / "link").symlink_to(file)
    assert len(read_file(str(tmp_path / "link"))) == MAX_FILE_BYTES
