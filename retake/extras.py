"""Optional dependencies: `pip install 'retake[NAME]'`."""

from importlib import import_module
from importlib.util import find_spec

from retake.errors import SettingsError

EXTRAS = {
    "b2": "b2sdk",
    "s3": "botocore",
    "postgres": "psycopg",
    "apprise": "apprise",
    "music": "googleapiclient",  # not fastapi, which two other extras install too
    "images": "websockets",
    "web": "jinja2",
}
"""For each extra in pyproject.toml, the module whose presence shows that it is installed."""


def require(extra: str, what: str) -> None:
    """Raise SettingsError, which says what to install, if the libraries of `extra` are missing.

    `what` is what needs them; the message begins with it.
    """
    try:
        import_module(EXTRAS[extra])
    except ImportError:
        raise SettingsError(
            f"{what} needs {EXTRAS[extra]}, which is not installed: pip install 'retake[{extra}]'"
        ) from None


def is_installed(extra: str) -> bool:
    """Return whether the libraries of `extra` are installed. Imports nothing."""
    return find_spec(EXTRAS[extra]) is not None
