"""The codes of findings about the documents, groups and dead letters of a story."""

from retake.checking.finding_code import FindingCode, Severity

STORY_CODES: dict[str, FindingCode] = {
    "document-invalid": FindingCode(
        Severity.ERROR,
        "A state document is not JSON, or has invalid content. Every tick stops at it with exit 65, and names it.",
        "fix the document by hand: docs/documents.md lists its keys; unreadable/ has a copy of what a tick found",
    ),
    "document-missing": FindingCode(
        Severity.ERROR,
        "A state document is gone, and other documents show that work is under way, which would be started over.",
        "put the document back from a backup before the next tick; without one, check with the vendors what was paid "
        "for",
    ),
    "task-lost": FindingCode(
        Severity.ERROR,
        "The status waits for a vendor's task whose id is not on record: it would be ordered and paid for again.",
        "restore the task's id from paid_calls or the vendor's account, or cancel the generation",
    ),
    "file-missing": FindingCode(
        Severity.ERROR,
        "The generation under way lacks a file that it made earlier, and would repeat its work from that step.",
        "put the file back from a backup; without one, roll the generation back to the step that makes it",
    ),
    "status-contradicts": FindingCode(
        Severity.WARNING,
        "The document of the generation under way contradicts itself. It was edited by hand.",
        "compare it with docs/documents.md and with what `show` says about the generation, and fix it",
    ),
    "unknown-step": FindingCode(
        Severity.WARNING,
        "Attempts are counted for a step that does not exist. Nothing uses them.",
        "correct the name of the step in `retries`, or remove it",
    ),
    "flag-up": FindingCode(
        Severity.NOTE,
        "A tick died while it was changing something, or lost its lease.",
        "nothing: the next tick, or unlock, lowers the flag, and work continues from what is on record",
    ),
    "displaced-append": FindingCode(
        Severity.NOTE,
        "The publisher appended to its list while a tick wrote it, and the tick died before merging the two.",
        "nothing: the next tick merges them, or --repair does",
        repairable=True,
    ),
    "empty-list-stale": FindingCode(
        Severity.NOTE,
        "Files were moved into or out of a stage folder by hand since the last generation began.",
        "nothing: it is rebuilt when the next generation begins, or by --repair",
        repairable=True,
    ),
    "published-incomplete": FindingCode(
        Severity.NOTE,
        "A published id lacks files, or has none at all: it stays on the list, and is never archived.",
        "put the files into the archive, or take the id off generation_id in config_public.json",
    ),
    "orphaned-work": FindingCode(
        Severity.NOTE,
        "Paid work belongs to no generation: an order to requeue died, or a document was restored by hand.",
        "nothing: the next generation that begins keeps it in dead_letters/before-ID/, unless a dead letter has it",
    ),
    "rollback-unfinished": FindingCode(
        Severity.NOTE,
        "An order to roll back died before deleting what it gave up; its dead letter has copies.",
        "nothing: the next tick deletes it",
    ),
    "topics-odd": FindingCode(
        Severity.NOTE,
        "The list of topics was edited or removed: the writer may choose a topic again.",
        "nothing, or fix config/topics.json by hand",
    ),
    "invalid-copy": FindingCode(
        Severity.NOTE,
        "A document was invalid at some time; this is a copy of it as it was found.",
        "look at it, and remove it when it is no longer needed",
    ),
    "group-incomplete": FindingCode(
        Severity.ERROR,
        "A group that nothing works on lacks a file, so it will never be published. Files were removed by hand.",
        "put the file back from a backup, or move the rest away",
    ),
    "group-twice": FindingCode(
        Severity.ERROR,
        "An id has files in two places, and no tick brings them together: it may be published twice, or overwritten.",
        "compare the files, keep one group, and move the other one away",
    ),
    "archive-incomplete": FindingCode(
        Severity.WARNING,
        "An archived group lacks a file. No tick archives such a group unless its id stays on the list.",
        "put the file back from a backup, or move the rest away",
    ),
    "group-half-moved": FindingCode(
        Severity.NOTE,
        "A tick died while it moved a group from one folder to the next. Nothing is lost.",
        "nothing: its files are brought together in the upper folder when the next generation begins",
    ),
    "letter-copied": FindingCode(
        Severity.NOTE,
        "An order to requeue died after it had copied files out of the dead letter, which is still whole.",
        "requeue it again, or drop it: the copies go with it",
    ),
    "empty-file": FindingCode(
        Severity.ERROR,
        "A file has no content. Retake writes files whole or not at all: another program, or a disk, did this.",
        "put the file back from a backup",
    ),
    "content-invalid": FindingCode(
        Severity.ERROR,
        "The text of a group is not JSON, lacks a key, or belongs to another generation.",
        "fix the file, or put it back from a backup",
    ),
    "media-broken": FindingCode(
        Severity.ERROR,
        "A picture or video is cut short, or its structure is damaged (--media).",
        "put the file back from a backup, or download it again while the vendor keeps it",
    ),
    "letter-report-invalid": FindingCode(
        Severity.WARNING,
        "The report of a dead letter is not JSON, lacks a key, or belongs to another one.",
        "look at it (dead-letters show ID), and fix it or drop the letter",
    ),
    "letter-without-report": FindingCode(
        Severity.WARNING,
        "A dead letter has lost its report, which says why it failed and what it cost.",
        "look at it (dead-letters show ID): requeue it, or save what you need and drop it",
    ),
    "letter-file-missing": FindingCode(
        Severity.ERROR,
        "A dead letter lacks a file that belongs to it. It was removed by hand.",
        "put the file back from a backup before it is requeued",
    ),
    "letter-not-requeuable": FindingCode(
        Severity.ERROR,
        "A dead letter cannot be requeued, or would repeat work that it had done: a document or a file is gone.",
        "put it back from a backup; without one, save what you need and drop the letter",
    ),
    "letter-unfinished": FindingCode(
        Severity.NOTE,
        "A tick or an order died while it wrote a dead letter. What it copied is still in its original place.",
        "nothing: the next tick completes it; a rollback's can be dropped",
    ),
    "letter-remains": FindingCode(
        Severity.NOTE,
        "An order died while it removed a dead letter that was requeued or dropped.",
        "drop it, or use --repair",
        repairable=True,
    ),
    "letter-outlived": FindingCode(
        Severity.NOTE,
        "An order to requeue died before it removed the dead letter, and the generation has continued since.",
        "drop it",
    ),
    "letter-file-unlisted": FindingCode(
        Severity.NOTE,
        "Somebody put a file into the folder of a dead letter.",
        "nothing; it is removed when the letter is dropped",
    ),
    "work-of-nobody": FindingCode(
        Severity.NOTE,
        "Paid work that belonged to no generation is kept.",
        "look at it (dead-letters show ID), save what you need, and drop it",
    ),
}
