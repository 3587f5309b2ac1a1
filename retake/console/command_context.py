"""The context of a command: settings, keys, clock, and the pipelines behind their port."""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from retake.bucket import Bucket
from retake.clock import Clock, SystemClock
from retake.errors import SettingsError
from retake.keys import Keys
from retake.operations.events import OPERATOR
from retake.operations.pipelines import Operations
from retake.operations.port import OperatedPipeline
from retake.story.operations import open_operations
from retake.story.settings import CHANNEL_VARIABLE, SANDBOX_VARIABLE, Settings, part_of, settings_and_keys

if TYPE_CHECKING:
    from retake.music.settings import MusicSettings

MUSIC = "music"
"""The name of the music pipelines for `--channel`. None of the CHANNELS can have it."""

MUSIC_DATABASE = "music/music.sqlite3"
"""The database of the music pipelines, unless a section MUSIC in the settings names another one."""


class CommandContext:
    """The context of a command. Everything is opened on first use, and may then raise SettingsError or StorageError."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        channel: str | None = None,
        clock: Clock | None = None,
        bucket: Bucket | None = None,
        settings: Settings | None = None,
        keys: Keys | None = None,
        music: "MusicSettings | None" = None,
        actor: str = OPERATOR,
        as_text: bool = False,
    ) -> None:
        self.environ = environ
        self.as_text = as_text
        """Whether only the answer's text is shown, so that its document may be as short as the text."""
        self.channel = channel
        self.clock: Clock = clock or SystemClock()
        self._given = bucket, settings, keys
        self._music = music
        self._actor = actor

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

    @property
    def music_in_use(self) -> bool:
        """Whether there are music pipelines: the settings have a section MUSIC, or `MUSIC_DATABASE` exists."""
        return self._music is not None or self.settings.music or os.path.exists(MUSIC_DATABASE)

    @cached_property
    def music(self) -> "MusicSettings":
        """The settings of the music pipelines."""
        if self._music is not None:
            return self._music
        from retake.music.settings import load_music_settings, sandboxed

        found, sandbox = load_music_settings(self.environ), self.environ.get(SANDBOX_VARIABLE)
        return sandboxed(found, sandbox) if sandbox else found

    @property
    def music_alone(self) -> bool:
        """Whether the command is about the music pipelines only."""
        return self.channel == MUSIC

    @cached_property
    def operations(self) -> Operations:
        """The pipeline that `--channel` names. Without it, those of all CHANNELS (or the only one if there are none),
        and that of music if it is in use."""
        named, alone = self.channel is not None, self.music_alone
        channel = None if alone else self.channel
        story = open_operations(
            self.settings, self.clock, channel=channel, named=named, bucket=self._given[0], actor=self._actor
        )
        if alone and not self.music_in_use:
            raise SettingsError("music is named as the channel, but the settings have no section MUSIC: docs/music.md")
        if (named and not alone) or not self.music_in_use:
            return story
        from retake.music.operations import MusicOperations, with_music

        music: list[OperatedPipeline] = [MusicOperations(self.music, story.bucket, self.clock)]
        pipelines = music if alone else [*story.pipelines, *music]
        return story.of(pipelines, terms=with_music(story.terms, self.music), named=named)

    @property
    def bucket(self) -> Bucket:
        """The whole bucket, whatever the channel."""
        return self.operations.bucket

    @property
    def pipeline(self) -> OperatedPipeline:
        """The one pipeline that the command is about. Raises SettingsError if one of the CHANNELS must be named."""
        if self.channel or not self.settings.channels:
            return self.operations.pipelines[0]
        channel = self.environ.get(CHANNEL_VARIABLE)
        part_of(self.bucket, self.settings, channel)
        return next(it for it in self.operations.pipelines if it.channel == channel)
