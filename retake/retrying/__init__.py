"""When and how often a failed call is retried, and what happens to work that failed for good.

policy.py         RetryPolicy: decides, as pure data, whether and when to retry; it never acts or sleeps
backoff.py        the strategies: how long to wait before each retry
guard.py          Guard: carries out a policy in process: calls, asks the policy, waits, calls again
time_limit.py     within: abandons a call that takes too long
breaker.py        Breaker: leaves a failing service alone for a while, then lets one call probe it
kept_counts.py    KeptCounts: counts of a folder that only grows, without listing all of it
dead_letters.py   DeadLetters: work that failed for good, until an operator requeues or drops it
state_store.py    StateStore: small states shared by threads, processes and machines, such as those of breakers

Policies, strategies and state transitions are pure. The code that carries them out takes the clock, randomness and
stores as parameters.
"""
