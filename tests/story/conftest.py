import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parents[1]
sys.path += [folder for folder in (str(TESTS), str(TESTS / "bucket")) if folder not in sys.path]

# A busy machine is no fault of the code: an example may take as long as it needs.
settings.register_profile("story", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("story")
