"""How often, when, and under which conditions something is tried again; and what becomes of what is not.

policy.py         RetryPolicy: data that answers «again, in so many seconds» or «give up»; it never acts or sleeps
backoff.py        the strategies: how long to wait before each repeat
guard.py          Guard: carries a policy out in process: calls, asks the policy, waits, calls again
time_limit.py     within: a call that takes too long is abandoned
breaker.py        Breaker: leaves alone for a while what has failed again and again, then lets one call probe
dead_letters.py   DeadLetters: what failed for good, until somebody takes it up again or drops it
creation.py       Creator: what is asked for twice is made once
idempotency.py    key_of: the idempotency key of data
read_only.py      the mode in which a creator only looks things up
compensation.py   Unconfirmed: what was made and nobody has confirmed, and when it is to be rolled back
batch_plan.py     what to do next about a batch, and what follows from what came of it
batch.py          Batches: many items made in few calls, each at most once
register.py       small states that threads, processes and machines share: of breakers, modes, unconfirmed things

Pure are policies, strategies, plans and the transitions of every state; what carries them out takes clock, randomness
and stores as parameters.
"""
