import sys
from io import BytesIO
from typing import Any

import pytest
from scripted_vendor import ScriptedVendor, drip, page, says

from retake.errors import Code, PollFailed
from retake.vendors.download import MAX_REDIRECTS, HttpDownloader

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2000
SIGNED = "/cat.png?X-Amz-Signature=abcdef"


class SavingDownloader(HttpDownloader):
    """Downloads into a file, and returns its content."""

    def download(self, url: str, max_bytes: int | None = None) -> bytes:
        file = BytesIO()
        self.save(url, file, max_bytes)
        return file.getvalue()


@pytest.fixture(autouse=True, params=["in memory", "into a file"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "into a file":
        monkeypatch.setattr(sys.modules[__name__], "HttpDownloader", SavingDownloader)


def failure(url: str, downloader: HttpDownloader) -> PollFailed:
    with pytest.raises(PollFailed) as caught:
        downloader.download(url)
    assert "Signature" not in str(caught.value)
    return caught.value


def test_a_file_comes_whole_and_without_any_key(
    vendor: ScriptedVendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    vendor.script = [says(200, PNG, Content_Type="image/png")]

    assert HttpDownloader(5.0).download(vendor.url + SIGNED) == PNG

    [seen] = vendor.seen
    assert (seen.method, seen.target) == ("GET", SIGNED)
    assert {"authorization", "x-api-key", "cookie"}.isdisjoint(seen.headers)


def test_a_file_without_a_length_comes_whole_too(vendor: ScriptedVendor) -> None:
    chunked = b"5\r\n\x89PNG1\r\n3\r\n234\r\n0\r\n\r\n"
    vendor.script = [says(200, chunked, Transfer_Encoding="chunked", Content_Length="")]
    assert HttpDownloader(5.0).download(vendor.url + SIGNED) == b"\x89PNG1234"


def test_a_chunked_file_that_breaks_off_is_noticed(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, b"5\r\n\x89PNG1\r\n", Transfer_Encoding="chunked", Content_Length="")]
    assert failure(vendor.url + SIGNED, HttpDownloader(5.0)).code is Code.NETWORK


def test_redirects_are_followed(vendor: ScriptedVendor) -> None:
    vendor.script = [says(302, Location="/b?x=1"), says(307, Location=vendor.url + "/c"), says(200, PNG)]
    assert HttpDownloader(5.0).download(vendor.url + "/a") == PNG
    assert [seen.target for seen in vendor.seen] == ["/a", "/b?x=1", "/c"]


def test_redirects_without_end_are_left(vendor: ScriptedVendor) -> None:
    vendor.script = [says(302, Location="/a")] * 20
    assert failure(vendor.url + "/a", HttpDownloader(5.0)).code is Code.BAD_ANSWER
    assert len(vendor.seen) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/cat.png", "cat.png", "", "http://[::1/cat", "http://"])
def test_only_http_links_are_followed(url: str, vendor: ScriptedVendor) -> None:
    assert failure(url, HttpDownloader(5.0)).code is Code.BAD_ANSWER
    vendor.script = [says(302, Location=url or "file:")]
    if url not in ("cat.png", "http://"):  # as redirects, these resolve against the first link
        assert failure(vendor.url + "/a", HttpDownloader(5.0)).code is Code.BAD_ANSWER
        assert len(vendor.seen) == 1


@pytest.mark.parametrize(
    "act",
    [
        page(200),
        says(200, b"  <!DOCTYPE html><html>", Content_Type="image/png"),
        says(200, {"error": "expired"}),
        says(200, "<?xml version='1.0'?><Error/>"),
        says(206, PNG),
    ],
)
def test_a_page_is_not_taken_for_media(act: Any, vendor: ScriptedVendor) -> None:
    vendor.script = [act]
    assert failure(vendor.url + SIGNED, HttpDownloader(5.0)).code is Code.BAD_ANSWER


def test_a_page_that_calls_itself_a_picture_is_called_a_page(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, b"<html>gone", Content_Type="image/png")]
    told = str(failure(vendor.url + SIGNED, HttpDownloader(5.0)))
    assert 'is a page or a document, not media (its Content-Type: "image/png")' in told


def test_a_file_that_is_too_large_is_left(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, PNG)] * 2
    assert "larger than 1,000 bytes" in str(failure(vendor.url + SIGNED, HttpDownloader(5.0, max_bytes=1000)))
    assert HttpDownloader(5.0, max_bytes=len(PNG)).download(vendor.url) == PNG


def test_a_server_that_drips_is_left_at_the_deadline(vendor: ScriptedVendor) -> None:
    vendor.script = [drip]
    assert failure(vendor.url + SIGNED, HttpDownloader(0.3)).code is Code.TIMEOUT


def test_the_deadline_counts_redirects(vendor: ScriptedVendor) -> None:
    moments = iter([0.0, 0.0, 11.0])
    vendor.script = [says(302, Location="/b", Content_Length="0"), says(200, PNG)]
    downloader = HttpDownloader(10.0, monotonic=lambda: next(moments))
    assert failure(vendor.url + SIGNED, downloader).code is Code.TIMEOUT
    assert len(vendor.seen) == 1


def test_the_wish_to_be_left_alone_is_passed_on(vendor: ScriptedVendor) -> None:
    vendor.script = [says(503, Retry_After="30")]
    assert failure(vendor.url + SIGNED, HttpDownloader(5.0)).retry_after_s == 30.0
