#!/usr/bin/env python3
"""The manager: looks how the pipeline stands, does what is next, and says how it went by its exit code."""

import gc

gc.disable()  # an idle tick is mostly imports, and collecting garbage meanwhile is a tenth of it

import os  # noqa: E402
import sys  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    from retake.story import rests

    if rests(sys.argv[1:]):
        return
    from retake.story.command import tick

    tick(FOLDER, sys.argv[1:])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before anything was begun that would have to be undone
        sys.exit(130)
