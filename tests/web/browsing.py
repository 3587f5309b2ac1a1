"""The real command `retake web` on a bucket in a directory, and a real browser (Chromium) that visits it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-tests"
NAMES = ("chromium", "google-chrome", "chromium-browser")
MISSING = "Chromium is missing: sudo apt install chromium; on Ubuntu, python -m playwright install --with-deps chromium"

PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
PATHS = ("/", "/runs", "/dead-letters", "/spend", "/kpi", "/alerts", "/mode", "/breakers")


class Dashboard(NamedTuple):
    """A dashboard served by a process of its own."""

    url: str
    folder: Path
    process: "subprocess.Popen[str]"

    @property
    def environ(self) -> dict[str, str]:
        """The environment for a tick or a command beside it."""
        return environment(self.folder)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RETAKE_CONFIG": str(folder / "config.json"),
        "RETAKE_WEB_TOKEN": TOKEN,
        "NO_PROXY": "*",
    }


@contextmanager
def serving(folder: Path, *options: str, **settings: Mapping[str, object]) -> Iterator[Dashboard]:
    """Serve the bucket in `folder`/bucket."""
    storage = {"url": f"file:{folder}/bucket"}
    (folder / "config.json").write_text(json.dumps({"STORAGE": storage, "WEB": {"look_seconds": 0.2}, **settings}))
    with (folder / "web.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "retake", "web", "--port", "0", *options],
            cwd=folder, env=environment(folder), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert url, (folder / "web.log").read_text()
        yield Dashboard(url.rstrip("/"), folder, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.communicate()


def starts(program: str | None) -> bool:
    """Return whether the program exists and is more than Ubuntu's advice to install a snap."""
    if not program or not os.path.exists(program):
        return False
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser. If it is missing, skip the test; on a build machine, fail."""
    with sync_playwright() as playwright:
        program = next(filter(starts, [*map(shutil.which, NAMES), playwright.chromium.executable_path]), None)
        if program is None:
            if os.environ.get("CI"):
                pytest.fail(MISSING)
            pytest.skip(MISSING)
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=[*arguments, "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def signed_in(page: Page, dashboard: Dashboard, path: str = "/") -> Page:
    """Sign in as a person does, and go to a page."""
    page.goto(f"{dashboard.url}/login?next={path}")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{dashboard.url}{path}")
    return page
