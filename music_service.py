#!/usr/bin/env python3
"""The music service: an API that turns tracks into videos on YouTube, its workers, and Telegram."""

import sys


def main() -> None:
    from retake.music.command import main as serve

    serve()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before anything was begun that would have to be undone
        sys.exit(130)
