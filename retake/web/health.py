"""The health of the stores that pages read."""

from retake.bucket.scanning import is_there
from retake.errors import StorageError
from retake.operations.pipelines import Operations


class StoreHealth:
    """Asks the bucket and the databases of ledgers whether they answer."""

    def __init__(self, operations: Operations) -> None:
        self._operations, self._was_there = operations, False

    def check(self) -> None:
        """Return if all of them answer. Raises SettingsError, StateError, StorageError.

        A folder that was never there is a new bucket, which the first tick makes; one that has gone is an error.
        """
        bucket = self._operations.bucket
        bucket.find("config/config_gen.json", [""])
        there = is_there(bucket)
        if self._was_there and not there:
            raise StorageError(f"{bucket.url} is gone: is its disk still there?")
        self._was_there = there
        for pipeline, ledger in self._operations.ledgers():
            if self._operations.ledger_url(pipeline):
                ledger.runs(limit=1)
