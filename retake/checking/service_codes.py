"""The codes of findings about the services: music and image jobs."""

from retake.checking.finding_code import FindingCode, Severity

SERVICE_CODES: dict[str, FindingCode] = {
    # --- music ---
    "music-pipeline-invalid": FindingCode(
        Severity.ERROR,
        "A row has an unknown state, or a document in it is not a JSON object. Another program wrote it.",
        "correct the row (docs/music.md has the states), or cancel the pipeline",
    ),
    "music-file-missing": FindingCode(
        Severity.ERROR,
        "A row names a cover, video or thumbnail that is not in the bucket, or is empty. It was deleted, or this is a "
        "different bucket.",
        "put the file back; while its step waits for approval, it can also be sent back to be done again",
    ),
    "music-attempts-wrong": FindingCode(
        Severity.WARNING,
        "The attempts of a run are not numbered from 1 without a gap, or several run at once. Another program changed "
        "them.",
        "look at retake music show ID; it blocks nothing",
    ),
    "music-call-not-settled": FindingCode(
        Severity.ERROR,
        "A paid call was never settled, though another one was made after it: it may have been paid for twice.",
        "compare with the vendor's list of tasks",
    ),
    "music-call-billed-twice": FindingCode(
        Severity.ERROR,
        "Two paid calls are on record for one task of the vendor.",
        "compare with the vendor's bill; one of the two rows of paid_calls is wrong",
    ),
    "music-run-missing": FindingCode(
        Severity.WARNING,
        "A step has been running for more than an hour without an open run on the ledger. The service is not running, "
        "or the run was removed.",
        "let the service run (retake music serve): its upkeep repairs this",
    ),
    "music-rows-without-pipeline": FindingCode(
        Severity.ERROR,
        "Attempts, paid calls or messages belong to a pipeline whose row is gone: it was deleted by hand.",
        "restore the row from a backup, or delete these rows once their bill is no longer needed",
    ),
    "music-message-not-sent": FindingCode(
        Severity.WARNING,
        "Messages to people have waited for more than an hour. The service is not running, or Telegram is unreachable.",
        "see retake doctor --channel music",
    ),
    "music-files-without-pipeline": FindingCode(
        Severity.NOTE,
        "A folder of files has no row: this is a different database, or the row was deleted.",
        "nothing; if the files are not wanted, remove them by hand",
    ),
    # --- image jobs ---
    "job-invalid": FindingCode(
        Severity.WARNING,
        "A Redis key that is named like a job is not a hash, or has no status that the service knows. Another "
        "program wrote it.",
        "look at it with redis-cli, and remove it if nothing needs it",
    ),
    "job-in-no-set": FindingCode(
        Severity.ERROR,
        "A job is not in the set of its status, so no sweeper finds it. Scripts change both in one step: another "
        "program has changed one of them.",
        "run this with --repair",
        repairable=True,
    ),
    "job-in-wrong-set": FindingCode(
        Severity.WARNING,
        "A job is in a set that does not match its status. Another program has changed one of them.",
        "run this with --repair; a sweeper does the same",
        repairable=True,
    ),
    "set-member-without-job": FindingCode(
        Severity.WARNING,
        "A set names a job that Redis does not have: its hash was evicted, or removed by hand.",
        "run this with --repair; set maxmemory-policy noeviction in Redis",
        repairable=True,
    ),
    "job-file-missing": FindingCode(
        Severity.ERROR,
        "A ready job has no picture, though it was neither delivered nor deleted; or one that is under way lacks a "
        "picture that came with it. The file was deleted, or this is a different bucket.",
        "compare IMAGES_STORAGE_URL with what the service runs with; otherwise delete the job (DELETE "
        "/jobResult?jobId=ID) and create it again",
    ),
    "job-files-without-job": FindingCode(
        Severity.WARNING,
        "Files of a job that Redis does not have are older than a sweeper would leave them. No API runs, or Redis has "
        "lost the job.",
        "let the API run: its sweeper removes them",
    ),
    "job-claim-ran-out": FindingCode(
        Severity.WARNING,
        "A worker took a job, died, and nobody has taken the job since.",
        "let the API and a worker of its queue run: the API sends its message again",
    ),
    "job-row-missing": FindingCode(
        Severity.ERROR,
        "A job was created through jobs2, but its row there is gone: this is a different database, or the row was "
        "deleted.",
        "compare DATABASE_URL with what the API runs with, or restore the table",
    ),
    "job-row-left-behind": FindingCode(
        Severity.WARNING,
        "A row of jobs2 has been out of step with its job for much longer than a sweeper takes.",
        "let the API run with this DATABASE_URL: its sweeper restores the job in Redis, or ends the row",
    ),
}
