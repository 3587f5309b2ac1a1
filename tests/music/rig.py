"""A music pipeline in which everything is real but the vendors and the clock: a database, a bucket, the clients over
HTTP to stand-ins, and ffmpeg. Workers and upkeep run in this thread, a turn at a time.

    rig = Rig(url, tmp_path)
    pipeline = rig.create()
    rig.work()                              # until nothing can be done now
    rig.later(seconds=5)
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from sqlalchemy import insert

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.media.audio import demo_track
from retake.music.actions import PipelineActions
from retake.music.attempts import AttemptStore
from retake.music.calls import CallBook
from retake.music.clients import RealMusicVendors
from retake.music.context import MusicVendors, SharedContext
from retake.music.database import MusicDatabase, open_music_database
from retake.music.rows import PipelineRow
from retake.music.settings import SANDBOX_KEYS, MusicKeys, MusicSettings, ServiceSettings, sandboxed
from retake.music.store import NewPipeline, as_text
from retake.music.tables import pipelines
from retake.music.upkeep import Upkeep
from retake.music.worker import step_prices, workers
from retake.runs.states import RunStatus
from retake.runs.worker import Worker
from retake.sandbox import Pace, Sandbox

START = datetime(2026, 11, 22, 12, tzinfo=UTC)

_SEEDS = count(7)
"""Rigs that share a sandbox have nonces of their own."""

FOLLOWING = {"cover": "video", "video": "thumb", "thumb": "meta", "meta": "review", "review": "publish"}


BEFORE = {step: f"{before}_pending" for before, step in FOLLOWING.items()}

META = {"title": "Paper Boats", "description": "A song.", "tags": ["music"]}
MADE = {
    "cover_url": ("video", "cover-1.png"),
    "video_url": ("thumb", "video-1.mp4"),
    "thumbnail_url": ("meta", "thumb-1.jpg"),
}
"""By column: the step that follows it, and the file's name."""

VIDEO = b"video" * 120_000
"""Three chunks of 256 KiB: YouTube's stand-in accepts anything as a video."""


