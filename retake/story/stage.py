"""What a step works with: the settings, the documents, the vendors, the clock. Everything that touches the world comes
in through here, so that a test or a simulation decides what the world is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from logging import getLogger
from random import random
from typing import TYPE_CHECKING, Any, Protocol

from retake.clock import Clock
from retake.errors import CodedError, ErrorClass, Stopped, VendorError, error_record, escalate, retry_in
from retake.keys import Keys, missing_keys
from retake.story.documents import Step
from retake.story.settings import Settings
from retake.story.spending import Spending
from retake.story.store import DocumentStore
from retake.story.waits import wait_s
from retake.vendors import Downloader, Filmmaker, Midjourney, Writer

if TYPE_CHECKING:
    from retake.paid.caps import Reservation

_log = getLogger(__name__)

_PIECE_S = 0.25

_ASK_A_PERSON = {
    ErrorClass.TEMPORARY: "no attempt is left: look at its dead letter, --retake takes this step up again",
    ErrorClass.BUSINESS: "look at its dead letter, change the prompt: the same one fails again",
    ErrorClass.CRITICAL: "mend what the message names; --resume tries again at once",
}


class Vendors(Protocol):
    """The clients, each made (and its SDK loaded) when it is first asked for."""

    def midjourney(self) -> Midjourney: ...

    def filmmaker(self) -> Filmmaker: ...

    def writer(self) -> Writer: ...

    def downloader(self) -> Downloader: ...


class Studio(Protocol):
    """Pictures and videos made or looked at on this machine. Everything raises MediaError for what it cannot read."""

    def sized(self, picture: bytes) -> bytes:
        """A PNG of the configured size."""
        ...

    def quarters(self, grid: bytes) -> list[bytes]:
        """The four pictures of a 2 × 2 grid."""
        ...

    def data_uri(self, picture: bytes) -> str:
        """The picture as a data URI that every vendor takes."""
        ...

    def placeholder(self, topic: str) -> bytes:
        """A PNG of the configured size with the topic on it."""
        ...

    def mock_video(self, picture: bytes) -> bytes:
        """An MP4 of the configured length, made of the picture."""
        ...

    def check_video(self, video: bytes) -> str:
        """What is doubtful about the video, "" if nothing is. Raises MediaError for what is no video at all."""
        ...


class Stage:
    """One step's surroundings. `stopping` says whether a signal asked the program to stop; `switch(seconds)` has the
    kernel end this process after so many, `switch(0)` not any more. `spending` must be that of the whole bucket: left
    out, the store's bucket is all of it."""

    def __init__(
        self,
        settings: Settings,
        store: DocumentStore,
        vendors: Vendors,
        studio: Studio,
        clock: Clock,
        *,
        stopping: Callable[[], bool] = lambda: False,
        switch: Callable[[float], None] = lambda seconds: None,
        random_nonce: Callable[[], int] | None = None,
        random: Callable[[], float] = random,
        spending: Spending | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.vendors = vendors
        self.studio = studio
        self.clock = clock
        self.spending = spending or Spending(settings, store.bucket, clock)
        self.random_nonce = random_nonce or _random_nonce
        self._stopping = stopping
        self._switch = switch
        self._random = random

    @property
    def generation_id(self) -> str:
        """The generation under way, "" if there is none."""
        return self.store.documents.gen.generation_id or ""

    def pause(self, seconds: float) -> None:
        """Wait, in short pieces: a signal is answered at once, for nothing is half done while a step waits. Raises
        Stopped."""
        self.check_stop()
        while seconds > 0:
            self.clock.sleep(min(seconds, _PIECE_S))
            seconds -= _PIECE_S
            self.check_stop()

    @contextmanager
    def ended_after(self, seconds: float | None) -> Iterator[None]:
        """What is done inside is done within so many seconds, or this process is no more. None: no such bound."""
        if seconds is None:
            yield
            return
        self._switch(seconds)
        try:
            yield
        finally:
            self._switch(0)

    def price(self, step: Step) -> float:
        """What a paid call of the step costs, in US dollars."""
        return self.spending.price(step)

    def reserve(self, step: Step) -> "Reservation":
        """Set aside what a paid call of the step costs; the reservation is to be saved with its intent. Raises
        CapReached where the call would exceed what may be spent today."""
        return self.spending.reserve(self.store.documents.midjourney, step)

    def check_stop(self) -> None:
        if self._stopping():
            raise Stopped("asked to stop; the next tick goes on from here")

    def record(self, error: VendorError, step: Step | None = None) -> dict[str, Any]:
        """The error record of a failure of `step`, None: the present one."""
        doc = self.store.documents.midjourney
        step = step or doc.present_step
        now, retries = self.clock.now(), doc.retries_of(step)
        return failure_record(self.settings, error, step, retries, now, self.generation_id, self._random)


def failure_record(
    settings: Settings,
    error: CodedError,
    step: Step,
    retries: int,
    now: datetime,
    generation_id: str,
    random: Callable[[], float],
) -> dict[str, Any]:
    """The error record of a step that failed after so many retries. Its recovery action says when the step is tried
    again, or what a person has to do. `random()` gives 0 … 1."""
    again = error.error_class is ErrorClass.TEMPORARY and retries < settings.workflow.max_retries
    wait = wait_s(settings, error, retries, now.microsecond / 1e6, random) if again else 0
    return error_record(
        error,
        now=now,
        robot_id=f"story.{step}",
        correlation_id=generation_id,
        retry_count=retries,
        recovery_actions=(retry_in(wait) if again else escalate("operator", _ASK_A_PERSON[error.error_class]),),
    )


def _random_nonce() -> int:
    from random import SystemRandom

    return SystemRandom().randrange(2**32)


class RealVendors:
    """The clients that the settings name, with the keys of the environment."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys

    def midjourney(self) -> Midjourney:
        chosen, key = self._settings.midjourney, self._key("midjourney")
        timeout_s = self._settings.workflow.call_timeout_seconds
        if chosen.provider == "legnext":
            from retake.vendors.legnext import LegNext

            return LegNext(
                chosen.endpoint,
                key,
                process_mode=chosen.process_mode,
                aspect_ratio=chosen.aspect_ratio,
                timeout_s=timeout_s,
            )
        from retake.vendors.piapi import PiAPI

        return PiAPI(
            chosen.endpoint,
            chosen.task_endpoint,
            key,
            process_mode=chosen.process_mode,
            aspect_ratio=chosen.aspect_ratio,
            timeout_s=timeout_s,
        )

    def filmmaker(self) -> Filmmaker:
        from retake.vendors.runway import Runway

        chosen, video = self._settings.runwayml, self._settings.video
        runway = Runway(
            chosen.endpoint,
            self._key("runway"),
            model=chosen.model_name,
            ratio=video.runway_ratio,
            duration_s=video.runway_duration,
            timeout_s=self._settings.workflow.call_timeout_seconds,
        )
        for adjustment in runway.adjusted:
            _log.warning("%s", adjustment)
        return runway

    def writer(self) -> Writer:
        from retake.vendors.writer import ChatWriter

        chosen = self._settings.openai
        return ChatWriter(
            chosen.endpoint,
            chosen.model,
            self._key("openai"),
            timeout_s=self._settings.workflow.call_timeout_seconds,
        )

    def downloader(self) -> Downloader:
        from retake.vendors.download import HttpDownloader

        return HttpDownloader(timeout_s=self._settings.workflow.call_timeout_seconds)

    def _key(self, name: str) -> str:
        missing = missing_keys(self._keys, (name,))
        if missing:
            raise missing
        return str(getattr(self._keys, name))


class RealStudio:
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

    def check_video(self, video: bytes) -> str:
        from retake.media import MediaError
        from retake.media.video import check_video, is_video_file

        try:
            check_video(video)
        except MediaError as error:
            if not is_video_file(video):
                raise
            return str(error)
        return ""
