"""The command `retake`, also `python -m retake`: the operator's console, one tick, and the three scripts of a tick."""

import sys


def run() -> None:
    """Run the command that the arguments name, and exit."""
    program = "python -m retake" if sys.argv[0].endswith("__main__.py") else "retake"
    try:
        _run(program, sys.argv[1] if len(sys.argv) > 1 else "")
    except KeyboardInterrupt:  # before anything was begun that would have to be undone
        sys.exit(130)
    except OSError as error:  # of help; any other answer that cannot be written is told where it is shown
        if error.filename is not None:  # of a file, not of a stream: a bug
            raise
        from retake.console.rendering import complain
        from retake.output import not_written

        lost = not_written(error, sys.stdout)
        complain(str(lost), sys.stderr)
        sys.exit(lost.exit_code)


def _run(program: str, command: str) -> None:
    """Load no more than the command needs, for a tick of a schedule is short; and what is short is mostly imports, and
    collecting garbage meanwhile takes a tenth of it, or more."""
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

    gc.freeze()  # nothing of what is loaded now is ever garbage, at the end of the process neither
    gc.set_threshold(10_000)
    gc.enable()
    try:
        main(prog_name=program)
    finally:
        gc.freeze()


if __name__ == "__main__":
    run()
