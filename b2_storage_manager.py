#!/usr/bin/env python3
"""The manager: looks how the pipeline stands, does what is next, and says how it went by its exit code."""

import gc

gc.disable()  # an idle tick is mostly imports, and collecting garbage meanwhile is a tenth of it

import os  # noqa: E402
import sys  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """A plain tick, which is what a schedule runs, has no options: so it does not load what parses them (click, half
    of what an idle tick would cost)."""
    if len(sys.argv) > 1:
        from retake.story.options import main as with_options

        gc.enable()
        with_options(obj=FOLDER)
    from retake.story.command import Options, manage

    gc.freeze()  # nothing of what is loaded now is ever garbage, at the end of the process neither
    gc.enable()
    sys.exit(manage(FOLDER, Options()))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before anything was begun that would have to be undone
        sys.exit(130)
