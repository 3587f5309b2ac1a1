"""The operator's console: python -m retake status, show, retry …"""

import sys


def run() -> None:
    """Run the command that the arguments name."""
    from retake.console.command import main

    main(prog_name="python -m retake")


if __name__ == "__main__":
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)
