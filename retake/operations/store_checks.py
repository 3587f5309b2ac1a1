"""The doctor's checks of stores: the bucket, its lease and clock, the ledger, the documents, the last errors.

The bucket is tested with a scratch object and a lease of the doctor's own. Both are removed afterwards.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from retake.alerts.store import BoardStore
from retake.bucket import ANY, Bucket, this_process
from retake.clock import Clock
from retake.errors import ErrorRecord, LeaseHeld, RetakeError, StateError
from retake.foreign_text import one_line
from retake.kpi.facts import ROBOT
from retake.operations.finding import Finding, Verdict, fault, named, of_error, ok, warn
from retake.operations.modes import ModePanel
from retake.operations.pipelines import Operations
from retake.operations.port import OperatedPipeline
from retake.operations.timeline import step_of
from retake.operations.words import ago, code_of, moment, size, span, usd
from retake.plural import count
from retake.runs import Ledger
from retake.runs.ledger import LEDGER_SETTING, OldTables
from retake.runs.recovery import PATIENCE_S
from retake.runs.run import ERROR, Run
from retake.runs.states import FINAL, RunStatus

SKEW_WARN_S, SKEW_FAULT_S = 5.0, 300.0
"""Seconds by which this machine's clock may differ from the store's. Beyond the first, times on record are hard to
compare; beyond the second, S3 stores begin to refuse signatures (AWS allows fifteen minutes)."""

MAX_ERRORS = 100
"""Number of the last errors that are read (docs/protocol.md, section "Operator checklist")."""

MAX_FAILED_SHARE = 0.2
"""The share of failed runs above which something is wrong (docs/protocol.md, section "Degraded mode")."""

_MAX_RUNS = 50  # runs of a ledger; also the maximum number of ledgers
_MAX_NAMED = 3
_LEDGER_BYTES = 10**6  # a tick's rows and SQLite's files beside the database take less
_SCRATCH = "doctor-"
_LEASE = "doctor"


def bucket_checks(bucket: Bucket, clock: Clock) -> Iterator[Finding]:
    """Check that the bucket can be reached, written and listed, that its clock agrees, and that leases work."""
    key = f"{_SCRATCH}{os.urandom(8).hex()}"
    try:
        bucket.list(key)
    except RetakeError as error:
        yield of_error("bucket", error)
        return
    yield ok("bucket", f"{bucket.url} answers")
    try:
        yield from _scratch(bucket, key, clock)
    except RetakeError as error:
        yield of_error("bucket is writable", error)
        return
    try:
        yield _own_lease(bucket)
    except RetakeError as error:
        yield of_error("lease", error)


def _scratch(bucket: Bucket, key: str, clock: Clock) -> Iterator[Finding]:
    """Write a scratch object, list and read it, delete it, and list again."""
    data = b"written by retake doctor, which deletes it again\n"
    before = clock.now()
    bucket.write(key, data, ANY)
    after = clock.now()
    try:
        listed = [entry for entry in bucket.list(key) if entry.key == key]
        same = bucket.read(key)[0] == data
    finally:
        bucket.delete(key)
    left = bool(bucket.list(key))
    told = f"a scratch object of {len(data)} bytes was written, read and deleted ({key})"
    yield (
        ok("bucket is writable", told)
        if same
        else fault("bucket is writable", f"{key}: different bytes were read back")
    )
    if listed and not left:
        yield ok("listing", "what is written is listed immediately, what is deleted is not")
    else:
        what = "what is deleted is still listed" if left else "what is written is not listed yet"
        yield fault("listing", what, "use a store whose listings are strongly consistent: the lease rests on them")
    if listed:
        yield _clock(listed[0].modified, before, after)


def _clock(stored: float, before: datetime, after: datetime) -> Finding:
    """Compare the clocks. Stores give times in whole seconds, so the clocks agree if some moment fits both."""
    early, late = before.timestamp() - 1.0 - stored, stored - after.timestamp() - 1.0
    skew = max(0.0, early, late)
    found = f"this machine's clock and the store's are {span(skew)} apart"
    if skew > SKEW_FAULT_S:
        return fault("clock", found, "set the clock (NTP): requests may be refused because of it", skew_s=skew)
    if skew > SKEW_WARN_S:
        return warn("clock", found, "set the clock (NTP): times on record are hard to compare", skew_s=skew)
    return ok("clock", "this machine's clock agrees with the store's", skew_s=skew)


def _own_lease(bucket: Bucket) -> Finding:
    try:
        lease = bucket.lease(_LEASE, this_process())
    except LeaseHeld as held:  # by another doctor, or by one that died
        return warn("lease", str(held), "try again when that doctor has finished, or its lease has expired")
    try:
        lease.check()
    finally:
        lease.release()
    return ok("lease", f"a lease can be taken and given back (one of the doctor's own, {_LEASE!r})")


def holder_check(operations: Operations, pipeline: OperatedPipeline) -> Finding:
    """Return a finding about who holds the pipeline's lease."""
    check, now = named("at work", pipeline.channel), operations.clock.now()
    if pipeline.lease_name is None:
        return ok(check, f"{pipeline.name} takes no lease: its rows are locked one by one")
    try:
        holder = pipeline.bucket.holder(pipeline.lease_name)
    except RetakeError as error:
        return of_error(check, error)
    if holder is None:
        return ok(check, "nobody: the lease is free")
    since = f", since {moment(holder.since, now)} ({ago(holder.since, now)})" if holder.since else ""
    found = f"{holder.owner} has the lease{since}"
    if holder.since and (now - holder.since).total_seconds() > operations.terms.patience_s:
        do = f"check whether {holder.owner} is still alive; `unlock` frees a lease whose holder is gone"
        return warn(check, found, do)
    return ok(check, found)


