"""What a command works with: settings, keys, clock, and the pipelines behind their port."""

from collections.abc import Mapping
from functools import cached_property

from retake.bucket import Bucket
from retake.clock import Clock, SystemClock
from retake.keys import Keys
from retake.operations.pipelines import Operations
from retake.operations.port import OperatedPipeline
from retake.story.operations import open_operations
from retake.story.settings import CHANNEL_VARIABLE, Settings, part_of, settings_and_keys


class CommandContext:
    """What a command works with. Everything is opened when it is first needed, and may then raise SettingsError or
    StorageError."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        channel: str | None = None,
        clock: Clock | None = None,
        bucket: Bucket | None = None,
        settings: Settings | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.environ = environ
        self.channel = channel
        self.clock: Clock = clock or SystemClock()
        self._given = bucket, settings, keys

    @cached_property
    def _read(self) -> tuple[Settings, Keys]:
        _, settings, keys = self._given
        return (settings, keys or Keys()) if settings else settings_and_keys(self.environ, warn=False)

    @property
    def settings(self) -> Settings:
        return self._read[0]

    @property
    def keys(self) -> Keys:
        return self._read[1]

    @cached_property
    def operations(self) -> Operations:
        """The pipeline that `--channel` names; else those of all CHANNELS, or the one where there are none."""
        named = self.channel is not None
        return open_operations(self.settings, self.clock, channel=self.channel, named=named, bucket=self._given[0])

    @property
    def bucket(self) -> Bucket:
        """All of the bucket, whatever the channel."""
        return self.operations.bucket

    @property
    def pipeline(self) -> OperatedPipeline:
        """The one pipeline that the command is about. Raises SettingsError where one of the CHANNELS must be named."""
        if self.channel or not self.settings.channels:
            return self.operations.pipelines[0]
        channel = self.environ.get(CHANNEL_VARIABLE)
        part_of(self.bucket, self.settings, channel)
        return next(it for it in self.operations.pipelines if it.channel == channel)
