"""What a step uses: its attempt, the vendors, the files, and a way to stop in time."""

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple, Protocol

from retake.bucket import ANY, Bucket, NotFound
from retake.bucket.contract import is_key, write_file
from retake.bucket.ranged_reads import read_range
from retake.clock import Clock
from retake.errors import Code, PollFailed, Stopped
from retake.music.attempts import AttemptStore, JobAttempt
from retake.music.calls import CallBook, MusicJournal
from retake.music.mode_gate import ModeGate
from retake.music.rows import PipelineRow
from retake.music.settings import MusicSettings
from retake.music.states import MusicStep
from retake.music.tracks import find_track
from retake.paid.guard import RETRY, PaidCallGuard
from retake.runs.run_handle import RunHandle
from retake.vendors import ChatModel, Downloader, Midjourney, VideoPlatform

FOLDER = "music/"
"""Prefix of the files of all pipelines in the bucket: music/ID/NAME."""

POLL_S = 0.25
"""Seconds between two checks, during a pause, whether the service is stopping."""


class MusicVendors(Protocol):
    """The vendors' clients, each created (and its library loaded) on first use."""

    def midjourney(self) -> Midjourney: ...

    def chat(self) -> ChatModel: ...

    def downloader(self) -> Downloader: ...

    def youtube(self) -> VideoPlatform: ...


class SharedContext(NamedTuple):
    """What all attempts of a process share."""

    settings: MusicSettings
    bucket: Bucket
    attempts: AttemptStore
    calls: CallBook
    vendors: MusicVendors
    prices: Mapping[str, float]  # in US dollars, by the step that pays
    stopping: Callable[[], bool]
    random: Random

    @property
    def clock(self) -> Clock:
        return self.attempts.clock

    @property
    def gate(self) -> ModeGate:
        return ModeGate(self.settings, self.bucket, self.clock)


class JobContext:
    """One attempt at a step, and what it may use."""

    def __init__(self, shared: SharedContext, attempt: JobAttempt, handle: RunHandle) -> None:
        self.shared, self.attempt, self._handle = shared, attempt, handle
        self.settings, self.clock = shared.settings, shared.clock

    @property
    def row(self) -> PipelineRow:
        """The pipeline as it was when the attempt began."""
        return self.attempt.pipeline

    @property
    def step(self) -> MusicStep:
        return self.attempt.step

    def check(self) -> None:
        """Return if the attempt may continue. Raises Stopped, and StaleRun if another attempt has taken its place."""
        if self.shared.stopping():
            raise Stopped("the service stops; the step continues when it starts again")
        self._handle.check()

    def given_up(self) -> bool:
        """Return whether the attempt should end soon: `check` would raise."""
        return self.shared.stopping() or self._handle.lost

    def pause(self, seconds: float) -> None:
        """Wait, unaffected by steps of the clock. Raises what `check` raises."""
        self.check()
        while seconds > 0:
            self.clock.sleep(min(seconds, POLL_S))
            seconds -= POLL_S
            self.check()

    def present(self) -> PipelineRow:
        """Return the row as it is now. Raises StaleRun."""
        return self.shared.attempts.present(self.attempt)

    def save(self, **values: Any) -> PipelineRow:
        """Set columns of the row. Raises StaleRun."""
        return self.shared.attempts.save(self.attempt, values)

    # --- files --------------------------------------------------------------------------------------------------

    def audio(self) -> Path:
        """Return the path of the track. Raises PollFailed if it is missing or too large."""
        return find_track(Path(self.settings.music.audio_folder), self.row.audio)

    def keep(self, name: str, kind: str, data: bytes) -> str:
        """Save a file of the pipeline and return the path under which the API serves it, as `keep_file` does."""
        return self.keep_file(name, kind, BytesIO(data))

    def keep_file(self, name: str, kind: str, file: BinaryIO) -> str:
        """Save the content of `file`, without loading it into memory, and return the path under which the API serves
        it.

        Each take has its own name, so that an earlier result is not replaced: "cover-2.png".
        """
        name = f"{name}-{self.row.take}.{kind}"
        self.check()
        write_file(self.shared.bucket, f"{FOLDER}{self.row.id}/{name}", file, ANY)
        return f"/api/music/pipeline/{self.row.id}/media/{name}"

    def kept(self, url: str | None, what: str) -> bytes:
        """Return a file that `keep` saved. Raises PollFailed if it is gone."""
        key = _key_of(self.row, url, what)
        try:
            return self.shared.bucket.read(key)[0]
        except NotFound:
            raise _gone(key, what) from None

    def kept_file(self, url: str | None, what: str) -> "KeptFile":
        """Return a file that `keep_file` saved, for reading in parts. Raises PollFailed if it is gone."""
        key = _key_of(self.row, url, what)
        found = self.shared.bucket.find(key, [""])
        if not found:
            raise _gone(key, what)
        return KeptFile(self.shared.bucket, key, what, found[0].size)

    # --- paid calls ---------------------------------------------------------------------------------------------

    def guard(self, journal: MusicJournal, on_unknown: str = RETRY) -> PaidCallGuard:
        """Return the guard of this attempt's paid calls."""
        return PaidCallGuard(
            journal,
            StepBudget(self.shared.prices, self.shared.gate),
            lease=_RunHeld(self._handle),
            clock=self.clock,
            process=_Paying(self),
            call_timeout_s=self.settings.workflow.call_timeout_seconds,
            on_unknown=on_unknown,
            how_to_decide=f"say retake music resolve {self.row.id} --again",
        )


