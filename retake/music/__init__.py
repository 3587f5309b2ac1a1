"""The music pipeline: from a track to a published video on YouTube, with a person's yes after each step.

states.py                        the states, and the pure rules by which a pipeline changes
settings.py, texts.py            what is configured; prompts, and texts cut to what YouTube takes
tables.py, rows.py, database.py  the database; store.py, actions.py, attempts.py, calls.py: each change of a row in it
worker.py, context.py, steps/    an attempt at a step; upkeep.py: rows and runs together again after a crash
api.py, server.py, service.py    the HTTP API and the process; messages.py, outbox.py, telegram.py: Telegram
operations.py, survey.py         what operators see; alerts.py: what is wrong
"""
