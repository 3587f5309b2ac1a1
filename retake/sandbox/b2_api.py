"""B2's native API, version 4, from request to response.

Paths, fields and error codes are those of b2sdk: `B2RawHTTPApi` and `interpret_b2_error`.
"""

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any
from urllib.parse import unquote, urlsplit

from b2sdk.v3 import MetadataDirectiveMode
from b2sdk.v3 import exception as b2

from retake.sandbox.b2_store import SimulatedAccount
from retake.sandbox.http_messages import Request, Response

_API, _INFO = "/b2api/v4/", "x-bz-info-"
_CODES = {400: "bad_request", 401: "unauthorized", 403: "access_denied", 404: "not_found", 408: "request_timeout"}
_CODES |= {409: "conflict", 429: "too_many_requests", 500: "internal_error", 503: "service_unavailable"}

_ERRORS = {
    b2.Unauthorized: (401, "unauthorized"),
    b2.NonExistentBucket: (400, "bad_bucket_id"),
    b2.Conflict: (409, "conflict"),
    b2.DuplicateBucketName: (400, "duplicate_bucket_name"),
}
_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_NOT_IMPLEMENTED = (
    b'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n<Error><Code>NotImplemented</Code>'
    b"<Message>A header you provided implies functionality that is not implemented.</Message></Error>\n"
)


def name_of(request: Request) -> str:
    """Return the API's name for the call, or "" if `request` is not an API call."""
    if request.path.startswith("/upload/"):
        return "b2_upload_file"
    if request.path.startswith("/upload-part/"):
        return "b2_upload_part"
    if request.path.startswith("/file/"):
        return "b2_download_file_by_name"
    if request.path.startswith("/s3/"):
        return "s3_put_object" if request.method == "PUT" else ""
    return request.path.removeprefix(_API) if request.path.startswith(_API) else ""


def refusal(status: int, code: str = "", message: str = "to order") -> Response:
    """Return an error in B2's format."""
    return Response(status, {"status": status, "code": code or _CODES.get(status, "error"), "message": message})