# --- ledger and documents ---------------------------------------------------------------------------------------------


def ledger_checks(operations: Operations) -> Iterator[Finding]:
    """Check that each ledger answers, and the version of its tables. The bucket is one store: if one of its ledgers
    cannot be read, the others are not tried."""
    away = False
    for pipeline in operations.writers():
        url = operations.ledger_url(pipeline)
        if url is None and away:
            continue
        try:
            if url is not None:
                yield from _file(url)
                yield _tables(url, operations.ledger_setting(pipeline))
            ledger = operations.ledger(pipeline)
            counts, left = ledger.counts(), _left_by_robots(ledger, operations.clock.now())
        except OldTables:
            continue  # the check of the tables has said so
        except RetakeError as error:
            away = away or url is None
            yield of_error("ledger", error)
            continue
        if len(operations.pipelines) == 1 or url is not None:
            runs = ", ".join(f"{n} {status}" for status, n in counts.items() if n) or "no run yet"
            yield ok("ledger", f"{'in the bucket' if url is None else 'answers'}: {runs}")
        if left:
            named_runs = ", ".join(f"{it.run_id} ({one_line(it.task_id)})" for it in left[:_MAX_NAMED])
            told = named_runs + (", …" if len(left) > _MAX_NAMED else "")
            do = "a robot resumes its own, or gives them up, when it works again; `cancel RUN` ends one for good"
            yield warn("robots", f"{count(len(left), 'run')} whose process is dead or silent: {told}", do)


def _left_by_robots(ledger: Ledger, now: datetime) -> list[Run]:
    """Return the runs of robots that are interrupted, or running and silent: a dead process has left them behind. Only
    the robot itself looks after its runs."""
    silent = ledger.silent(now - timedelta(seconds=PATIENCE_S))
    interrupted = ledger.runs(status=[RunStatus.INTERRUPTED], limit=_MAX_RUNS)
    return [run for run in (*silent, *interrupted) if run.pipeline.startswith(ROBOT)]


def _file(url: str) -> Iterator[Finding]:
    """Check whether the file of an SQLite database can be written, and the room on its disk."""
    check, path = "ledger's file", url.removeprefix("sqlite:")
    if path == url or not os.path.isfile(path):
        return
    free = shutil.disk_usage(path).free
    if not os.access(path, os.W_OK):
        yield fault(check, f"this user may not write to {path}", "let the user that runs this write there (chown)")
    elif free < _LEDGER_BYTES:
        do = "free some space: without a record of its runs nothing is paid for"
        yield fault(check, f"{size(free)} free at {path}", do, free_bytes=free)
    else:
        yield ok(check, f"{path} can be written; {size(free)} free", free_bytes=free)


def _tables(url: str, setting: str) -> Finding:
    from retake.runs.database import open_database
    from retake.runs.schema import REVISIONS, version

    database = open_database(url, read_only=True, setting=setting)
    try:
        found = version(database)
    finally:
        database.close()
    if found is None:
        return _without_tables(url, database.name, "the first tick" if setting == LEDGER_SETTING else "the service")
    if found != REVISIONS[-1]:
        do = "the next tick that works on a generation migrates them, `check --repair` at once"
        return warn("ledger's tables", f"version {found}, the newest is {REVISIONS[-1]}", do)
    return ok("ledger's tables", f"{database.name}: version {found}, the newest")


