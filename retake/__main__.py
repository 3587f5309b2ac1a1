"""The command `retake`, also `python -m retake`: the operator's console, one tick, and the three scripts of a tick."""

import sys


def run() -> None:
    """Run the command that the arguments name, and exit."""
    program = "python -m retake" if sys.argv[0].endswith("__main__.py") else "retake"
    try:
        _run(program, sys.argv[1] if len(sys.argv) > 1 else "")
    except KeyboardInterrupt:  # nothing that would have to be undone has begun yet
        sys.exit(130)
    except OSError as error:  # while --help is written; other answers handle their own write errors
        if error.filename is not None:  # about a file, not a stream: a bug
            raise
        from retake.console.rendering import complain
        from retake.output import not_written

        lost = not_written(error, sys.stdout)
        complain(str(lost), sys.stderr)
        sys.exit(lost.exit_code)


def _run(program: str, command: str) -> None:
    """Run `command`, importing only what it needs.

    Imports are most of the run time of a scheduled tick, and garbage collection is a tenth of that or more, so it is
    off meanwhile.
    """
    import gc

    if command in ("content", "media", "fetch"):
        from retake.story import script

        getattr(script, command)(sys.argv[2:], f"{program} {command}")
    gc.disable()
    if command == "tick":
        from retake.story import rests

        if rests(sys.argv[2:]):
            return
        from retake.story.command import tick

        tick(None, sys.argv[2:], f"{program} tick")
    from retake.logs import open_streams

    open_streams()
    from retake.console.command import main

    gc.freeze()  # modules never become garbage, not even when the process ends
    gc.set_threshold(10_000)
    gc.enable()
    try:
        main(prog_name=program)
    finally:
        gc.freeze()


if __name__ == "__main__":
    run()
