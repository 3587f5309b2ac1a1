"""The clients of the vendors in the settings, with the keys from the environment."""

from collections.abc import Callable
from functools import cached_property
from threading import Lock

from retake.music.settings import MusicKeys, MusicSettings
from retake.vendors import ChatModel, Downloader, Midjourney, VideoPlatform


class RealMusicVendors:
    """The real `retake.music.context.MusicVendors`. Thread-safe: clients with a session are created for each call.

    `pause` waits the given number of seconds between two attempts at a broken upload.
    """

    def __init__(self, settings: MusicSettings, keys: MusicKeys, pause: Callable[[float], object]) -> None:
        self._settings, self._keys, self._pause = settings, keys, pause
        self._lock = Lock()

    @property
    def _timeout_s(self) -> float:
        return self._settings.workflow.call_timeout_seconds

    def midjourney(self) -> Midjourney:
        from retake.vendors.sellers import open_midjourney

        return open_midjourney(self._settings.midjourney, self._keys.midjourney or "", timeout_s=self._timeout_s)

    def chat(self) -> ChatModel:
        from retake.vendors.chat import OpenAIChat

        chosen = self._settings.openai
        return OpenAIChat(chosen.endpoint, chosen.model, self._keys.openai or "", timeout_s=self._timeout_s)

    def downloader(self) -> Downloader:
        from retake.vendors.download import HttpDownloader

        return HttpDownloader(timeout_s=self._timeout_s)

    def youtube(self) -> VideoPlatform:
        with self._lock:
            return self._youtube

    @cached_property
    def _youtube(self) -> VideoPlatform:
        from retake.vendors.youtube import YouTube
        from retake.vendors.youtube_account import YouTubeKeys

        keys, chosen, music = self._keys, self._settings.youtube, self._settings.music
        own = YouTubeKeys(
            keys.youtube_client_id or "", keys.youtube_client_secret or "", keys.youtube_refresh_token or ""
        )
        return YouTube(
            own,
            timeout_s=self._timeout_s,
            endpoint=chosen.endpoint,
            token_endpoint=chosen.token_endpoint,
            chunk_bytes=music.upload_chunk_bytes,
            resumes=music.upload_resumes,
            pause=self._pause,
        )
