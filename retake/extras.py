"""Libraries that are installed on demand: `pip install 'retake[NAME]'`."""

from importlib import import_module
from importlib.util import find_spec

from retake.errors import SettingsError

EXTRAS = {
    "b2": "b2sdk",
    "s3": "botocore",
    "postgres": "psycopg",
    "apprise": "apprise",
    "music": "googleapiclient",  # not fastapi, which two other extras bring along
    "images": "websockets",
    "web": "jinja2",
}
"""By the name of the extra in pyproject.toml: the module without which it is not there."""


def require(extra: str, what: str) -> None:
    """Check that the libraries of `extra` are installed; `what` needs them, and the message begins with it.

    Raises SettingsError, which says what to install.
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
