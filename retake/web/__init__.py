"""The dashboard: everything that the console shows, as pages that a phone can read, and what it can do, as buttons.

It stands on `operations`, which the console stands on too, so both show the same documents and refuse the same orders.
"""
