"""Runs the scripts in this process instead of one of their own: for polls, simulations, benchmarks and tests."""

from collections.abc import Callable
from logging import getLogger

from retake.bucket import Lease
from retake.errors import RetakeError
from retake.story.content import Prompt, write_content
from retake.story.decision import PICTURE_ONLY
from retake.story.media import fetch, make_media, save_picture
from retake.story.script import StepContext
from retake.ticking.tick import ScriptResult

_log = getLogger(__name__)


class InProcessScripts:
    """`Scripts` that run in this process. `set_up` makes a new context, with the documents read, for each run."""

    def __init__(self, set_up: Callable[[Lease], StepContext], prompts: list[Prompt]) -> None:
        self._set_up = set_up
        self._prompts = prompts

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        """Run the script in this process. A RetakeError becomes the exit code that the script would end with. Raises
        any other exception of the script."""
        try:
            self._work(script, arguments, self._set_up(lease))
        except RetakeError as error:
            _log.error("%s", error, extra={"exit_code": error.exit_code})
            return ScriptResult(error.exit_code)
        return ScriptResult(0)

    def _work(self, script: str, arguments: list[str], context: StepContext) -> None:
        match script:
            case "generate_content":
                write_content(context, arguments[1], self._prompts)
            case "generate_media" if PICTURE_ONLY in arguments:
                save_picture(context, arguments[1])
            case "generate_media":
                make_media(context, arguments[1], use_mock="--use-mock" in arguments)
            case "fetch_media":
                fetch(context)
            case _:
                raise ValueError(f"there is no script called {script!r}")
