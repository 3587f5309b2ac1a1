"""Which stand-in answers which path, and the kind of each call."""

import re
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from retake.sandbox import chat, legnext, notices, piapi, runway, telegram, youtube
from retake.sandbox.http_messages import Request, Response, gateway_page
from retake.sandbox.orders import VendorFault
from retake.sandbox.task_service import ApiCall


class VendorApi(NamedTuple):
    """How a vendor refuses a call."""

    error: Callable[[int], Response]
    key_of: Callable[[Request], str] | None = None  # None requires no key
    quota: Callable[[], Response] | None = None  # the answer when the quota is used up; None: 402
    check: Callable[[Request], Response | None] | None = None  # a further check of every request
    named: Callable[[int, str], Response] | None = None  # a refusal with one of the vendor's own reasons

    def reject(self, request: Request) -> Response | None:
        """Return the refusal of a request that has no key (any key is valid) or fails the check, else None."""
        if self.key_of and not self.key_of(request):
            return self.error(401)
        return self.check(request) if self.check else None

    def refusal(self, fault: VendorFault) -> Response:
        """Return the answer to a call that is not carried out because of `fault`: a status, or quota."""
        if fault.name == "quota":
            return self.quota() if self.quota else self.error(402)
        if fault.reason and self.named:
            return self.named(fault.status, fault.reason)
        return gateway_page(fault.status) if fault.html else self.error(fault.status)


class Route(NamedTuple):
    method: str
    path: str  # a regular expression; its groups become ApiCall.args
    kind: str | Callable[[Request], str]
    api: VendorApi
    handler: Callable[[ApiCall], Response]

    def kind_of(self, request: Request) -> str:
        return self.kind if isinstance(self.kind, str) else self.kind(request)


def send_file(call: ApiCall) -> Response:
    """GET /files/TASK/NAME."""
    task = call.service.database.task(call.args[0])
    media = call.service.media(task, call.args[1]) if task else None
    if task is None or media is None:
        return plain_error(404)
    return Response(200, media[0], media[1], task_id=task.id)


def plain_error(status: int) -> Response:
    return Response(status, f"{status}\n".encode(), "text/plain")


PIAPI = VendorApi(piapi.error, attrgetter("api_key"))
LEGNEXT = VendorApi(legnext.error, attrgetter("api_key"))
RUNWAY = VendorApi(runway.error, attrgetter("bearer_token"), check=runway.check_version)
CHAT = VendorApi(chat.error, attrgetter("bearer_token"), chat.quota)
FILES = VendorApi(plain_error)
SLACK = VendorApi(notices.slack_error)
PAGERDUTY = VendorApi(notices.pagerduty_error)
TWILIO = VendorApi(notices.sms_error, notices.basic_credentials)
TELEGRAM = VendorApi(telegram.error)
YOUTUBE = VendorApi(youtube.error, attrgetter("bearer_token"), youtube.quota, named=youtube.error)
GOOGLE_TOKENS = VendorApi(youtube.token_error)

_ID = r"([0-9A-Za-z-]+)"
_BOT = r"/telegram/bot[^/]+"
_UPLOADS = "/upload/youtube/v3"
ROUTES = (
    Route("POST", "/piapi/api/v1/task", piapi.kind_of, PIAPI, piapi.create),
    Route("GET", f"/piapi/api/v1/task/{_ID}", "fetch", PIAPI, piapi.get),
    Route("POST", "/piapi/mj/v2/fetch", "fetch", PIAPI, piapi.fetch),
    Route("GET", "/piapi/api/open/tasks/histories", "histories", PIAPI, piapi.histories),
    Route("GET", "/piapi/account/info", "account", PIAPI, piapi.account),
    Route("POST", "/legnext/api/v1/diffusion", "imagine", LEGNEXT, legnext.diffusion),
    Route("POST", "/legnext/api/v1/upscale", "upscale", LEGNEXT, legnext.upscale),
    Route("GET", f"/legnext/api/v1/job/{_ID}", "fetch", LEGNEXT, legnext.job),
    Route("POST", "/runway/v1/image_to_video", "runway", RUNWAY, runway.create),
    Route("GET", f"/runway/v1/tasks/{_ID}", "poll", RUNWAY, runway.poll),
    Route("DELETE", f"/runway/v1/tasks/{_ID}", "cancel", RUNWAY, runway.cancel),
    Route("GET", "/runway/v1/organization", "organization", RUNWAY, runway.organization),
    Route("POST", "/openai/v1/chat/completions", "chat", CHAT, chat.complete),
    Route("GET", "/openai/v1/models", "models", CHAT, chat.models),
    Route("POST", r"/slack/services/.+", "slack", SLACK, notices.slack),
    Route("POST", "/pagerduty/v2/enqueue", "pagerduty", PAGERDUTY, notices.pagerduty),
    Route("POST", rf"/twilio/2010-04-01/Accounts/{_ID}/Messages\.json", "sms", TWILIO, notices.sms),
    Route("POST", f"{_BOT}/sendMessage", "telegram", TELEGRAM, telegram.send_message),
    Route("POST", f"{_BOT}/answerCallbackQuery", "telegram", TELEGRAM, telegram.answer_callback_query),
    Route("POST", f"{_BOT}/getMe", "telegram", TELEGRAM, telegram.get_me),
    Route("POST", f"{_BOT}/getUpdates", "updates", TELEGRAM, telegram.get_updates),
    Route("POST", f"{_BOT}/setWebhook", "updates", TELEGRAM, telegram.set_webhook),
    Route("POST", f"{_BOT}/deleteWebhook", "updates", TELEGRAM, telegram.delete_webhook),
    Route("POST", "/youtube/token", "token", GOOGLE_TOKENS, youtube.token),
    Route("GET", "/youtube/v3/channels", "youtube", YOUTUBE, youtube.channels),
    Route("GET", "/youtube/v3/playlistItems", "youtube", YOUTUBE, youtube.playlist_items),
    Route("GET", "/youtube/v3/videos", "youtube", YOUTUBE, youtube.videos),
    Route("POST", f"{_UPLOADS}/videos", "upload.start", YOUTUBE, youtube.start),
    Route("PUT", f"{_UPLOADS}/videos", youtube.kind_of, YOUTUBE, youtube.put),
    Route("POST", f"{_UPLOADS}/thumbnails/set", "thumbnail", YOUTUBE, youtube.set_thumbnail),
    Route("POST", r"/webhook(?:/.*)?", "webhook", FILES, lambda _: Response(200, {})),
    Route("GET", rf"/files/{_ID}/([0-9a-z]+\.(?:png|mp4))", "download", FILES, send_file),
)


def find(request: Request) -> tuple[Route, tuple[str, ...]]:
    """Return the route of `request` and the variable parts of its path, or a route to its vendor's 404 or 405."""
    method = "GET" if request.method == "HEAD" else request.method
    matches = [(route, match) for route in ROUTES if (match := re.fullmatch(route.path, request.path))]
    for route, match in matches:
        if route.method == method:
            return route, match.groups()
    vendors = {"piapi": PIAPI, "legnext": LEGNEXT, "runway": RUNWAY, "openai": CHAT, "telegram": TELEGRAM}
    vendors |= {"youtube": YOUTUBE, "upload": YOUTUBE}
    api = matches[0][0].api if matches else vendors.get(request.path.split("/")[1], FILES)
    status = 405 if matches else 404
    return Route(method, request.path, "unknown", VendorApi(api.error), lambda _: api.error(status)), ()
