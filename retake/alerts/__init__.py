"""Alerts: what is wrong is raised, told to the channels of the settings, and closed when it is over.

An alert is a condition, not an event: it is open while the state of a pipeline, a vendor or a channel says so.

    conditions.py    what is wrong, a pure function of what a pipeline tells of itself
    board.py         the alerts on record and the channels' queues: one JSON document, alerts/state.json
    store.py         where the board is kept, and the alerts that are over
    evaluation.py    from the conditions of now and the board to the next board, pure
    routing.py       which channel is told what, and how it joins the queue; hours.py: working hours
    wording.py       the texts that people read
    outbox.py        who sends, what is due, and what becomes of it, pure
    delivery.py      sends what is due, each channel in its own thread
    channels/        one file per kind of channel; message.py: what each is given, and how that ended
    reports.py       when the daily and the weekly report are due
    settings.py      the section ALERTS of the settings

What surrounds a tick is `retake.ticking.watch`. An idle tick loads conditions.py, settings.py and hours.py alone.
"""
