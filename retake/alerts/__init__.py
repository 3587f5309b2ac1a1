"""Alerts: what is wrong is raised, told to the channels of the settings, and closed when it is over.

An alert is a condition, not an event: it is open while the state of a pipeline, a vendor or a channel says so.

    conditions.py    what is wrong, a pure function of what a pipeline tells of itself
    board.py         the alerts on record and the channels' queues: one JSON document, alerts/state.json
    evaluation.py    from the conditions of now and the board to the next board, pure
    routing.py       which channel takes what, and when
    wording.py       the texts that people read
    delivery.py      sends what is queued, each channel in its own thread
    channels/        one file per kind of channel: Slack, e-mail, PagerDuty, SMS, Telegram, webhook, Apprise
    watch.py         alerts during one tick: one document is read, and nothing is imported unless something is wrong
    settings.py      the section ALERTS of the settings
"""
