"""`python -m retake.music.demo FOLDER`: one track to a published video in the sandbox, as in `make music`."""

import sys


def main(arguments: list[str]) -> int:
    """Play the demo in the given folder, which is created, and return the exit code."""
    try:
        from retake.music.demo_play import main as play
    except KeyboardInterrupt:  # nothing has begun yet
        return 130
    return play(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
