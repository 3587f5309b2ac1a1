"""Downloads into a file: what the file holds when they fail, and how much of them is ever in memory."""

import tracemalloc
from io import BytesIO
from pathlib import Path

import pytest
from scripted_vendor import ScriptedVendor, says

from retake.errors import Code, PollFailed
from retake.vendors import save
from retake.vendors.download import HttpDownloader

MB = 10**6


def test_a_download_takes_as_much_memory_whatever_its_size(vendor: ScriptedVendor, tmp_path: Path) -> None:
    def peak(size: int) -> int:
        vendor.script = [says(200, bytes(size), Content_Type="video/mp4")]
        tracemalloc.start()
        with (tmp_path / "film").open("wb") as file:
            save(HttpDownloader(20.0), vendor.url, file)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (tmp_path / "film").stat().st_size == size
        return most

    peak(MB)  # loads lazy imports
    assert peak(40 * MB) < peak(MB) + 2 * MB


def test_a_full_disk_is_reported_as_such(vendor: ScriptedVendor) -> None:
    vendor.script = [says(200, bytes(MB), Content_Type="video/mp4")]
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(PollFailed, match=r"left.*TMPDIR") as caught:
        HttpDownloader(5.0).save(vendor.url, full)
    assert caught.value.code is Code.MEDIA


def test_an_error_page_does_not_get_into_the_file(vendor: ScriptedVendor) -> None:
    vendor.script = [says(503, b"<html>busy</html>")]
    file = BytesIO()
    with pytest.raises(PollFailed):
        HttpDownloader(5.0).save(vendor.url, file)
    assert file.getvalue() == b""


def test_a_downloader_that_cannot_save_is_used_anyway() -> None:
    class Plain:
        def download(self, url: str, max_bytes: int | None = None) -> bytes:
            return f"{url} {max_bytes}".encode()

    file = BytesIO()
    save(Plain(), "https://cdn/film.mp4", file, 7)
    assert file.getvalue() == b"https://cdn/film.mp4 7"
