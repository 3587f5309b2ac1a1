"""`processing_lock` in config_public.json, for people and other programs to see. What excludes others is the lease."""

from logging import getLogger

from retake.errors import RetakeError
from retake.story.store import DocumentStore

_log = getLogger(__name__)


class ProcessingFlag:
    """The flag of one pipeline during one tick. `was_up`: a tick that did not come to its end left it."""

    def __init__(self, store: DocumentStore, *, was_up: bool = False) -> None:
        self.was_up = was_up
        self._store = store
        self._raised = False

    def raise_(self) -> None:
        """Raise it, unless it is."""
        if not self._raised:
            self._raised = True
            self._store.publish(lambda doc: doc.updated(processing_lock=True))

    def lower(self) -> None:
        """Lower it if it may be up, and bring back what the publisher's list has lost. Never raises a RetakeError."""
        try:
            if self._raised or self.was_up or not self._store.list_is_whole:
                self._store.publish(lambda doc: doc.updated(processing_lock=False))
        except RetakeError as error:
            _log.error("processing_lock stays true until the next tick: %s", error)
