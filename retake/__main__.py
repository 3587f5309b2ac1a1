"""The command `retake`, also `python -m retake`: the operator's console, one tick, and the three scripts of a tick."""

import sys


def run() -> None:
    """Run the command that the arguments name, and exit."""
    program = "python -m retake" if sys.argv[0].endswith("__main__.py") else "retake"
    try:
        _run(program, sys.argv[1] if len(sys.argv) > 1 else "")
    except KeyboardInterrupt:  # before anything was begun that would have to be undone
        sys.exit(130)


def _run(program: str, command: str) -> None:
    """Load no more than the command needs: a tick of a schedule is short."""
    if command == "tick":
        import gc

        gc.disable()  # an idle tick is mostly imports, and collecting garbage meanwhile is a tenth of it
        from retake.story import rests

        if rests(sys.argv[2:]):
            return
        from retake.story.command import tick

        tick(None, sys.argv[2:], f"{program} tick")
    if command in ("content", "media", "fetch"):
        from retake.story import script

        getattr(script, command)(sys.argv[2:], f"{program} {command}")
    from retake.console.command import main

    main(prog_name=program)


if __name__ == "__main__":
    run()
