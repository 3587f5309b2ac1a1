"""The operator's commands (`python -m retake`): they show what is on record, and change it under the lease.

    command.py   the group, and what each command is called
    desk.py      what a command works with: settings, bucket, ledger, clock; and how it answers
    answer.py    an answer: one document for programs, blocks of text for people
    paper.py     how an answer is shown: on a terminal, in a pipe, as JSON

Every other file is one command. A command returns an `Answer`, or raises an error that says what happened; none of them
prints anything itself.
"""
