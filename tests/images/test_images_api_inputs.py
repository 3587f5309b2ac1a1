"""Each input that is refused, and why."""

import json
import socket
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from images_world import ALICE, CALM, JPEG, PNG, WEBP, ImagesWorld

from retake.images.messages import TEXT_QUEUE, job_id_of
from retake.serving.body import MAX_BODY_BYTES

BODY: dict[str, Any] = {"userId": "alice", "prompt": "a fox"}
INVALID: list[dict[str, Any]] = [
    {"userId": "jobs"},
    {"userId": ""},
    {"userId": "a" * 65},
    {"userId": "alice\n"},
    {"userId": "ali/ce"},
    {"userId": None},
    {"userId": 1},
    {"prompt": ""},
    {"prompt": " \n\t"},
    {"prompt": "x" * 4001},
    {"prompt": "a\0b"},
    {"prompt": None},
    {"prompt": ["a"]},
    {"negativePrompt": "x" * 4001},
    {"negativePrompt": "\0"},
    {"styles": "ink"},
    {"styles": [1]},
    {"styles": [""]},
    {"styles": ["\0"]},
    {"styles": ["ink"] * 51},
    {"width": 63},
    {"width": 65},
    {"width": 2056},
    {"width": "512"},
    {"width": True},
    {"width": 512.5},
    {"height": 0},
    {"height": -64},
    {"steps": 0},
    {"steps": 151},
    {"seed": -1},
    {"seed": 2**53},
    {"seed": True},
    {"seed": 10**400},
    {"status": "ready"},
    {"output_r2_key": "alice/a.png"},
    {"jobId": "0b8f8a52-9d0b-4b53-9f5f-0242ac120002"},
]


def test_what_is_invalid_is_422(api: ImagesWorld) -> None:
    for path in ("/jobsRedis", "/jobs"):
        for fields in INVALID:
            answer = api.alice.post(path, json={**BODY, **fields})
            assert answer.status_code == 422, fields
            assert {*answer.json()["detail"][0]} == {"loc", "msg", "type"}, "the input is not echoed"
        for body in ({}, {"userId": "alice"}, {"prompt": "x"}, [], "x", 1, None):
            assert api.alice.post(path, json=body).status_code == 422, body
    assert not [*api.redis.scan_iter("*")]


