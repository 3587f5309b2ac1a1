"""A claimed job: a thread renews the claim, and work on the job stops when the claim is lost or the worker must
stop."""

from collections.abc import Callable, Mapping
from logging import getLogger
from threading import Event, Thread
from time import monotonic
from typing import Self, TypeVar

from retake.attempts import repeating
from retake.errors import RetakeError, in_words
from retake.images.claims import JobClaims, WriteResult
from retake.images.redis_calls import RedisAway
from retake.images.start import SERVICES

PAUSES_S = (0.1, 0.3, 1.0, 2.0, 5.0)
"""Seconds between attempts while Redis or the bucket is unreachable; the last one repeats."""

T = TypeVar("T")

_log = getLogger(__name__)


class JobLost(Exception):
    """Another worker holds the job, or it has ended, or it is gone: this worker does nothing more for it."""

    def __init__(self, result: WriteResult) -> None:
        super().__init__(result.value)
        self.gone = result is WriteResult.GONE


class JobInterrupted(Exception):
    """The worker must stop: the job is given back."""


class WaitReason:
    """Why a job waits. Each cause is logged once until the job continues; `why` is set as long as it waits."""

    def __init__(self) -> None:
        self.why = ""
        """The reason; empty while the job does not wait."""
        self._logged: set[tuple[str, ...]] = set()

    def note(self, why: str, message: str, *cause: str) -> None:
        """Set why it waits, and log `message` unless this cause was logged already."""
        self.why = why
        if cause not in self._logged:
            self._logged.add(cause)
            _log.warning("%s", message)

    def over(self) -> None:
        """Note that the job continues."""
        self.why = ""
        self._logged.clear()


class HeldJob:
    """The job `job_id`, claimed as `token`. As a context manager it renews the claim every third of `silence_s`."""

    def __init__(self, claims: JobClaims, job_id: str, token: str, silence_s: float) -> None:
        self.job_id, self.token = job_id, token
        self.waiting = WaitReason()
        self._claims, self._silence_s = claims, silence_s
        self._woken, self._left = Event(), Event()
        self._lost: WriteResult | None = None
        self._halted = False
        self._thread = Thread(target=self._keep, name=f"claim {job_id[:8]}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def check(self) -> None:
        """Raise JobLost or JobInterrupted if work on the job must stop. Makes no call."""
        if self._lost is not None:
            raise JobLost(self._lost)
        if self._halted:
            raise JobInterrupted

    def pause(self, seconds: float) -> None:
        """Wait. Raises JobLost and JobInterrupted as soon as they are known."""
        self._woken.wait(seconds)
        self.check()

    def halt(self) -> None:
        """Make the next `check` raise JobInterrupted. For other threads."""
        self._halted = True
        self._woken.set()

    def update(self, fields: Mapping[str, str]) -> None:
        """Write fields of the job. On return the claim was just renewed, and lasts long enough for one call.

        Raises JobLost, JobInterrupted.
        """
        while True:
            began = monotonic()
            self._check_held(
                self.patiently(lambda: self._claims.update(self.job_id, self.token, self._silence_s, fields))
            )
            if monotonic() - began < self._silence_s / 3:  # else this process was suspended, or Redis was slow
                return

    def end_ready(self, output_r2_key: str, image_type: str, executed_by: str) -> None:
        """Move the job to ready, with its picture. Raises JobLost, JobInterrupted."""
        given = (self.job_id, self.token, output_r2_key, image_type, executed_by)
        self._check_held(self.patiently(lambda: self._claims.end_ready(*given)))

    def end_failed(self, error: str) -> None:
        """Move the job to failed, with the reason. Raises JobLost, JobInterrupted."""
        self._check_held(self.patiently(lambda: self._claims.end_failed(self.job_id, self.token, error)))

    def give_back(self) -> None:
        """Release the job to other workers: it is pending. If Redis is unreachable, the claim expires instead."""
        try:
            self._claims.give_back(self.job_id, self.token)
        except RedisAway as error:
            _log.warning("the job could not be given back and stays claimed for %g s: %s", self._silence_s, error)

    def patiently(self, work: Callable[[], T], away: type[RetakeError] = RedisAway) -> T:
        """Return the result of `work`, repeating it as long as it raises `away`, a key of `SERVICES`.

        Raises JobLost, JobInterrupted.
        """
        logged, before = "", self.waiting.why
        for pause in repeating(*PAUSES_S):
            self.check()
            try:
                result = work()
            except away as error:
                self.waiting.why = f"{SERVICES[away]} cannot be used; the log of this worker has the reason"
                if in_words(error) != logged:
                    logged = in_words(error)
                    _log.warning("the job waits: %s", logged)
                self.pause(pause)
            else:
                self.waiting.why = before
                return result
        raise AssertionError

    def _check_held(self, result: WriteResult) -> None:
        if result is not WriteResult.DONE:
            self._lose(result)
            raise JobLost(result)

    def _lose(self, result: WriteResult) -> None:
        self._lost = result
        self._woken.set()

    def _keep(self) -> None:
        while not self._left.wait(self._silence_s / 3):
            try:
                result = self._claims.renew(self.job_id, self.token, self._silence_s)
            except RedisAway as error:
                _log.debug("the claim could not be renewed; retrying: %s", error)
                continue
            if result is not WriteResult.DONE and not self._left.is_set():
                self._lose(result)
                return
