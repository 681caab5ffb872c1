"""The real MPS server, for a stage on a diffusers pipeline, which needs no vLLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omni_cli.engine.mps import PIPES


@pytest.mark.skipif(shutil.which("nvidia-cuda-mps-control") is None, reason="needs `nvidia-cuda-mps-control`")
@pytest.mark.parametrize("mps", [True, False])
def test_a_stage_is_a_client_of_a_server_that_ends_with_the_command(tmp_path: Path, mps: bool):
    places = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {name: value for name, value in os.environ.items() if name != PIPES}
    environment |= {"PYTHONPATH": places, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "omni_cli", "generate", "-p", "tiny-image", "--set", f"mps={str(mps).lower()}"]
    made = subprocess.run([*command, "a cat", "--json"], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (stage,) = json.loads(made.stdout)["results"][0]["stages"]
    assert stage["effective"].get("mps", False) == mps
    assert not list(tmp_path.glob("omni-mps-*"))