def test_a_lone_surrogate_is_422_and_not_echoed(api: ImagesWorld) -> None:
    for name in ("prompt", "userId", "negativePrompt", "x\\ud800"):
        text = f'{{"userId": "alice", "prompt": "a fox", "{name}": "\\ud800"}}'
        answer = api.alice.post("/jobsRedis", content=text, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, name
        assert answer.json()["detail"]


def test_what_cannot_be_read_is_400(api: ImagesWorld) -> None:
    for body in (b"{", b"\xff\xfe", b"\x80", b'{"a": ' * 9000, b"[" * 60_000, b"1" * 5000, b"{'a': 1}"):
        answer = api.alice.post("/jobsRedis", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, [*answer.json()]) == (400, ["detail"])


def test_json_that_is_not_sent_as_json_says_which_header_is_missing(api: ImagesWorld) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain"):  # the first is curl's own choice
        answer = api.alice.post("/jobsRedis", content=b'{"userId": "alice"}', headers={"Content-Type": kind})
        assert answer.status_code == 422
        assert "Content-Type: application/json" in answer.json()["detail"][0]["msg"]


def test_the_bounds_themselves_are_allowed(api: ImagesWorld) -> None:
    for fields in (
        {"prompt": "x" * 4000},
        {"prompt": "🦊"},
        {"width": 64, "height": 2048},
        {"seed": 0},
        {"styles": []},
    ):
        assert api.alice.post("/jobsRedis", json={**BODY, **fields}).status_code == 201


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_the_longest_texts_fit_into_the_message_of_a_job(api: ImagesWorld) -> None:
    body = {
        "userId": "alice",
        "prompt": "\U0001f98a" * 4000,
        "negativePrompt": "狐" * 4000,
        "styles": ["狐" * 200] * 50,
    }
    sent = json.dumps(body, ensure_ascii=False).encode()
    answer = api.alice.post("/jobsRedis", content=sent, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201, answer.text
    (message,) = api.services.broker.browse(TEXT_QUEUE, 10)
    assert job_id_of(message.body) == answer.json()["jobId"], "a worker would refuse it"


def test_a_body_has_64_kib(api: ImagesWorld) -> None:
    text = json.dumps(BODY).encode()
    kept = text + b" " * (MAX_BODY_BYTES - len(text))
    headers = {"Content-Type": "application/json"}
    assert api.alice.post("/jobsRedis", content=kept, headers=headers).status_code == 201
    assert api.alice.post("/jobsRedis", content=kept + b" ", headers=headers).status_code == 413


def test_without_a_length_it_is_counted(api: ImagesWorld) -> None:
    def chunks() -> Any:
        for _ in range(70):
            yield b" " * 1024

    assert api.alice.post("/jobsRedis", content=chunks()).status_code == 413


SMALL = CALM._replace(max_upload_bytes=200, max_files=3)


@pytest.fixture
def small(instances: Callable[..., ImagesWorld]) -> ImagesWorld:
    return instances(images=SMALL)


def test_a_file_and_their_number_are_bounded(small: ImagesWorld) -> None:
    largest = PNG + b"x" * (200 - len(PNG))
    assert small.upload(("a.png", largest), ("b.png", largest), ("c.png", largest)).status_code == 201
    assert small.upload(("d.png", largest + b"x")).status_code == 413
    assert small.upload(*((f"{it}.png", PNG) for it in range(4))).status_code == 413
    assert small.outfit(person=largest + b"x").status_code == 413
    assert small.outfit(person=PNG * 2000).status_code == 413
    assert small.outfit(person=largest, garment=largest).status_code == 201
    assert {it for it in small.bucket.kept if it.startswith("alice/")} == {f"alice/{it}.png" for it in "abc"}


def test_a_large_form_is_refused_by_its_length_before_it_is_sent(small: ImagesWorld) -> None:
    answer = raw(small, b"Content-Length: 100000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_form_without_a_length_is_counted(small: ImagesWorld) -> None:
    def chunks() -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="imageFiles"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 1024

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert small.alice.post("/upload", content=chunks(), headers=headers).status_code == 413


def test_fields_of_a_form_are_bounded(small: ImagesWorld) -> None:
    assert small.upload(("a.png", PNG), user="a" * 5000).status_code == 413
    files = [(f"f{it}", (None, "x")) for it in range(40)]
    assert small.alice.post("/upload", files=files).status_code == 413


def raw(api: ImagesWorld, rest: bytes) -> bytes:
    """Return the answer to a client that does not end its body."""
    place = urlsplit(api.base)
    head = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    with socket.create_connection((place.hostname, place.port), 30) as connection:
        connection.sendall(head + f"Authorization: Bearer {ALICE}\r\n".encode() + rest)
        return connection.recv(4096)


def test_an_invalid_length_is_refused(api: ImagesWorld) -> None:
    for length in (b"-1", b"x", b"9" * 30):
        assert raw(api, b"Content-Length: " + length + b"\r\n\r\n")[9:12] in (b"400", b"413")


# --- forms ----------------------------------------------------------------------------------------------------------


NAMED = b'--x\r\nContent-Disposition: form-data; name="userId-!"\r\n\r\nalice\r\n--x--\r\n'
UNREADABLE = [
    (b"{}", "application/json"),
    (b"userId=alice", "application/x-www-form-urlencoded"),
    (b"", "multipart/form-data"),
    (b"nothing", "multipart/form-data; boundary=x"),
    (b"--x\r\nbroken", "multipart/form-data; boundary=x"),
    (b"--x\r\nContent-Disposition: form-data\r\n\r\n\r\n--x--\r\n", "multipart/form-data; boundary=x"),
    (b"--x\r\n\r\n", "multipart/form-data; boundary=" + "y" * 500),
    (NAMED, "multipart/form-data; charset=undefined; boundary=x"),  # a codec of Python's that decodes no text
]


def test_a_form_that_cannot_be_read_is_400(api: ImagesWorld) -> None:
    for path in ("/upload", "/jobChangeOutfit"):
        for body, kind in UNREADABLE:
            answer = api.alice.post(path, content=body, headers={"Content-Type": kind})
            assert (answer.status_code, [*answer.json()]) == (400, ["detail"]), (body, kind)


def test_a_form_that_its_charset_cannot_decode_is_refused(api: ImagesWorld) -> None:
    # From 3.13 on, Python names the byte, and Starlette then reads the form as Latin-1: only the field is unknown.
    expected = 422 if sys.version_info >= (3, 13) else 400
    for path in ("/upload", "/jobChangeOutfit"):
        kind = "multipart/form-data; charset=punycode; boundary=x"
        answer = api.alice.post(path, content=NAMED, headers={"Content-Type": kind})
        assert (answer.status_code, [*answer.json()]) == (expected, ["detail"])


def test_a_form_that_was_cut_is_400(api: ImagesWorld) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="'
    first = head + b'userId"\r\n\r\nalice\r\n' + head + b'imageFiles"; filename="a.png"\r\n\r\n' + PNG + b"\r\n"
    second = head + b'imageFiles"; filename="b.png"\r\n\r\n' + PNG
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for rest in (b"", second, b"--x\r\n"):
        assert api.alice.post("/upload", content=first + rest, headers=headers).status_code == 400
    assert api.bucket.kept == set()
    assert api.alice.post("/upload", content=first + b"--x--\r\n", headers=headers).status_code == 201


def test_fields_of_forms_are_checked(api: ImagesWorld) -> None:
    person, garment, picture = ("personImage", ("p", PNG)), ("garmentImage", ("g", PNG)), ("imageFiles", ("a", PNG))
    alice = ("userId", (None, "alice"))
    for path, parts in (
        ("/jobChangeOutfit", [alice, person]),
        ("/jobChangeOutfit", [alice, garment]),
        ("/jobChangeOutfit", [person, garment]),
        ("/jobChangeOutfit", [alice, alice, person, garment]),
        ("/jobChangeOutfit", [alice, person, garment, ("prompt", (None, "x"))]),
        ("/jobChangeOutfit", [alice, ("personImage", (None, "text")), garment]),
        ("/jobChangeOutfit", [("userId", (None, "jobs")), person, garment]),
        ("/jobChangeOutfit", [("userId", ("u", b"alice")), person]),
        ("/upload", [alice]),
        ("/upload", [picture]),
        ("/upload", [alice, picture, ("other", (None, "x"))]),
        ("/upload", [alice, ("imageFiles", (None, "text"))]),
        ("/upload", [("userId", (None, "a/b")), picture]),
        ("/upload", [("userId", (None, "\0")), picture]),
        ("/upload", [alice, ("imageFiles", ("a.png", PNG)), ("imageFiles", ("a.png", JPEG))]),
    ):
        answer = api.alice.post(path, files=parts)
        assert answer.status_code == 422, (path, parts, answer.text)
    assert api.bucket.kept == set()


def test_what_is_not_a_picture_is_415(api: ImagesWorld) -> None:
    for data in (b"", b"GIF89a", b"\x89PNG", b"RIFF0000WAVE", b"<svg/>", b"%PDF", b"\xff\xd8", b"BM"):
        for answer in (
            api.outfit(person=data),
            api.outfit(garment=data),
            api.upload(("a.png", PNG), ("b.png", data)),
        ):
            assert (answer.status_code, [*answer.json()]) == (415, ["detail"])
        assert api.bucket.kept == set()
        assert api.members("pending") == set()


NAMES = [
    ("../../etc/a.png", "a.png"),
    ("C:\\pictures\\a.png", "a.png"),
    ("bob/a.png", "a.png"),
    ("ä ö.png", "ä ö.png"),
    ("x" * 246 + ".png", "x" * 246 + ".png"),
]


def test_the_last_part_of_a_name_counts(api: ImagesWorld) -> None:
    for name, kept in NAMES:
        answer = api.upload((name, WEBP))
        assert answer.status_code == 201, answer.text
        known = {"key": f"alice/{kept}", "name": kept, "size": len(WEBP), "type": "image/webp"}
        assert answer.json() == {"files": [known]}
    assert api.bucket.kept == {f"alice/{kept}" for _, kept in NAMES}


def test_a_name_that_cannot_be_kept_is_422(api: ImagesWorld) -> None:
    for name in ("..", ".", "a/", "x" * 251, "ä" * 126, ".retake-x"):
        assert api.upload((name, PNG)).status_code == 422
        assert api.bucket.kept == set()


# --- rate -----------------------------------------------------------------------------------------------------------


def test_a_users_jobs_and_uploads_are_counted_over_all_instances(instances: Callable[..., ImagesWorld]) -> None:
    slow = CALM._replace(rate_per_minute=4)
    first, second = instances(images=slow), instances(images=slow)
    assert first.ask(key="k").status_code == 201
    assert first.ask(key="k").status_code == 201, "a replay does not count"
    assert first.ask(prompt="").status_code == 422
    assert second.ask().status_code == 201
    assert first.upload(("a.png", PNG)).status_code == 201
    assert second.outfit().status_code == 201
    for answer in (first.ask(), second.ask(), first.outfit(), second.upload(("b.png", PNG))):
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert first.ask(key="k").status_code == 201
    assert first.bob.post("/jobsRedis", json={"userId": "bob", "prompt": "x"}).status_code == 201


def test_jobs_of_the_table_are_counted_too(instances: Callable[..., ImagesWorld], database_url: str) -> None:
    api = instances(database_url, images=CALM._replace(rate_per_minute=2))
    assert api.table is not None
    api.table.prepare()
    assert api.ask("/jobs", key="k").status_code == 201
    assert api.ask("/jobs", key="k").status_code == 201, "a replay does not count"
    assert api.ask().status_code == 201
    assert api.ask("/jobs").status_code == 429
