"""The dashboard: what the console shows, as pages that a phone can read, and what it does, as buttons.

Both are built on `operations`, so they show the same documents and refuse the same orders.
"""
