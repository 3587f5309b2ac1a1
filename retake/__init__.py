"""Retake: a fault-tolerant driver for generation pipelines that call slow, paid, flaky media APIs.

Only the failed step is taken again, a bounded number of times; nothing is paid for twice; nothing is lost.

The packages and what each may import are in docs/architecture.md; imports point down only. To begin reading:
story/decision.py (what comes next), ticking/tick.py (one tick), paid/guard.py (one paid call), bucket/contract.py
(where state lives).
"""

__version__ = "0.3.0"
