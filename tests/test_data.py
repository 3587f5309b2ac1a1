"""The data files that ship with Retake: config/ at the top of a checkout, and its copy in the package."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retake.data import checkout, default_file, packaged_file

ROOT = Path(__file__).parent.parent
PACKAGED = Path(packaged_file("config"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_package_has_the_files_of_config_byte_for_byte() -> None:
    """After a change: cp -r config retake/data"""
    ours, packaged = files(ROOT / "config"), files(PACKAGED)
    assert ours.keys() == packaged.keys()
    assert [name for name in ours if ours[name] != packaged[name]] == []


def test_in_a_checkout_its_own_files_count() -> None:
    assert checkout() == str(ROOT)
    assert default_file("config/prompts.json") == str(ROOT / "config" / "prompts.json")


@pytest.mark.parametrize("beside", ["config", None])
def test_an_installed_package_has_its_files_with_it_whatever_is_beside_it(tmp_path: Path, beside: str | None) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "retake", tmp_path / "retake", ignore=ignored)
    if beside:
        (tmp_path / beside).mkdir()
    code = "from retake.data import checkout, default_file; print(checkout(), default_file('config/prompts.json'))"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.split() == ["None", str(tmp_path / "retake/data/config/prompts.json")]
