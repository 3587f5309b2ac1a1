"""What paid calls come to, whoever makes them.

guard.py       one paid call, made safely; the journal and the budget that a pipeline implements for it
day_book.py    what each pipeline has spent in a day and has set aside, as data
caps.py        the book of the day in the bucket, for every channel and machine: reserve before a call, settle after it
spending.py    what one pipeline spends, held against the caps
bills.py       paid calls as documents have them
paid_calls.py  PaidCalls: all of it for a program that has no pipeline of its own; plain_process.py: its process
"""
