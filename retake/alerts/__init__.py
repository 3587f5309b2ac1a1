"""Alerts: a condition is raised as an alert, sent to the channels of the settings, and closed when it is over.

An alert is a condition, not an event: it is open while the state of a pipeline, a vendor or a channel says so.

    conditions.py    what is wrong: a pure function of the facts about a pipeline
    board.py         the alerts on record and the channels' queues: one JSON document, alerts/state.json
    store.py         stores the board, and the alerts that are over
    evaluation.py    computes the next board from the board and the current conditions, pure
    routing.py       which channels a message goes to, and how it joins their queues; hours.py: working hours
    wording.py       the texts that people read
    outbox.py        claims and retries of the queued messages, pure
    delivery.py      sends what is due, each channel in its own thread
    channels/        one file per kind of channel; message.py: what each has to send, and the result
    reports.py       when the daily and the weekly report are due
    settings.py      the section ALERTS of the settings

`retake.ticking.watch` uses all this around a tick. An idle tick imports only conditions.py, settings.py and hours.py.
"""
