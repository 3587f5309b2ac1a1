"""The kinds of channels, one file each. A kind is imported only when one of its messages is due.

    sending.py        sends one message once: `send`
    post.py           an HTTP request, and what its answer means for the message
    slack.py, email.py, pagerduty.py, sms.py, telegram.py, webhook.py, apprise_urls.py

Each kind has `send(sending) -> Sent`, which raises nothing for failures of the network or the service.
"""
