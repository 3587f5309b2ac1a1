from collections.abc import Callable, Iterator

import pytest
from hostile import Act, Hostile

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
TRUST_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all proxies and certificates but those that a test sets."""
    for name in (*PROXY_VARIABLES, *map(str.upper, PROXY_VARIABLES), *TRUST_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name in ("RUNWAYML_BASE_URL", "RUNWAYML_API_SECRET", "RUNWAYML_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hostile() -> Iterator[Callable[..., Hostile]]:
    """Yield a function that starts servers; they are closed after the test."""
    servers: list[Hostile] = []

    def start(act: Act, *, reads: bool = True) -> Hostile:
        servers.append(Hostile(act, reads=reads))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
