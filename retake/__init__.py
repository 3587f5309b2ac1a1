"""Retake: a fault-tolerant driver for generation pipelines that call slow, paid, flaky media APIs.

Only the failed step is retried, a bounded number of times; nothing is paid for twice; nothing is lost.

docs/architecture.md lists the packages and what each may import; imports only point down. Start reading at
story/decision.py (what comes next), ticking/tick.py (one tick), paid/guard.py (one paid call) and bucket/contract.py
(where state lives).
"""

__version__ = "0.5.0"
