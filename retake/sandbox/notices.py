"""Stand-ins for the services that send alerts: Slack, PagerDuty (Events v2), Twilio, and a webhook. Telegram is in
telegram.py.

Formats from the services' documentation. Assumed, because undocumented: the wording of some errors.
"""

from retake.sandbox.http_messages import Request, Response, error_response
from retake.sandbox.task_service import ApiCall

_SLACK_ERRORS = {400: "invalid_payload", 403: "action_prohibited", 404: "channel_not_found", 500: "rollup_error"}
_REQUIRED = {"trigger": ("routing_key", "payload"), "acknowledge": ("routing_key", "dedup_key")}
_REQUIRED["resolve"] = _REQUIRED["acknowledge"]
_SMS_CODES = {"To": 21604, "From": 21603, "Body": 21602}


def addresses(url: str) -> dict[str, str]:
    """Return, by kind of channel, the value of its key `endpoint` or, for Slack and webhooks, its secret URL."""
    paths = {"slack": "/services/T0/B0/X0", "pagerduty": "/v2/enqueue", "sms": "", "telegram": "", "webhook": ""}
    return {kind: f"{url}/{'twilio' if kind == 'sms' else kind}{path}" for kind, path in paths.items()}


def slack_error(status: int) -> Response:
    text = _SLACK_ERRORS.get(status, "fatal_error")
    return Response(status, text.encode(), "text/plain", {"Retry-After": "1"} if status == 429 else {})


def slack(call: ApiCall) -> Response:
    """POST /services/…: an incoming webhook."""
    return Response(200, b"ok", "text/plain") if call.request.fields.get("text") else slack_error(400)


def pagerduty_error(status: int, *errors: str) -> Response:
    body = {"status": "invalid event", "message": "Event object is invalid", "errors": list(errors)}
    return error_response(status, body)


def pagerduty(call: ApiCall) -> Response:
    """POST /v2/enqueue."""
    event = call.request.fields
    if event.get("event_action") not in _REQUIRED:
        return pagerduty_error(400, "'event_action' is invalid")
    missing = [name for name in _REQUIRED[event["event_action"]] if not event.get(name)]
    if isinstance(event.get("payload"), dict):
        missing += [f"payload.{name}" for name in ("summary", "source", "severity") if not event["payload"].get(name)]
    if missing:
        return pagerduty_error(400, *(f"'{name}' is missing or blank" for name in missing))
    key = event.get("dedup_key") or f"sandbox-{call.n}"
    return Response(202, {"status": "success", "message": "Event processed", "dedup_key": key})


def basic_credentials(request: Request) -> str:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given if scheme == "Basic" else ""


def sms_error(status: int, code: int = 0, message: str = "The request failed") -> Response:
    code = code or {401: 20003, 404: 20404, 429: 20429}.get(status, 20500)
    return error_response(status, {"code": code, "message": message, "status": status})


def sms(call: ApiCall) -> Response:
    """POST …/Messages.json."""
    missing = [name for name in _SMS_CODES if not call.request.form.get(name)]
    if missing:
        return sms_error(400, _SMS_CODES[missing[0]], f"'{missing[0]}' is required")
    return Response(201, {"sid": f"SM{call.n:032x}", "status": "queued", "error_code": None})
