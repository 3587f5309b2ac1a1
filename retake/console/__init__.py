"""The operator's commands (`retake`): click commands and rendering. What they show and do is `retake.operations`.

    command.py           the group, and what each command is called
    command_context.py   what a command works with: settings, keys, the pipelines
    invocation.py        from options to an answer, from an answer to output and an exit code
    answer.py            an answer: one document for programs, blocks of text for people
    rendering.py         how an answer is shown: on a terminal, in a pipe, as JSON

Every command lies in the file of its name. It returns an `Answer`, or raises an error that says what happened; none of
them prints anything itself.
"""