class B2NativeApi:
    """Answers calls on `store`, one at a time. `url` is the server's base URL."""

    def __init__(self, store: SimulatedAccount, url: str) -> None:
        self._store, self._url, api = store, url, store.API_URL
        self._calls: dict[str, Callable[[Request, str, dict[str, Any]], Any]] = {
            "b2_authorize_account": self._authorize,
            "b2_cancel_large_file": lambda _, auth, asked: store.cancel_large_file(api, auth, asked["fileId"]),
            "b2_copy_file": self._copy,
            "b2_create_bucket": lambda _, auth, asked: _plain(
                store.create_bucket(api, auth, asked["accountId"], asked["bucketName"], asked["bucketType"])
            ),
            "b2_delete_file_version": lambda _, auth, asked: store.delete_file_version(
                api, auth, asked["fileId"], asked["fileName"]
            ),
            "b2_download_file_by_id": self._download_by_id,
            "b2_download_file_by_name": self._download_by_name,
            "b2_finish_large_file": lambda _, auth, asked: store.finish_large_file(
                api, auth, asked["fileId"], asked["partSha1Array"]
            ),
            "b2_get_upload_part_url": self._part_url,
            "b2_get_file_info": lambda _, auth, asked: store.get_file_info_by_id(api, auth, asked["fileId"]),
            "b2_get_upload_url": self._upload_url,
            "b2_hide_file": lambda _, auth, asked: store.hide_file(api, auth, asked["bucketId"], asked["fileName"]),
            "b2_list_buckets": self._buckets,
            "b2_list_file_names": self._list,
            "b2_list_file_versions": self._list,
            "b2_list_unfinished_large_files": lambda _, auth, asked: store.list_unfinished_large_files(
                api,
                auth,
                asked["bucketId"],
                asked.get("startFileId"),
                asked.get("maxFileCount"),
                asked.get("namePrefix"),
            ),
            "b2_start_large_file": lambda _, auth, asked: store.start_large_file(
                api, auth, asked["bucketId"], asked["fileName"], asked["contentType"], asked.get("fileInfo", {})
            ),
            "b2_update_bucket": self._update_bucket,
            "b2_upload_file": self._upload,
            "b2_upload_part": self._upload_part,
            "s3_put_object": _answer_s3,
        }

    def answer(self, request: Request) -> Response:
        call = self._calls.get(name_of(request))
        if call is None:
            return refusal(400, "bad_request", f"no {request.method} {request.path} here")
        try:
            done = call(request, request.headers.get("authorization", ""), request.fields)
        except b2.B2Error as error:
            return _error_response(error, request)
        except (KeyError, AssertionError):  # what the simulator raises for unknown ids and tokens
            if request.headers.get("authorization") in self._store.auth_token_to_key:
                return refusal(404, "not_found", "no such file")
            return refusal(401, "bad_auth_token", "unknown token")
        return done if isinstance(done, Response) else Response(200, done)

    def expire(self, token: str) -> None:
        """Make the account's `token` invalid from now on."""
        if token in self._store.auth_token_to_key:
            self._store.expire_auth_token(token)

    def _authorize(self, _request: Request, auth: str, _asked: Mapping[str, Any]) -> Any:
        pair = b""
        with suppress(ValueError):
            pair = base64.b64decode(auth.removeprefix("Basic "), validate=True)
        key_id, _colon, key = pair.decode(errors="replace").partition(":")
        answer = self._store.authorize_account(self._url, key_id, key)
        urls = {"apiUrl": self._url, "downloadUrl": self._url, "s3ApiUrl": f"{self._url}/s3"}
        answer["apiInfo"]["storageApi"] |= urls
        return answer

    def _buckets(self, _: Request, auth: str, asked: Mapping[str, Any]) -> Any:
        wanted = asked.get("bucketId"), asked.get("bucketName")
        found = self._store.list_buckets(self._store.API_URL, auth, asked["accountId"], *wanted)
        return {"buckets": [_plain(bucket) for bucket in found["buckets"]]}

    def _update_bucket(self, _: Request, auth: str, asked: Mapping[str, Any]) -> Any:
        changes = {"bucket_type": asked.get("bucketType"), "bucket_info": asked.get("bucketInfo")}
        names = asked["accountId"], asked["bucketId"]
        revision = asked.get("ifRevisionIs")
        return _plain(self._store.update_bucket(self._store.API_URL, auth, *names, if_revision_is=revision, **changes))

    def _upload_url(self, _: Request, auth: str, asked: Mapping[str, Any]) -> Any:
        given = self._store.get_upload_url(self._store.API_URL, auth, asked["bucketId"])
        number = given["uploadUrl"].split("/")[-2]
        return given | {"uploadUrl": f"{self._url}/upload/{asked['bucketId']}/{number}"}

    def _upload(self, request: Request, auth: str, _: Mapping[str, Any]) -> Any:
        headers = request.headers
        info = {name.removeprefix(_INFO): unquote(text) for name, text in headers.items() if name.startswith(_INFO)}
        name, kind = unquote(headers["x-bz-file-name"]), headers.get("content-type", "b2/x-auto")
        kind = "application/octet-stream" if kind == "b2/x-auto" else kind
        body, digest = request.body, headers["x-bz-content-sha1"]
        return self._store.upload_file(auth, auth, name, len(body), kind, digest, info, BytesIO(body))

    def _part_url(self, _: Request, auth: str, asked: Mapping[str, Any]) -> Any:
        given = self._store.get_upload_part_url(self._store.API_URL, auth, asked["fileId"])
        return given | {"fileId": asked["fileId"], "uploadUrl": f"{self._url}/upload-part/{asked['fileId']}"}

    def _upload_part(self, request: Request, auth: str, _: Mapping[str, Any]) -> Any:
        number, digest = int(request.headers["x-bz-part-number"]), request.headers["x-bz-content-sha1"]
        return self._store.upload_part(auth, auth, number, len(request.body), digest, BytesIO(request.body))

    def _list(self, request: Request, auth: str, asked: Mapping[str, Any]) -> Any:
        listing, start = self._store.list_file_names, [asked.get("startFileName")]
        if name_of(request) == "b2_list_file_versions":
            listing, start = self._store.list_file_versions, [*start, asked.get("startFileId")]
        where = (asked["bucketId"], *start, asked.get("maxFileCount"), asked.get("prefix"))
        return listing(self._store.API_URL, auth, *where)

    def _copy(self, _: Request, auth: str, asked: Mapping[str, Any]) -> Any:
        directive = MetadataDirectiveMode[asked.get("metadataDirective", "COPY")]
        metadata: dict[str, Any] = {"content_type": asked.get("contentType"), "file_info": asked.get("fileInfo")}
        metadata |= {"metadata_directive": directive, "destination_bucket_id": asked.get("destinationBucketId")}
        return self._store.copy_file(self._store.API_URL, auth, asked["sourceFileId"], asked["fileName"], **metadata)

    def _download_by_id(self, request: Request, auth: str, _: Mapping[str, Any]) -> Response:
        self._allowed(auth)
        file_id = request.query.get("fileId", "")
        bucket = self._store.bucket_id_to_bucket[self._store.file_id_to_bucket_id[file_id]]
        return _content(bucket.file_id_to_file[file_id], auth, request.headers.get("range"))

    def _download_by_name(self, request: Request, auth: str, _: Mapping[str, Any]) -> Response:
        self._allowed(auth)
        bucket_name, _slash, name = unquote(urlsplit(request.target).path).removeprefix("/file/").partition("/")
        bucket = self._store.bucket_name_to_bucket[bucket_name]
        first = next((it for it in sorted(bucket.file_name_and_id_to_file) if it[0] == name), None)
        if first is None or not bucket.file_name_and_id_to_file[first].is_visible():
            return refusal(404, "not_found", f"no file {name}")
        return _content(bucket.file_name_and_id_to_file[first], auth, request.headers.get("range"))

    def _allowed(self, auth: str) -> None:
        self._store._assert_account_auth(self._store.API_URL, auth, self._store.account, "readFiles")


