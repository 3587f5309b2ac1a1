"""The music pipeline: from a track to a published video on YouTube, with a person's approval after each step.

states.py                                     the states, and the pure rules by which a pipeline changes
settings.py, texts.py                         the configuration; prompts, and texts cut to YouTube's limits
tables.py, rows.py, database.py               the database
store.py, actions.py, attempts.py, calls.py   every change of a row in it
worker.py, context.py, steps/                 an attempt at a step
mode_gate.py, clients.py                      the degraded mode, which holds steps back; the vendors
upkeep.py                                     brings rows and runs back in line after a crash
api.py, api_schema.py, gatekeeper.py          the HTTP API
command.py, service.py, background.py         the process and its threads; leases.py: one process at a time
tracks.py                                     the tracks in their folder
messages.py, outbox.py, telegram.py           Telegram
operations.py, operator_checks.py             what operators see; survey.py: the state of all pipelines
examinations.py, alerts.py                    what `retake check` examines; what is wrong
demo.py, demo_play.py                         one track through the whole pipeline, in the sandbox
"""
