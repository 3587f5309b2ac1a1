"""Retake: a fault-tolerant driver for generation pipelines that call slow, paid, flaky media APIs.

Only the failed step is taken again, a bounded number of times; nothing is paid for twice; nothing is lost.

The rooms, from the top down (imports point down only):

    story/     text → picture → upscale → video, driven by cron, its state in a bucket
    sandbox/   stand-ins of the vendors over HTTP on loopback, with failures to order
    ─────────
    vendors/   one client a vendor; each maps its vendor's errors to the classes of errors.py
    media/     real pictures and videos: placeholder, mock, sizing
    bucket/    where state lives, and the lease
    settings/  the settings file: what it may hold, and the strict reader
    errors.py  keys.py  logs.py  clock.py
"""

__version__ = "0.2.0"
