"""The settings file: what it may hold, and how it is read.

schema.py   which keys a table has and what each may hold, in words and as a check; reading one, with every fault and
            "did you mean"; the policy files use it too
shared.py   the sections that every pipeline has
reader.py   the file itself: its sections, and the environment variables that go with it
"""