def _answer_s3(request: Request, _auth: str, _asked: Mapping[str, Any]) -> Response:
    """Refuse conditional writes, as B2's S3 API does; nothing else of that API is implemented."""
    if any(name in request.headers for name in _CONDITIONS):
        return Response(501, _NOT_IMPLEMENTED, "application/xml")
    return Response(403, b"<Error><Code>AccessDenied</Code></Error>", "application/xml")


def _content(file: Any, auth: str, wanted: str | None) -> Response:
    """Return the file, or the part that the Range header asks for, in the form that b2sdk sends."""
    headers = {name: str(value) for name, value in file.as_download_headers(auth).items()}
    kind = headers.pop("content-type")
    headers.pop("content-length")
    if wanted is None:
        return Response(200, file.data_bytes, kind, headers)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    part = file.data_bytes[int(first) : int(last) + 1]
    headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(file.data_bytes)}"
    return Response(206, part, kind, headers)


def _plain(bucket: Mapping[str, Any]) -> dict[str, Any]:
    """Return a bucket as JSON."""
    return {**bucket, "options": sorted(bucket["options"])}


def _error_response(error: Exception, request: Request) -> Response:
    message = str(error)
    if isinstance(error, b2.InvalidAuthToken):
        return refusal(401, "expired_auth_token" if error.code == "auth_token_expired" else "bad_auth_token", message)
    if isinstance(error, b2.FileNotPresent):
        deleting = name_of(request) == "b2_delete_file_version"
        return refusal(400, "file_not_present", message) if deleting else refusal(404, "not_found", message)
    status, code = next((answer for kind, answer in _ERRORS.items() if isinstance(error, kind)), (400, "bad_request"))
    return refusal(status, code, message)
