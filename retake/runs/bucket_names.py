"""The keys of a ledger in a bucket.

    runs/RUN_ID.json                            a run and its last events: the source of truth
    runs/events/RUN_ID/SEGMENT.json             its older events; the run's document names its segments
    runs/index/open/PIPELINE.RUN_ID             the run has not ended; empty
    runs/index/tasks/DIGEST/RUN_ID              a run of the task with this digest; empty
    runs/index/ended/SEGMENT/TIME.STATUS.PIPELINE.RUN_ID   how it ended, and when; empty
    runs/index/ended.json                       how many ended, by segment (retake.runs.bucket_tally)

What is below index/ says where to look, and can be rebuilt from the documents.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple

from retake.bucket import Entry
from retake.runs.run import Run, is_run_id
from retake.runs.states import RunStatus

OPEN = "runs/index/open/"
ENDED = "runs/index/ended/"
TALLY = "runs/index/ended.json"


class OpenMarker(NamedTuple):
    """What the key of an open marker says."""

    pipeline: str  # its tag
    run_id: str
    modified: float  # seconds since the epoch, by the store's own clock

    @property
    def key(self) -> str:
        return f"{OPEN}{self.pipeline}.{self.run_id}"


class EndedRun(NamedTuple):
    """What the key of an ended run says."""

    time: str  # sorts by time
    status: RunStatus
    pipeline: str  # its tag
    run_id: str

    @property
    def name(self) -> str:
        return f"{self.time}.{self.status.value}.{self.pipeline}.{self.run_id}"


def run_key(run_id: str) -> str:
    return f"runs/{run_id}.json"


def segment_key(run_id: str, segment: str) -> str:
    return f"runs/events/{run_id}/{segment}.json"


def open_key(run: Run) -> str:
    return f"{OPEN}{tag_of(run.pipeline)}.{run.run_id}"


def task_prefix(task_id: str) -> str:
    return f"runs/index/tasks/{_digest(task_id)}/"


def task_key(run: Run) -> str:
    return f"{task_prefix(run.task_id)}{run.run_id}"


def time_of(run: Run) -> str:
    """Return when the run last changed, as text that sorts by time."""
    return run.updated_at.astimezone(UTC).strftime("%Y%m%dT%H%M%S%f")


def ended_key(run: Run, segment: str) -> str:
    return f"{ENDED}{segment}/{EndedRun(time_of(run), run.status, tag_of(run.pipeline), run.run_id).name}"


def segment_of(moment: datetime, number: int = 0) -> str:
    """Return the name of a segment opened at `moment`; `number` distinguishes those of one day."""
    day = moment.astimezone(UTC).strftime("%Y-%m-%d")
    return f"{day}.{number:06d}" if number else day


def tag_of(pipeline: str) -> str:
    """Return a word for the pipeline that can stand between dots in a key: "story/en" becomes "story+en"."""
    plain = pipeline.replace("/", "+")
    bare = plain.replace("-", "").replace("_", "").replace("+", "")
    if "+" not in pipeline and bare.isascii() and bare.isalnum() and len(plain) <= 60:
        return plain
    return f"~{_digest(pipeline)}" if pipeline else "~"


def opened(entries: Iterable[Entry]) -> list[OpenMarker]:
    """Return what the keys below OPEN say, without keys of other programs."""
    parted = ((entry.key.removeprefix(OPEN).rpartition("."), entry.modified) for entry in entries)
    return [OpenMarker(tag, run_id, modified) for (tag, _, run_id), modified in parted if is_run_id(run_id)]


def ended(entries: Iterable[Entry]) -> list[tuple[str, EndedRun]]:
    """Return what the keys below ENDED say, (segment, run), without keys of other programs."""
    found = []
    for entry in entries:
        segment, _, name = entry.key.removeprefix(ENDED).rpartition("/")
        parts = name.split(".")
        if len(parts) == 4 and parts[1] in _STATUSES and is_run_id(parts[3]):
            found.append((segment, EndedRun(parts[0], _STATUSES[parts[1]], parts[2], parts[3])))
    return found


_STATUSES = {status.value: status for status in RunStatus}


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]
