#!/usr/bin/env python3
"""Makes the picture and the video of a generation, one step a call. The manager runs it; it also works by hand."""

import sys


def main() -> None:
    from retake.story.script import media

    media(sys.argv[1:])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before anything was begun that would have to be undone
        sys.exit(130)
