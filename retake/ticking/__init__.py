"""What runs a pipeline on a schedule.

tick.py              one tick: lease, decide, act, until there is a reason to wait
vendor_breakers.py   a circuit breaker for each vendor, shared by all channels and machines
subprocess_scripts.py   process.py   the scripts as subprocesses; signals, the kill timer, exit codes
channels.py   until_done.py          one tick of many channels; ticks until the work has ended
"""
