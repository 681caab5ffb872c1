"""The server against its own OpenAPI document: all status codes, content types and rules hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.omni_server import OmniServer

TESTS = Path(__file__).parents[2]


def check(server: OmniServer, folder: Path) -> None:
    """Run all checks of schemathesis; `schemathesis_hooks` decides which valid data must be accepted."""
    checks = ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "-n", "2", "--seed", "1"]
    # A server that sleeps answers everything with 503.
    checks += ["--exclude-path", "/sleep"]
    ended = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", *checks],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "support.schemathesis_hooks", "PYTHONPATH": str(TESTS)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "26 selected / 27 total" in ended.stdout


def test_schemathesis_finds_nothing_in_text_and_speech(omni: OmniServer, tmp_path: Path) -> None:
    check(omni, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["image_server", "edit_server", "video_server", "cloning_server"])
def test_schemathesis_finds_nothing_elsewhere(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    check(request.getfixturevalue(name), tmp_path)
