"""Runs a pipeline on a schedule.

tick.py                 one tick: lease, decide, act, until there is a reason to wait
vendor_breakers.py      a circuit breaker for each vendor, shared by all channels and machines
subprocess_scripts.py   the scripts as processes
process.py              signals, the kill timer, exit codes
watch.py                alerts and the degraded mode around ticks
rest.py                 remembers what an idle tick saw, so that the next one may end without looking again
listed_look.py          the same on B2 and S3, by one listing
channels.py             one tick over many channels
channel_versions.py     a version of each channel, which changes with what its ticks depend on
channel_looks.py        remembers those versions, so that a tick opens only channels that changed or are due
until_done.py           ticks until the work has ended
"""
