"""Pictures and videos of generations over HTTP: from every place that holds a generation's files, and nothing else."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from acting import TOKEN, Site, dashboard, serving
from story_world import World

from retake.bucket import ANY
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.serving.file_answer import PIECE
from retake.story.settings import Settings

ID = "20260101-0000"
PICTURE, VIDEO = b"\x89PNG a picture", bytes(range(256)) * 40
NO_PART = b'{"detail":"there is no such part"}'
PLACES = ["666/", "555/", "444/", "archive/", f"dead_letters/{ID}/"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bucket")


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    """Serve a directory with one generation, its documents, and a secret outside."""
    bucket = DirectoryBucket(str(folder))
    for key, data in {
        f"666/{ID}.png": PICTURE,
        f"666/{ID}.mp4": VIDEO,
        f"666/{ID}.json": b'{"text": "SECRET"}',
        "666/empty.png": b"",
        "config/config_gen.json": b"{}",
        "config/notes.png": b"SECRET",
        f"spend/{ID}.json": b'{"calls": "SECRET"}',
    }.items():
        bucket.write(key, data, ANY)
    (folder.parent / "outside.png").write_bytes(b"SECRET")
    with serving(bucket, Settings(), FakeClock()) as found:
        yield found


@pytest.mark.parametrize("place", PLACES)
def test_a_generations_files_are_found_where_the_pipeline_keeps_them(place: str) -> None:
    world = World()
    world.put(f"{place}{ID}.png", PICTURE)
    world.put(f"{place}{ID}.mp4", VIDEO)
    with dashboard(world) as site:
        picture, video = (site.program.get(f"/media/-/{ID}.{suffix}") for suffix in ("png", "mp4"))
    assert (picture.status_code, picture.content, picture.headers["content-type"]) == (200, PICTURE, "image/png")
    assert (video.status_code, video.content, video.headers["content-type"]) == (200, VIDEO, "video/mp4")
    assert video.headers["content-length"] == str(len(VIDEO))


def test_what_a_rollback_gave_up_is_found_by_the_id_of_its_letter() -> None:
    world = World()
    world.put(f"dead_letters/{ID}-upscale-1a2b3c4d/{ID}.png", PICTURE)
    with dashboard(world) as site:
        assert site.program.get(f"/media/-/{ID}-upscale-1a2b3c4d.png").content == PICTURE
        assert site.program.get(f"/media/-/{ID}.png").status_code == 404


def test_each_channel_has_its_own() -> None:
    world = World()
    world.put(f"cats/666/{ID}.png", PICTURE)
    world.put(f"666/{ID}.png", b"of nobody")
    with dashboard(world, channels=("cats", "dogs")) as site:
        found = {name: site.program.get(f"/media/{name}/{ID}.png") for name in ("cats", "dogs", "-", "music", "birds")}
    assert {name: it.status_code for name, it in found.items()} == {
        "cats": 200, "dogs": 404, "-": 404, "music": 404, "birds": 404,
    }  # fmt: skip
    assert found["cats"].content == PICTURE


@pytest.mark.parametrize(
    ("wanted", "status", "found", "part"),
    [
        ("bytes=0-9", 206, VIDEO[:10], "bytes 0-9/10240"),
        ("bytes=10230-", 206, VIDEO[-10:], "bytes 10230-10239/10240"),
        ("bytes=-4", 206, VIDEO[-4:], "bytes 10236-10239/10240"),
        ("bytes=0-99999", 206, VIDEO, "bytes 0-10239/10240"),
        ("bytes=-99999", 206, VIDEO, "bytes 0-10239/10240"),
        ("bytes=10240-", 416, NO_PART, "bytes */10240"),
        ("bytes=-0", 416, NO_PART, "bytes */10240"),
        ("bytes=5-2", 200, VIDEO, None),
        ("bytes=0-1,5-6", 200, VIDEO, None),
        ("pages=1-2", 200, VIDEO, None),
        ("bytes=", 200, VIDEO, None),
    ],
)
def test_a_player_gets_the_part_that_it_asks_for(
    site: Site, wanted: str, status: int, found: bytes, part: str | None
) -> None:
    answer = site.program.get(f"/media/-/{ID}.mp4", headers={"Range": wanted})
    assert (answer.status_code, answer.content, answer.headers.get("content-range")) == (status, found, part)
    assert answer.headers["accept-ranges"] == "bytes"


def test_it_is_private_and_sent_again_only_when_it_has_changed(site: Site, folder: Path) -> None:
    first = site.program.get(f"/media/-/{ID}.png")
    tag = first.headers["etag"]
    assert "private" in first.headers["cache-control"]
    assert "no-store" not in first.headers["cache-control"]
    assert first.headers["x-content-type-options"] == "nosniff"
    again = site.program.get(f"/media/-/{ID}.png", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    part = {"Range": "bytes=0-3"}
    assert site.program.get(f"/media/-/{ID}.png", headers={**part, "If-Range": tag}).status_code == 206
    os.utime(folder / f"666/{ID}.png", (1, 1))
    assert site.program.get(f"/media/-/{ID}.png", headers={"If-None-Match": tag}).status_code == 200
    assert site.program.get(f"/media/-/{ID}.png", headers={**part, "If-Range": tag}).status_code == 200


def test_a_look_at_its_head_reads_nothing_of_it(site: Site) -> None:
    head = site.program.head(f"/media/-/{ID}.mp4")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(VIDEO)))
    assert head.headers["content-type"] == "video/mp4"
    assert site.program.get("/media/-/empty.png").content == b""


@pytest.mark.parametrize(
    "path",
    [
        f"/media/-/{ID}.json",
        f"/media/-/{ID}",
        f"/media/-/{ID}.PNG",
        f"/media/-/{ID}.png.json",
        f"/media/-/{ID}.png%00",
        f"/media/-/{ID}.png%0a",
        f"/media/-/../666/{ID}.png",
        f"/media/-/..%2f666%2f{ID}.png",
        f"/media/-/%2e%2e/{ID}.png",
        f"/media/-%2f{ID}.png",
        f"/media/-/%32{ID[1:]}.png",
        f"/media/../666/{ID}.png",
        f"/media/..%5c..%5c{ID}.png",
        f"/media//{ID}.png",
        f"/media/-//{ID}.png",
        f"/media/{ID}.png",
        f"/media/666/{ID}.png",
        "/media/-/..%2f..%2foutside.png",
        "/media/-/../../outside.png",
        "/media/-/outside.png",
        "/media/-/notes.png",
        "/media/config/notes.png",
        "/media/-/config_gen.png",
        "/media/-/.png",
        "/media/-/..png",
        "/media/-/.retake.png",
        "/media/-/*.png",
        "/media/-/%E2%80%AE.png",
        f"/media/-/{'x' * 65}.png",
        f"/media/-/{'x' * 4000}.png",
        "/media/-/\u0661.png",
        "/static/../media.py",
        "/static/..%2fmedia.py",
    ],
)
def test_nothing_else_of_the_bucket_is_served(site: Site, path: str) -> None:
    """Written to the socket as it is: HTTP clients would normalise it."""
    address = urlsplit(site.url)
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=30) as connection:
        connection.sendall(request.encode())
        answer = b""
        while data := connection.recv(65_536):
            answer += data
    assert answer.split(b" ", 2)[1] in (b"404", b"400"), answer[:200]
    assert b"SECRET" not in answer
    assert PICTURE not in answer


def test_no_link_leads_out_of_the_bucket(site: Site, folder: Path) -> None:
    (folder / "666/link.png").symlink_to(folder.parent / "outside.png")
    assert b"SECRET" not in site.program.get("/media/-/link.png").content


def test_nobody_sees_a_picture_who_is_not_signed_in(site: Site) -> None:
    site.browser.cookies.clear()
    path = f"/media/-/{ID}.png"
    assert site.browser.get(path).headers["location"] == f"/login?next={path}"
    assert site.browser.get(path, headers={"Accept": "application/json"}).status_code == 401


def test_a_large_file_is_read_a_part_at_a_time() -> None:
    world = World()
    data = os.urandom(2 * PIECE + 17)
    world.put(f"666/{ID}.mp4", data)
    reads = FailingBucket(world.bucket)
    with dashboard(world, bucket=reads) as site:
        assert site.program.get(f"/media/-/{ID}.mp4").content == data
    assert reads.operations.count(("read", f"666/{ID}.mp4")) == 3


class Moving(MemoryBucket):
    """A bucket in which a tick moves the video after its first part was read."""

    def read_range(self, key: str, first: int, last: int) -> bytes:
        data = super().read_range(key, first, last)
        if key.startswith("666/"):
            self.copy(key, key.replace("666/", "555/"))
            self.delete(key)
        return data


def test_a_file_that_a_tick_moves_meanwhile_is_read_on_where_it_is_then() -> None:
    data = os.urandom(2 * PIECE + 17)
    bucket = Moving()
    bucket.write(f"666/{ID}.mp4", data, ANY)
    with serving(bucket, Settings(), FakeClock()) as site:
        assert site.program.get(f"/media/-/{ID}.mp4").content == data


class Losing(MemoryBucket):
    """A bucket in which a file disappears once it was found."""

    def read_range(self, key: str, first: int, last: int) -> bytes:
        self.delete(key)
        return super().read_range(key, first, last)


def test_a_file_that_is_gone_by_now_is_not_there() -> None:
    bucket = Losing()
    bucket.write(f"666/{ID}.png", PICTURE, ANY)
    with serving(bucket, Settings(), FakeClock()) as site:
        assert site.program.get(f"/media/-/{ID}.png").status_code == 404
