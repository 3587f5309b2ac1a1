"""The story pipeline: a text, a picture, its upscale, a video, one generation after another, driven by cron.

documents.py    the three state documents, as types; unknown keys are kept
transitions.py  how each event changes the documents (pure)
decision.py     what to do next, given the documents, the limits and the time (pure)
retry_policy.py how often and when a step is retried
tidy.py         which files move where before new work, and moving them
settings.py     its settings, and what every command sets up with them; spending.py: prices and caps
store.py        reads and saves the documents in a bucket, under the lease
generation.py   how a generation begins, ends, and is requeued
pipeline.py     one tick: carries out each action of the decision; runner.py builds it; channels.py: many pipelines
orders.py       the orders on its command line; facts.py: what alerts are raised from; diagnosis.py: logs decisions
content.py  media.py   the steps; script.py, clients.py: their tools, their journals of paid calls, how they run;
                inprocess.py: the same without a process of their own
run_mirror.py   keeps the run on the ledger in line with the documents
command.py  options.py  progress.py   the command lines, and the display of a generation
operations.py   what operators see and order: operator_view.py  operator_rules.py  operator_actions.py  rollback.py
                operator_checks.py  kept_bills.py
examinations.py what `retake check` examines: the files *_examination.py; checked_part.py: their base
work.py         `retake work`: ticks that are started by messages over RabbitMQ
"""

from retake.ticking.rest import rests as rests  # a tick calls it first, and imports nothing else before
