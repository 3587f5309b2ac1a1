"""Why a job waits for ComfyUI: what people are told."""

from logging import getLogger

_log = getLogger(__name__)


class WaitReason:
    """Why a job waits: the log has each cause once until the job goes on, and `why` is there for as long."""

    def __init__(self) -> None:
        self.why = ""
        """The reason; empty while the job does not wait."""
        self._told: set[tuple[str, ...]] = set()

    def note(self, why: str, told: str, *cause: str) -> None:
        """Note why it waits; `told` is what the log says of a cause."""
        self.why = why
        if cause not in self._told:
            self._told.add(cause)
            _log.warning("%s", told)

    def over(self) -> None:
        """Note that the job goes on."""
        self.why = ""
        self._told.clear()
