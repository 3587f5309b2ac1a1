"""Paid calls, made safely and within daily caps.

guard.py       one paid call, made safely; the journal and the budget that a pipeline implements for it
day_book.py    what each pipeline has spent in a day and has reserved, as data
caps.py        the day's book in the bucket, for all channels and machines: reserve before a call, settle after it
spending.py    the spending of one pipeline, kept within the caps
mode_budget.py the same, but refuses every payment that a degraded mode forbids
bills.py       reads paid calls in documents
paid_calls.py  PaidCalls: all of this for a program that has no pipeline of its own; plain_process.py: its process
"""
