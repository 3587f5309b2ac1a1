"""The cost of `python -m retake status` and `kpi` after years of work: with a hundred thousand runs."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.ledger import servers
from bench.ledger_rows import grow
from bench.pipelines import ROOT, environment, full
from bench.processes import Cost, cells, cost
from bench.table import markdown
from retake.bucket import open_bucket
from retake.clock import FakeClock, SystemClock
from retake.runs import Ledger, open_ledger
from retake.runs.bucket_index import ended_key, segment_of, task_key
from retake.runs.database import open_database
from retake.runs.run import RunRequest, Transition, moved, new_run
from retake.runs.run_document import new_document, run_key
from retake.runs.states import Trigger

RUNS = 100_000
RUNS_PER_DAY = 500
REPEATS = 7
WINDOW = "3650d"


def status_table(folder: Path) -> str:
    full(folder / "bucket")
    bare = cost([sys.executable, "-c", "pass"], environment(folder), REPEATS)
    found = {"in the bucket, a directory": measure(in_bucket(folder))}
    with servers(folder) as places:
        found |= {f"in {name}": measure(in_database(folder, urls[0])) for name, urls in places.items()}
    status = [("python3 -c pass", *cells(bare, bare)), *((name, *cells(it[0], bare)) for name, it in found.items())]
    kpi = [
        (f"{name}, {how}", *cells(spent, bare))
        for name, it in found.items()
        for how, spent in zip(("--rebuild", "with a snapshot"), it[1:], strict=True)
    ]
    head = ("100,000 runs", "CPU s", "× bare Python", "wall s", "peak MB")
    title = f"`python -m retake status` with {RUNS:,} runs on the ledger, as a whole process; medians of {REPEATS}."
    about = f"`python -m retake kpi --window {WINDOW}` with the same runs, all of them in the window."
    return "\n\n".join((markdown(title, head, status), markdown(about, head, kpi)))


def in_bucket(folder: Path) -> Mapping[str, str]:
    """Write RUNS_PER_DAY runs a day; end the last one through the ledger, which counts those before it."""
    for number in range(RUNS):
        write_run(folder / "bucket", number, datetime.now(UTC) - timedelta(days=(RUNS - number) / RUNS_PER_DAY))
    bucket = open_bucket(f"file:{folder}/bucket")
    run_to_end(open_ledger(None, bucket, FakeClock(datetime.now(UTC))))
    return environment(folder / "bucket")


def write_run(bucket: Path, number: int, at: datetime) -> None:
    """Write what a run leaves behind: a document and two empty files whose names index it."""
    run, created = new_run(RunRequest(f"task {number}", f"task {number}#1", "bench", "story"), 1, at=at)
    run, claimed = moved(run, Transition(Trigger.WORKER_CLAIM, "bench", "bench"), 2, at=at)
    run, done = moved(run, Transition(Trigger.COMPLETED, "bench"), 3, at=at)
    doc = new_document(run, [created, *claimed, *done])
    for key, data in (
        (run_key(run.run_id), doc.encode()),
        (task_key(run), b""),
        (ended_key(run, segment_of(at)), b""),
    ):
        path = bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def in_database(folder: Path, url: str) -> Mapping[str, str]:
    ledger = open_ledger(url, open_bucket(f"file:{folder}/bucket"), SystemClock())
    database = open_database(url, read_only=False)
    grow(database, RUNS)
    with database.cursor() as cursor:
        cursor.execute("UPDATE task_runs SET pipeline = 'story'")
    database.close()
    run_to_end(ledger)
    settings = json.loads((ROOT / "config" / "config.json").read_bytes())
    settings["STORAGE"] = {**settings.get("STORAGE", {}), "ledger": url}
    config = folder / "config.json"
    config.write_text(json.dumps(settings))
    return {**environment(folder / "bucket"), "RETAKE_CONFIG": str(config)}


def run_to_end(ledger: Ledger) -> None:
    run = ledger.create_for_task("the last", "the last#1", actor="bench", pipeline="story")
    run = ledger.move(run, Trigger.WORKER_CLAIM, actor="bench", worker="bench")
    ledger.move(run, Trigger.COMPLETED, actor="bench")


def measure(environ: Mapping[str, str]) -> tuple[Cost, Cost, Cost]:
    """Return the cost of `status`, of `kpi --rebuild`, and of `kpi` with the resulting snapshot."""
    retake, environ = [sys.executable, "-m", "retake"], {**environ, "PYTHONPATH": str(ROOT)}
    kpi = [*retake, "kpi", "--window", WINDOW]
    status = cost([*retake, "status"], environ, REPEATS)
    return status, cost([*kpi, "--rebuild"], environ, 1), cost(kpi, environ, REPEATS)
