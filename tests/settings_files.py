"""Settings from a file that a test writes."""

import json
from pathlib import Path
from typing import Any

from retake.story.settings import Settings, load_settings


def load(tmp_path: Path, document: Any, **environ: str) -> Settings:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(document))
    return load_settings({"RETAKE_CONFIG": str(file), **environ})
