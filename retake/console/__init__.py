"""The operator's commands (`retake`): click commands and rendering. `retake.operations` does the work.

    command.py           the root group, and the names of the commands
    command_context.py   what a command works with: settings, keys, the pipelines
    invocation.py        from options to an answer, from an answer to output and an exit code
    answer.py            an answer: one document for programs, blocks of text for people
    rendering.py         rendering an answer: on a terminal, in a pipe, as JSON

Every command is in the file of its name. It returns an `Answer` or raises an error that says what happened; no command
prints anything itself.
"""
