"""A model with real weights: SmolLM2-135M-Instruct, which `make demo-real` runs as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.omni_process import run_omni
from support.references import LanguageReference

QUESTION = "What is the capital of France?"
MAX_TOKENS = 24


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
