"""The music pipeline: from a track to a published video on YouTube, with a person's yes after each step.

states.py       the state diagram as data, and the pure rules by which a pipeline changes
tables.py, store.py   the rows of pipelines, of their attempts, calls and messages, and each change in one transaction
"""
