"""What runs a pipeline on a schedule.

tick.py              one tick: lease, decide, act, until there is a reason to wait
vendor_breakers.py   a circuit breaker for each vendor, shared by all channels and machines
subprocess_scripts.py   process.py   the scripts as processes; signals, the kill timer, exit codes
watch.py             what surrounds ticks: mode and alerts
rest.py              what an idle tick saw, so that the next one may end without looking again
channels.py   until_done.py          one tick of many channels; ticks until the work has ended
"""
