"""The story pipeline: a text, a picture, its upscale, a video, one generation after another, driven by cron.

documents.py    the three state documents, as types; unknown keys are kept
transitions.py  what each event makes of the documents (pure)
decision.py     what to do next, given the documents, the limits and the time (pure)
tidy.py         which files move where before new work (pure plan, thin hands)
store.py        reading and saving the documents in a bucket, under the lease
intent.py       write ahead of every paid call: save what is asked, ask, save the id
content.py  media.py  fetch.py   the steps, one script each
runner.py       the scripts as subprocesses
manager.py      one tick: take the lease, decide, act, until there is reason to rest
"""
