"""The default settings, the prompts and the robots' policies that come with Retake.

In a checkout, config/ at its top is used, because that is what people edit there. An installed package has the same
files in this folder, byte for byte.
"""

import os

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SCRIPT = "b2_storage_manager.py"


def checkout() -> str | None:
    """Return the folder that has the four scripts and this package side by side; None if the package is installed."""
    folder = os.path.dirname(_PACKAGE)
    return folder if os.path.exists(os.path.join(folder, _SCRIPT)) else None


def default_file(name: str) -> str:
    """Return the path of a file or folder that comes with Retake, such as "config/prompts.json"."""
    folder = checkout()
    return os.path.join(folder, *name.split("/")) if folder else packaged_file(name)


def packaged_file(name: str) -> str:
    """Return the path of a file or folder in the package itself, even in a checkout."""
    return os.path.join(_PACKAGE, "data", *name.split("/"))
