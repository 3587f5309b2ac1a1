"""The codes of findings about what all pipelines share: bills and caps, alerts and figures, leases and leftovers."""

from retake.checking.finding_code import FindingCode, Severity

SHARED_CODES: dict[str, FindingCode] = {
    # --- paid calls, bills and caps ---
    "paid-calls-invalid": FindingCode(
        Severity.ERROR,
        "A document of the paid calls of a program (docs/library.md) is invalid, so nothing more is paid for under "
        "its name.",
        "correct the field by hand; docs/documents.md has its schema",
    ),
    "paid-call-undecided": FindingCode(
        Severity.WARNING,
        "A paid call of a program was begun, and its outcome is unknown.",
        "look at the vendor's bills, then PaidCalls.resolve: retry or drop",
    ),
    "paid-key-billed-twice": FindingCode(
        Severity.ERROR,
        "A key of a program's paid calls was answered and billed twice: its documents were changed, or a backup was "
        "restored over newer ones.",
        "compare with the vendor's bill, and keep one of the two calls in calls/KEY.json",
    ),
    "spend-record-invalid": FindingCode(
        Severity.ERROR,
        "The record of what a generation cost (spend/ID.json) cannot be read, or does not name its generation, how "
        "that ended, or what was paid: another program has written there.",
        "restore it from a backup, or fix what is named; the calls may be in the generation's dead letter too",
    ),
    "spend-record-missing": FindingCode(
        Severity.ERROR,
        "A dead letter has paid calls, and the record of what its generation cost is gone: somebody removed it.",
        "retake check --repair writes it from the dead letter",
        repairable=True,
    ),
    "paid-call-invalid": FindingCode(
        Severity.ERROR,
        "A paid call on record is invalid: a price below 0, or an unknown step or outcome. It was changed by hand.",
        "fix the call; the vendor's bill shows what it cost",
    ),
    "paid-twice": FindingCode(
        Severity.ERROR,
        "One intent has two bills, or one task is billed twice, and neither is marked as a possible duplicate: a "
        "record was copied, or a call bypassed the guard.",
        "look at the vendor's bill for the time of the call; if it lists only one, remove the other from the record",
    ),
    "bills-disagree": FindingCode(
        Severity.ERROR,
        "Two records have different paid calls of the same generation: one of them was changed by hand, or restored "
        "alone.",
        "compare both with the vendor's bill, and fix the one that is wrong",
    ),
    "bills-missing": FindingCode(
        Severity.WARNING,
        "The book of a day holds more than the paid calls on record add up to: records or a document were removed "
        "while a call was under way. The book counts such a call as paid.",
        "nothing, if records were removed on purpose; else restore them from a backup, or fix settled_usd by hand",
    ),
    "day-book-invalid": FindingCode(
        Severity.ERROR,
        "The book of a day is invalid. Payments stop at it, without a cap when its day is over.",
        "fix it, or remove it: retake check --repair rebuilds it from the documents and paid calls",
    ),
    "day-book-missing": FindingCode(
        Severity.WARNING,
        "A day on which a pipeline has paid has no book: somebody removed it. Metrics lack that day, and if it is "
        "today, the caps may not count what was paid.",
        "retake check --repair makes it from the paid calls",
        repairable=True,
    ),
    "day-sum-wrong": FindingCode(
        Severity.ERROR,
        "The book of a day does not match what was paid on it: it holds less than the paid calls on record, or more "
        "than both these and the pipeline's document say. It was changed by hand, or restored from a backup.",
        "retake check --repair adds up the paid calls",
        repairable=True,
    ),
    "day-figures-wrong": FindingCode(
        Severity.WARNING,
        "The human-readable sums in the book of a day (spent_usd, reserved_usd) do not match its parts: it was "
        "changed by hand.",
        "nothing: the next payment of the day adds them up, and so does retake check --repair",
        repairable=True,
    ),
    "day-move-unfinished": FindingCode(
        Severity.NOTE,
        "spend --latest-day moved a book to an earlier day, and was interrupted before it removed the later one.",
        "nothing: the next payment finishes it, and so does retake check --repair",
        repairable=True,
    ),
    "reservation-left": FindingCode(
        Severity.NOTE,
        "The book of a day keeps money reserved for a call that was never made: the process died before its intent was "
        "saved.",
        "nothing: the pipeline's next payment releases it, and so does retake check --repair",
        repairable=True,
    ),
    # --- alerts, mode, breakers and figures ---
    "alerts-unreadable": FindingCode(
        Severity.ERROR,
        "The open alerts (alerts/state.json) are invalid: another program has written there. No alert is raised, sent "
        "or closed.",
        "fix it, or remove it: conditions that still hold are raised again",
    ),
    "alert-day-unreadable": FindingCode(
        Severity.WARNING,
        "The document of the alerts that ended on a day is invalid: another program has written there. Other alerts "
        "that ended that day stay among the open ones.",
        "fix it, or remove it: it is history",
    ),
    "messages-waiting": FindingCode(
        Severity.WARNING,
        "Messages have waited for more than a day: their channel does not accept them, no tick runs, or the channel "
        "is no longer in the settings. After a week they are dropped.",
        "retake alerts test shows what is wrong with a channel; nothing is needed for one that was removed",
    ),
    "mode-unreadable": FindingCode(
        Severity.ERROR,
        "The degraded mode (mode/state.json) is invalid: another program has written there.",
        "fix it, or remove it and set the mode again: retake mode set N",
    ),
    "mode-copy-old": FindingCode(
        Severity.NOTE,
        "The alerts have a different mode from mode/state.json: a process died between the two writes.",
        "nothing: the next tick that has work to do copies it",
        repairable=True,
    ),
    "breaker-unreadable": FindingCode(
        Severity.ERROR,
        "The document of a breaker is invalid: another program has written there. The vendor it guards is not called.",
        "remove it: a new breaker is closed",
    ),
    "breaker-open-long": FindingCode(
        Severity.WARNING,
        "A breaker is open for longer than it ever opens: the clock of a machine was ahead.",
        "set the clocks by NTP; retake breaker reset NAME closes it",
    ),
    "probe-left": FindingCode(
        Severity.NOTE,
        "The one call that tries an open breaker never ended: its process died.",
        "nothing: after a while another call may try",
        repairable=True,
    ),
    "snapshot-unreadable": FindingCode(
        Severity.WARNING,
        "A snapshot of the figures is invalid: another program has written there. All runs are counted on each read "
        "until it is replaced.",
        "nothing: it is replaced when the figures are next read, or by retake check --repair",
        repairable=True,
    ),
    "snapshot-wrong": FindingCode(
        Severity.WARNING,
        "The sums in a snapshot do not match its runs, or it is missing: it was changed or removed by hand. The "
        "figures may be wrong.",
        "retake check --repair counts all runs again, as retake kpi --rebuild does",
        repairable=True,
    ),
    "snapshot-old": FindingCode(
        Severity.NOTE,
        "A snapshot is more than a day old, and there are newer runs: nobody has read the figures since.",
        "nothing: the new runs are counted when the figures are next read",
        repairable=True,
    ),
    "counts-invalid": FindingCode(
        Severity.WARNING,
        "The count of a folder is invalid: another program has written there. The whole folder is listed on each read "
        "until it is replaced.",
        "nothing: the next reader counts again, as does retake check --repair",
        repairable=True,
    ),
    "counts-wrong": FindingCode(
        Severity.WARNING,
        "A folder does not hold what was counted in it: the bucket is a copy, with new times, or another program has "
        "added or removed something older than the last few days. `status` and lists may be wrong.",
        "retake check --repair counts it again",
        repairable=True,
    ),
    # --- leases and leftovers ---
    "lease-ran-out": FindingCode(
        Severity.NOTE,
        "A lease on B2 or S3 was neither released nor renewed: its holder died.",
        "nothing: the lease is free, and its next holder removes what is left",
        repairable=True,
    ),
    "claim-foreign": FindingCode(
        Severity.ERROR,
        "Among the claims of a lease is an object that is not a claim. Nobody can take the lease while it is there.",
        "find out who put it there, and remove it",
    ),
    "draft-left": FindingCode(
        Severity.NOTE,
        "A write never ended: its process died. On B2 it leaves parts of a large file, which nobody reads and which "
        "are charged for.",
        "nothing in a directory, where the next writer removes it after a day; on B2, --repair cancels it",
        repairable=True,
    ),
    "scratch-left": FindingCode(
        Severity.NOTE,
        "An object that probed the store was never deleted: its process died.",
        "retake check --repair removes it",
        repairable=True,
    ),
}
