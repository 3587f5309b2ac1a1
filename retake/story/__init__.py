"""The story pipeline: a text, a picture, its upscale, a video, one generation after another, driven by cron.

documents.py    the three state documents, as types; unknown keys are kept
transitions.py  what each event makes of the documents (pure)
decision.py     what to do next, given the documents, the limits and the time (pure)
tidy.py         which files move where before new work (pure plan, thin hands)
prices.py       what a paid call costs
store.py        reading and saving the documents in a bucket, under the lease
generation.py   how a generation begins, ends, and is taken up again
intent.py       write ahead of every paid call: save what is asked, ask, save the id
content.py  media.py  fetch.py   the steps, one script each; context.py is what they work with
manager.py      one tick: take the lease; shift.py: decide, act, until there is reason to rest
runner.py       the scripts as subprocesses; inprocess.py: in this process
channels.py     many pipelines in one tick
options.py  command.py  script.py  shell.py   the command lines and what surrounds them
until_done.py  progress.py   ticks until a generation has ended, and what a person sees of it
"""
