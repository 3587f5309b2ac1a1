"""The vendors' clients and media tools that a step uses, as interfaces and as configured by the settings. Each SDK is
imported when it is first needed."""

from logging import getLogger
from typing import TYPE_CHECKING, Protocol

from retake.keys import Keys, missing_keys
from retake.story.settings import Settings
from retake.vendors import ChatModel, Downloader, Midjourney, VideoGenerator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from retake.vendors.kept import KeptConnections

_log = getLogger(__name__)


class Vendors(Protocol):
    """The vendors' clients, each created (and its SDK imported) on first use."""

    def midjourney(self) -> Midjourney: ...

    def video_generator(self) -> VideoGenerator: ...

    def writer(self) -> ChatModel: ...

    def downloader(self) -> Downloader: ...


class MediaTools(Protocol):
    """Creates and inspects pictures and videos on this machine. Every method raises MediaError for unreadable input."""

    def sized(self, picture: bytes) -> bytes:
        """Return the picture as a PNG of the configured size."""
        ...

    def quarters(self, grid: bytes) -> list[bytes]:
        """Return the four pictures of a 2 × 2 grid."""
        ...

    def data_uri(self, picture: bytes) -> str:
        """Return the picture as a data URI that every vendor accepts."""
        ...

    def placeholder(self, topic: str) -> bytes:
        """Return a PNG of the configured size with the topic on it."""
        ...

    def mock_video(self, picture: bytes) -> bytes:
        """Return an MP4 of the configured length, made of the picture."""
        ...

    def check_video(self, video: "bytes | Path") -> str:
        """Return what is doubtful about the video, given as bytes or as a file, or "". Raises MediaError if it is not a
        video at all."""
        ...


class RealVendors:
    """The clients that the settings name, with the keys from the environment. If `kept` is given, tasks are polled over
    the connections that it returns."""

    def __init__(self, settings: Settings, keys: Keys, kept: "Callable[[], KeptConnections] | None" = None) -> None:
        self._settings = settings
        self._keys = keys
        self._kept = kept
        self._midjourney: Midjourney | None = None

    def midjourney(self) -> Midjourney:
        if self._midjourney is None:
            from retake.vendors.sellers import open_midjourney

            chosen, timeout_s = self._settings.midjourney, self._settings.workflow.call_timeout_seconds
            key, kept = self._key("midjourney"), self._kept_connections()
            self._midjourney = open_midjourney(chosen, key, timeout_s=timeout_s, kept=kept)
        return self._midjourney

    def video_generator(self) -> VideoGenerator:
        from retake.vendors.runway import Runway

        chosen, video = self._settings.runwayml, self._settings.video
        runway = Runway(
            chosen.endpoint,
            self._key("runway"),
            model=chosen.model_name,
            ratio=video.runway_ratio,
            duration_s=video.runway_duration,
            timeout_s=self._settings.workflow.call_timeout_seconds,
            kept=self._kept_connections(),
        )
        for adjustment in runway.adjusted:
            _log.warning("%s", adjustment)
        return runway

    def writer(self) -> ChatModel:
        from retake.vendors.chat import OpenAIChat

        chosen = self._settings.openai
        return OpenAIChat(
            chosen.endpoint,
            chosen.model,
            self._key("openai"),
            timeout_s=self._settings.workflow.call_timeout_seconds,
        )

    def downloader(self) -> Downloader:
        from retake.vendors.download import HttpDownloader

        return HttpDownloader(timeout_s=self._settings.workflow.call_timeout_seconds)

    def _kept_connections(self) -> "KeptConnections | None":
        return self._kept() if self._kept else None

    def _key(self, name: str) -> str:
        missing = missing_keys(self._keys, (name,))
        if missing:
            raise missing
        return str(getattr(self._keys, name))


class LocalMedia:
    """Pillow and ffmpeg, with the sizes and lengths of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._size = settings.image.output_size
        self._video = settings.video

    def sized(self, picture: bytes) -> bytes:
        from retake.media.picture import Size, fit

        return fit(picture, Size(*self._size))

    def quarters(self, grid: bytes) -> list[bytes]:
        from retake.media.picture import quarters

        return quarters(grid)

    def data_uri(self, picture: bytes) -> str:
        from retake.media.picture import data_uri
        from retake.vendors.runway_limits import DATA_URI_LIMIT

        return data_uri(picture, DATA_URI_LIMIT)

    def placeholder(self, topic: str) -> bytes:
        from retake.media.picture import Size
        from retake.media.placeholder import placeholder

        return placeholder(topic, Size(*self._size))

    def mock_video(self, picture: bytes) -> bytes:
        from retake.media.picture import Size
        from retake.media.video import mock_video

        video = self._video
        return mock_video(picture, Size(*self._size), video.mock_duration, video.mock_fps, video.mock_codec)

    def check_video(self, video: "bytes | Path") -> str:
        from retake.media import MediaError
        from retake.media.video import check_video, is_video_file

        try:
            check_video(video)
        except MediaError as error:
            if not is_video_file(video):
                raise
            return str(error)
        return ""
