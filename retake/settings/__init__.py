"""The settings file: what it may hold, and how it is read.

schema.py   declares the keys of a table and what each may hold, and reads a table, with all faults and "did you mean";
            the policy files use it too
shared.py   the sections that every pipeline has
reader.py   the file itself: its sections, and the environment variables that go with it
"""
