import sys
from pathlib import Path

from hypothesis import settings

TESTS = Path(__file__).parents[1]
sys.path += [folder for folder in (str(TESTS / "bucket"), str(TESTS / "story")) if folder not in sys.path]
"""The stand-ins for the stores, and the machines that die."""

# A busy machine is no fault of the code: an example may take as long as it needs.
settings.register_profile("paid", deadline=None, print_blob=True)
settings.load_profile("paid")
