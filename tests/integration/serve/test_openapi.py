"""The server against its own OpenAPI document: every status code and content type is in there, and every rule holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.omni_server import OmniServer

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("server", ["omni", "pictures"])
def test_schemathesis_finds_nothing(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """All of its checks; the one that valid data is accepted by the rule of `schemathesis_hooks`."""
    running: OmniServer = request.getfixturevalue(server)
    checks = ("--checks", "all", "--exclude-checks", "positive_data_acceptance", "-n", "4", "--seed", "1")
    ended = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json", *checks],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "support.schemathesis_hooks", "PYTHONPATH": str(TESTS)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "8 selected / 8 total" in ended.stdout