def _without_tables(url: str, name: str, maker: str) -> Finding:
    check, path = "ledger's tables", url.removeprefix("sqlite:")
    if path == url or os.path.exists(path):
        return ok(check, f"{name} has none yet: {maker} creates them")
    above = next(it for it in Path(path).absolute().parents if os.path.exists(it))
    if os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK):
        return ok(check, f"{url} does not exist yet: {maker} creates it")
    do = "let the user that runs it write there, or name another file"
    return fault(check, f"{url} does not exist, and cannot be created in {above}", do)


def error_checks(operations: Operations) -> Iterator[Finding]:
    """Yield the last errors by code, step and vendor, and the share of runs that failed."""
    writers = operations.writers()[:_MAX_RUNS]
    groups: Counter[tuple[str, str]] = Counter()
    read = failed = ended = 0
    for pipeline in writers:
        try:
            last = _count_errors(operations.ledger(pipeline), groups, MAX_ERRORS // len(writers) or 1)
        except OldTables:
            continue
        except RetakeError as error:
            yield of_error("last errors", error)
            if operations.ledger_url(pipeline) is None:
                return
            continue
        read += 1
        ended += len(last)
        failed += last.count(RunStatus.FAILED)
    if not read:
        return
    vendors = {step: vendor for pipeline in operations.pipelines for step, vendor in pipeline.vendors.items()}
    facts = [
        {"code": code, "step": step, "vendor": vendors.get(step), "times": number}
        for (code, step), number in groups.most_common()
    ]
    told = "; ".join(_group(group) for group in facts[:8])
    yield ok("last errors", f"the last {sum(groups.values())}: {told}" if told else "none on record", groups=facts)
    share = failed / ended if ended else 0.0
    result = f"of the last {count(ended, 'run')} that ended, {failed} failed"
    if share > MAX_FAILED_SHARE and failed > 1:
        yield warn("failed runs", result, "see `runs --status failed`, and `report` of one of them", share=share)
    else:
        yield ok("failed runs", result, share=share)


def _group(group: Mapping[str, Any]) -> str:
    vendor = f" ({group['vendor']})" if group["vendor"] else ""
    return f"{code_of(group['code'])} at {group['step']}{vendor} × {group['times']}"


def _count_errors(ledger: Ledger, groups: Counter[tuple[str, str]], most: int) -> list[RunStatus]:
    """Add up to `most` errors of the last runs to `groups`. Return the states of those runs that have ended."""
    runs, left = ledger.runs(limit=_MAX_RUNS), most
    for run in runs:
        if left <= 0:
            break
        try:
            records = [event.payload for event in ledger.events(run.run_id) if event.kind == ERROR][-left:]
        except StateError:
            continue
        left -= len(records)
        groups.update((ErrorRecord(it).code or "?", step_of(it) or "?") for it in records)
    return [run.status for run in runs if run.status in FINAL]


def day_check(operations: Operations) -> Iterator[Finding]:
    """Check the day's book. With a cap, nothing is paid for while it cannot be read."""
    try:
        today = operations.caps.today("")
    except RetakeError as error:
        yield of_error("day's book", error)
        return
    spent = f"{usd(today.book.spent)} spent on {today.day} by all that pays through this bucket"
    if today.doubt:
        yield warn("day's book", f"{spent}, {today.doubt}", "if that day is wrong: spend --latest-day YYYY-MM-DD")
    else:
        yield ok("day's book", spent)


def shared_checks(operations: Operations) -> Iterator[Finding]:
    """Check what all pipelines share besides money: the alerts, and the degraded mode."""
    panel = ModePanel(operations)
    try:
        mode = panel.mode(panel.state())
        yield ok("mode", f"{mode.mode}: {mode.words}")
    except RetakeError as error:
        yield of_error("mode", error)
    try:
        board = BoardStore(operations.bucket, operations.clock).read()
        yield ok("open alerts", f"{sum(it.active for it in board.alerts.values())} open")
    except RetakeError as error:
        yield of_error("open alerts", error)


def document_checks(operations: Operations) -> Iterator[Finding]:
    """Check each pipeline's own documents. For several pipelines, only warnings and faults are shown."""
    try:
        if left := operations.terms.left_behind():
            yield warn("channels", left, "move it into a channel, or take CHANNELS out of the settings")
    except RetakeError as error:
        yield of_error("channels", error)
    found = [finding for findings in operations.each(lambda pipeline: [*pipeline.check()]) for finding in findings]
    if len(operations.pipelines) == 1:
        yield from found
        return
    faults = [finding for finding in found if finding.verdict is not Verdict.OK]
    yield from faults
    what = "channels" if all(it.channel for it in operations.pipelines) else "pipelines"
    yield ok("documents", f"{len(operations.pipelines)} {what} looked at, {len(faults)} with something wrong")
