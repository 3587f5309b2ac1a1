"""The story pipeline: a text, a picture, its upscale, a video, one generation after another, driven by cron.

documents.py    the three state documents, as types; unknown keys are kept
transitions.py  what each event makes of the documents (pure)
decision.py     what to do next, given the documents, the limits and the time (pure)
tidy.py         which files move where before new work, and moving them
settings.py     its settings, and what every command sets up with them; spending.py: what it spends
store.py        reading and saving the documents in a bucket, under the lease
generation.py   how a generation begins, ends, and is requeued
pipeline.py     one tick: each action of the decision carried out; runner.py builds it; channels.py: many pipelines
content.py  media.py   the steps; script.py, clients.py: what they work with, the journal of paid calls, how they run
run_mirror.py   the run on the ledger, in line with the documents
command.py  options.py  progress.py   the command lines, and what a person sees of a generation
operations.py   how an operator sees it and orders: operator_view.py  operator_rules.py  operator_actions.py
"""

from retake.ticking.rest import rests as rests  # what starts a tick asks it first, and loads nothing else
