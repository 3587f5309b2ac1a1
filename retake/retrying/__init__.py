"""How often, when, and under which conditions something is tried again; and what becomes of what is not.

policy.py         RetryPolicy: data that answers «again, in so many seconds» or «give up»; it never acts or sleeps
backoff.py        the strategies: how long to wait before each repeat
"""
