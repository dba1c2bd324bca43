"""Commands that are killed at any moment and run again end with the same bytes as commands that were left alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "fuzz/kills.py"


@pytest.mark.slow
def test_killed_commands_resume_to_the_same_bytes(capsys):
    """Every command that resumes, with one and two processes and over Ray; `make kills` prints the same table."""
    result = subprocess.run([sys.executable, str(SCRIPT), "--kills", "4"], capture_output=True, text=True)
    with capsys.disabled():
        print(f"\n{result.stdout}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(re.search(r"(\d+) kills of", result.stdout)[1]) >= 50
