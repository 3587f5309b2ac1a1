"""The codes of findings about runs and their index."""

from retake.checking.finding_code import FindingCode, Severity

RUN_CODES: dict[str, FindingCode] = {
    "run-unreadable": FindingCode(
        Severity.ERROR,
        "A run's document, its older events or its row cannot be read: another program has written there.",
        "restore it from a backup, or fix the field that is named; without the run, its task begins with a new one",
    ),
    "run-events-missing": FindingCode(
        Severity.ERROR,
        "Events of a run are missing, duplicated or out of order: a document or rows were lost, or written by another "
        "program.",
        "restore the run's events from a backup; what the run did is in them, and nowhere else",
    ),
    "run-history-illegal": FindingCode(
        Severity.ERROR,
        "A run's events contain a transition that is not in the state diagram (docs/protocol.md), another run's "
        "transition, or a retry where none was due.",
        "restore the run from a backup; if its status is right, it may also stay as it is",
    ),
    "run-differs": FindingCode(
        Severity.ERROR,
        "A run's document or row disagrees with its events: one of them was changed by hand, or restored alone.",
        "compare the run with its events (retake show RUN_ID), and correct the one that is wrong",
    ),
    "run-counts-wrong": FindingCode(
        Severity.WARNING,
        "A run's `retries`, `crashes`, `resumes` or `last_seq` do not match its events. The number of crashes decides "
        "when a run is given up.",
        "retake check --repair counts them again",
        repairable=True,
    ),
    "run-clock-backwards": FindingCode(
        Severity.NOTE,
        "An event is more than five minutes older than the one before it: the clocks of two machines differ, or one "
        "was set back.",
        "set the machines' clocks by NTP",
    ),
    "attempts-wrong": FindingCode(
        Severity.WARNING,
        "Two runs of a task made the same attempt, or an attempt is missing: a run was removed, or written without "
        "the ledger.",
        "look for the missing run in a backup; a task whose runs were removed on purpose can stay as it is",
    ),
    "runs-open-twice": FindingCode(
        Severity.ERROR,
        "A generation has several runs that have not ended: two ledgers were merged, or a run was written without the "
        "ledger.",
        "cancel all but the last one named: retake cancel RUN_ID; the generation continues",
    ),
    "run-numbers-wrong": FindingCode(
        Severity.WARNING,
        "The runs of a generation are not numbered from 1 without a gap, so the next one may be mistaken for one of "
        "them.",
        "look for the missing run in a backup",
    ),
    "run-not-indexed": FindingCode(
        Severity.ERROR,
        "A run has no entry in the index: no worker finds it, or its task's next run takes an attempt number already "
        "in use.",
        "retake check --repair adds it",
        repairable=True,
    ),
    "index-entry-dangling": FindingCode(
        Severity.NOTE,
        "An entry of the index refers to a run that does not exist: the process that was creating it died, a day ago "
        "or earlier.",
        "nothing; retake check --repair removes it",
        repairable=True,
    ),
    "index-entry-wrong": FindingCode(
        Severity.WARNING,
        "An entry of the index refers to a run of another pipeline or task.",
        "retake check --repair removes it",
        repairable=True,
    ),
    "ended-name-wrong": FindingCode(
        Severity.WARNING,
        "The list of ended runs has an entry without a matching run, or a duplicate entry. The run's document may "
        "have been lost.",
        "restore the run's document if there is a backup; retake check --repair removes the entry",
        repairable=True,
    ),
    "ended-name-missing": FindingCode(
        Severity.WARNING,
        "A run has ended but is missing from the list of ended runs: it is in no list and no count.",
        "retake check --repair adds it",
        repairable=True,
    ),
    "tally-wrong": FindingCode(
        Severity.WARNING,
        "The counts of ended runs (runs/index/ended.json) are missing, invalid, or do not match the list of them.",
        "retake check --repair counts again",
        repairable=True,
    ),
    "events-leftover": FindingCode(
        Severity.NOTE,
        "Older events that the run's document does not name. A crash left them a day ago or earlier, and the run has "
        "these events elsewhere.",
        "nothing; retake check --repair removes them",
        repairable=True,
    ),
    "events-without-run": FindingCode(
        Severity.ERROR,
        "There are events of a run, and the run itself is gone.",
        "restore the run from a backup; if it was removed on purpose, remove its events too",
    ),
    "run-without-generation": FindingCode(
        Severity.WARNING,
        "A run of a story is open, but its generation is not under way. The next generation to begin cancels it.",
        "nothing if a generation begins soon; else retake cancel RUN_ID",
    ),
    "run-behind": FindingCode(
        Severity.NOTE,
        "The run of the generation under way lags behind the documents. The next tick brings it in line.",
        "nothing, unless no tick runs",
    ),
    "database-damaged": FindingCode(
        Severity.ERROR,
        "The ledger's database is damaged: a disk fails, or the file was copied while it was being written.",
        "stop everything that writes to it, and restore a backup; SQLite's .recover saves what is left",
    ),
    "database-constraint-missing": FindingCode(
        Severity.WARNING,
        "A table of the ledger lacks a constraint, an index or a trigger: it was created by hand, or restored without "
        "it.",
        "restore the table with its constraints, or create the one that is named as in retake/runs/tables.py",
    ),
    "database-version": FindingCode(
        Severity.WARNING,
        "The ledger's tables are of a version that this Retake does not know, so its runs were not looked at.",
        "use the newest Retake everywhere",
    ),
    "database-old": FindingCode(
        Severity.NOTE,
        "The ledger's tables are of an older version, so its runs were not looked at. The next tick that works on a "
        "generation migrates them.",
        "nothing; retake check --repair migrates them at once",
        repairable=True,
    ),
    "kept-counts-wrong": FindingCode(
        Severity.WARNING,
        "A table of counts in the ledger's database does not match what it counts: a trigger was switched off for a "
        "time.",
        "retake check --repair counts again",
        repairable=True,
    ),
}