class Rig:
    """A process of the service without its threads; another rig with the same `sandbox` and `bucket` is a second
    process."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        sandbox: Sandbox | None = None,
        bucket: MemoryBucket | None = None,
        clock: FakeClock | None = None,
        provider: str = "piapi",
        keys: MusicKeys = SANDBOX_KEYS,
        vendors_url: str = "",
        workflow: dict[str, Any] | None = None,
        **music: Any,
    ) -> None:
        self.clock = clock or FakeClock(START)
        self.sandbox = sandbox or Sandbox(pace=Pace(0, 0, 0), quick=True, seed=7, clock=self.clock).__enter__()
        self.bucket = bucket or MemoryBucket()
        self.folder = folder
        defaults = MusicSettings()
        fixed = {"database": url, "audio_folder": str(folder), "upload_chunk_bytes": 262_144, **music}
        settings = defaults._replace(
            music=ServiceSettings(**fixed),
            midjourney=defaults.midjourney._replace(provider=provider),
            workflow=defaults.workflow._replace(**(workflow or {})),
        )
        self.settings = sandboxed(settings, vendors_url or self.sandbox.url)
        self.stopping = False
        self.database: MusicDatabase = open_music_database(url, self.clock)
        self.vendors: MusicVendors = RealMusicVendors(self.settings, keys, self.clock.sleep)
        self.begin()
        if not (folder / "demo.wav").exists():
            (folder / "demo.wav").write_bytes(demo())

    def begin(self) -> None:
        """Restart the process on the same database."""
        own = self.settings.music
        self.actions = PipelineActions(self.database, uploads_per_day=own.uploads_per_day, telling=True)
        self.calls = CallBook(self.database, daily_cap_usd=own.daily_cap_usd)
        shared = SharedContext(
            self.settings,
            self.bucket,
            AttemptStore(self.actions),
            self.calls,
            self.vendors,
            step_prices(self.settings),
            lambda: self.stopping,
            Random(next(_SEEDS)),
        )
        make, recovery = workers(self.database, shared, name="test")
        self.worker: Worker = make()
        self.upkeep = Upkeep(self.actions, recovery)

    def create(self, title: str = "Paper Boats", audio: str = "demo.wav", **new: Any) -> PipelineRow:
        return self.actions.create(NewPipeline(title, audio, **new)).pipeline

    def insert(self, **values: Any) -> PipelineRow:
        """Insert a row, as another program would."""
        with self.database.transaction() as cursor:
            row = cursor.row(insert(pipelines).values(values).returning(pipelines.c.id))
        assert row
        return self.get(int(row[0]))

    def before(self, step: str, *, video: bytes = VIDEO, **values: Any) -> PipelineRow:
        """Return a pipeline that waits for approval before `step`, with everything made by then."""
        known: dict[str, Any] = {"track_title": "Paper Boats", "audio": "demo.wav", "take": 1, "run_number": 1}
        row = self.insert(**{**known, "state": BEFORE[step], **values})
        files = {"cover_url": picture(), "video_url": video, "thumbnail_url": picture("JPEG")}
        urls: dict[str, Any] = {}
        order = list(FOLLOWING)
        for column, (following, name) in MADE.items():
            if step == "publish" or order.index(step) >= order.index(following):
                self.bucket.write(f"music/{row.id}/{name}", files[column], ANY)
                urls[column] = f"/api/music/pipeline/{row.id}/media/{name}"
        if step in ("review", "publish"):
            urls["metadata_json"] = as_text(META)
        if step == "publish":
            urls["review_json"] = as_text({"verdict": "pass", "notes": []})
        return self.actions.change(row.id, lambda cursor, now: urls)

    def begun(self, step: str, **values: Any) -> PipelineRow:
        """Return a pipeline whose `step` has been started, but not yet worked on."""
        return self.create() if step == "cover" else self.actions.approve(self.before(step, **values).id)

    def attempts(self, pipeline: PipelineRow | int) -> list[tuple[int, str, str | None]]:
        """Return (attempt, status, error code) of the attempts at a pipeline."""
        jobs = self.actions.jobs(pipeline if isinstance(pipeline, int) else pipeline.id)
        return [(job.attempt, job.status, job.error_code) for job in jobs]

    def work(self) -> int:
        """Work until nothing can be done now, and return how many runs were worked on."""
        count = 0
        while self.worker.work_once():
            count += 1
            assert count < 1000, "it never ends"
        return count

    def settle(self, hours: float = 1.0) -> None:
        """Work, with upkeep, until everything due within so many hours is done."""
        end = self.clock.now() + timedelta(hours=hours)
        while True:
            self.upkeep.look()
            self.work()
            ledger = self.database.ledger
            due = [run.next_retry_at for run in ledger.runs(status=[RunStatus.RETRY_SCHEDULED]) if run.next_retry_at]
            if ledger.runs(status=[RunStatus.RUNNING]):  # its worker is dead
                due.append(self.clock.now() + timedelta(seconds=self.settings.music.stuck_seconds + 1))
            if not due or min(due) > end:
                return
            self.clock.moment = max(self.clock.moment, min(due))

    def later(self, **delta: float) -> None:
        self.clock.moment += timedelta(**delta)

    def get(self, pipeline: PipelineRow | int) -> PipelineRow:
        return self.actions.get(pipeline if isinstance(pipeline, int) else pipeline.id)

    def approve_until(self, pipeline: PipelineRow, state: str, do: Callable[[], object] = lambda: None) -> PipelineRow:
        """Approve everything until the pipeline is in `state`."""
        for _ in range(20):
            self.settle()
            row = self.get(pipeline)
            if row.state == state:
                return row
            assert row.state.endswith("_pending"), (row.state, row.failed_reason)
            self.actions.approve(row.id)
        raise AssertionError(self.get(pipeline).state)

    def billed(self, kind: str) -> int:
        """Return how many calls of a kind the vendor has carried out."""
        return sum(call.carried_out for call in self.sandbox.calls(kind))

    def close(self) -> None:
        self.database.close()


@cache
def demo() -> bytes:
    """Return a second of music."""
    with TemporaryDirectory() as folder:
        demo_track(Path(folder) / "demo.wav", seconds=1)
        return (Path(folder) / "demo.wav").read_bytes()


@cache
def picture(kind: str = "PNG", colour: str = "#203040") -> bytes:
    """Return a plain picture of the size of a cover."""
    out = BytesIO()
    Image.new("RGB", (1280, 720), colour).save(out, kind)
    return out.getvalue()
