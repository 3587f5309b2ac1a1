"""Makes the test helpers of other rooms available."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
folders = [str(TESTS), *(str(TESTS / room) for room in ("story", "runs", "console", "bucket"))]
sys.path += [folder for folder in folders if folder not in sys.path]
