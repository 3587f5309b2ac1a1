import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
if str(TESTS / "vendors") not in sys.path:
    sys.path.append(str(TESTS / "vendors"))  # the scripted server

from scripted_vendor import ScriptedVendor  # noqa: E402


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach loopback without proxies, and trust only the certificates that a test names."""
    monkeypatch.setenv("NO_PROXY", "*")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def service() -> Iterator[ScriptedVendor]:
    """Start a service whose replies the test scripts."""
    scripted = ScriptedVendor()
    yield scripted
    scripted.close()
