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
from retake.operations.pipelines import MUSIC, STORY, Operations
from retake.operations.port import OperatedPipeline
from retake.story.operations import open_operations
from retake.story.settings import CHANNEL_VARIABLE, SANDBOX_VARIABLE, Settings, part_of, settings_and_keys

if TYPE_CHECKING:
    from retake.music.settings import MusicSettings

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

    @property
    def without_story(self) -> bool:
        """Whether the command is about music only, or about one of the PIPELINES."""
        return self.music_alone or self.channel in self.settings.pipelines

    @property
    def story_alone(self) -> bool:
        """Whether the command is about the only pipeline of the story, which is in no channel."""
        return self.channel == STORY and not self.settings.channels

    @cached_property
    def operations(self) -> Operations:
        """The pipeline that `--channel` names. Without it, those of all CHANNELS (or the only one if there are none),
        that of music if it is in use, and the PIPELINES."""
        known, named = self.settings.channels, self.channel is not None
        channel = None if self.without_story or self.story_alone else self.channel
        if channel is not None and channel not in known and (own := self.settings.pipelines):
            names = ", ".join((*known, *own))
            raise SettingsError(f"{channel!r} is none of the CHANNELS and PIPELINES ({names})")
        story = open_operations(
            self.settings, self.clock, channel=channel, named=named, bucket=self._given[0], actor=self._actor
        )
        if self.music_alone and not self.music_in_use:
            raise SettingsError("music is named as the channel, but the settings have no section MUSIC: docs/music.md")
        return story if named and not self.without_story else self._joined(story)

    def _joined(self, story: Operations) -> Operations:
        """Return `story` with the pipelines of music and the PIPELINES added, or only the one that was named."""
        pipelines: list[OperatedPipeline] = [] if self.without_story else [*story.pipelines]
        terms, named = story.terms, self.channel is not None
        if self.music_in_use and self.channel in (None, MUSIC):
            from retake.music.operations import MusicOperations, with_music

            pipelines.append(MusicOperations(self.music, story.bucket, self.clock))
            terms = with_music(terms, self.music)
        own = self.settings.pipelines
        if own and (self.channel is None or self.channel in own):
            from retake.operations.loader import load_pipeline, load_pipelines, with_own_ledgers

            loaded = (
                load_pipelines(own, story.bucket, self.clock)
                if self.channel is None
                else [load_pipeline(self.channel, own[self.channel], story.bucket, self.clock)]
            )
            pipelines += loaded
            terms = with_own_ledgers(terms, loaded)
        return story.of(pipelines, terms=terms, named=named)

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
