"""The tracks: the files in MUSIC.audio_folder."""

import os
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from retake.errors import Code, PollFailed
from retake.foreign_text import one_line

MAX_AUDIO_BYTES = 200 * 10**6

_MAX_COMPARED = 2000
"""Maximum number of files whose names are compared with one that is missing."""


def find_track(folder: Path, name: str) -> Path:
    """Return the path of the track called `name`.

    Raises PollFailed, which no retry repairs, if it is missing or too large. The error for a missing track lists
    similar names.
    """
    path = folder / name
    if not os.path.isfile(path):  # also False for an impossible file name
        nearest = " or ".join(one_line(it) for it in _nearest(folder, name))
        meant = f"; if {nearest} is meant, cancel it and begin another" if nearest else ""
        raise PollFailed(Code.MISSING, f"MUSIC.audio_folder has no {name}; put it there and retry{meant}")
    if (size := path.stat().st_size) > MAX_AUDIO_BYTES:
        raise PollFailed(Code.INVALID_INPUT, f"{name} has {size} bytes; at most {MAX_AUDIO_BYTES} are taken")
    return path


def _nearest(folder: Path, name: str) -> list[str]:
    """Return up to three names of files in the folder that are most like `name`, without regard to case."""
    with suppress(OSError), os.scandir(folder) as entries:
        names = {entry.name.casefold(): entry.name for entry in islice(entries, _MAX_COMPARED) if entry.is_file()}
        return [names[found] for found in get_close_matches(name[:255].casefold(), names)]
    return []