class KeptFile:
    """The `retake.vendors.UploadSource` of a file in the bucket. Only one part at a time is in memory."""

    def __init__(self, bucket: Bucket, key: str, what: str, size: int) -> None:
        self._bucket, self._key, self._what, self._size = bucket, key, what, size

    @property
    def size(self) -> int:
        return self._size

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`. Raises PollFailed if the file is gone."""
        try:
            return read_range(self._bucket, self._key, start, start + length - 1)
        except NotFound:
            raise _gone(self._key, self._what) from None


def _key_of(row: PipelineRow, url: str | None, what: str) -> str:
    name = (url or "").rpartition("/")[2]
    if not name:
        raise PollFailed(Code.MISSING, f"the {what} is not on record: its column is empty")
    if not is_key(key := f"{FOLDER}{row.id}/{name}"):
        raise PollFailed(
            Code.MISSING, f"the {what} is not on record: its column has {name[:60]!r}, which is not a file"
        )
    return key


def _gone(key: str, what: str) -> PollFailed:
    return PollFailed(Code.MISSING, f"the {what} is not in the bucket: {key}; put it back")


class StepBudget:
    """The `retake.paid.guard.Budget`. The journal enforces the cap, in the transaction that records the call."""

    def __init__(self, prices: Mapping[str, float], gate: ModeGate) -> None:
        self._prices, self._gate = prices, gate

    def price(self, step: str) -> float:
        return self._prices[step]

    def reserve(self, step: str) -> None:
        """Reserve nothing: recording the intent does. Raises HeldBack if a degraded mode lets nothing be paid for."""
        self._gate.check_payment()


class _RunHeld:
    """The `retake.paid.guard.Held` of the run on the ledger. A stop does not interrupt a call that is recorded as
    begun."""

    def __init__(self, handle: RunHandle) -> None:
        self.check = handle.check

    def left(self) -> None:
        """Return None: a call made by a worker after it was presumed dead has its own intent."""


class _Paying:
    """`retake.paid.guard.PayingProcess`."""

    def __init__(self, context: JobContext) -> None:
        self.check_stop = context.check

    def kill_after(self, seconds: float) -> None:
        """Do nothing: other steps run in the same process."""
