"""Loaded by every Python process that has this folder on its path: appends the files of the package that it entered to
the file named in RETAKE_PROFILE, one line per process."""

import atexit
import json
import os
import sys
import threading
from types import FrameType

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PACKAGE = os.path.join(ROOT, "retake", "")
_NO_FUNCTION = ("<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "__annotate__")
entered: set[str] = set()


def note(frame: FrameType, event: str, arg: object) -> None:
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in _NO_FUNCTION:
        is_function = code.co_flags & 0x02  # CO_NEWLOCALS: unset for the body of a class
        if is_function:
            entered.add(code.co_filename.removeprefix(PACKAGE))


def write(path: str) -> None:
    sys.setprofile(None)
    line = json.dumps({"program": os.path.basename(sys.argv[0]), "files": sorted(entered)})
    with open(path, "a") as file:
        file.write(line + "\n")


if "RETAKE_PROFILE" in os.environ:
    atexit.register(write, os.environ["RETAKE_PROFILE"])
    threading.setprofile(note)
    sys.setprofile(note)
