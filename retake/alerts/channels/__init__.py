"""Kinds of channels, one file each; none is imported before one of its messages is due.

    sending.py        sends one message once: `send`
    post.py           an HTTP request, and what its answer means for the message
    slack.py, email.py, pagerduty.py, sms.py, telegram.py, webhook.py, apprise_urls.py

Each kind has `send(sending) -> Sent`. It raises nothing for what the network or the service does.
"""
