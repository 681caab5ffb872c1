"""`--low-memory`: weights of a reference that do not fit are read when they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import llama
from transformers import AutoModelForCausalLM

from omni_cli.config.schema import EngineConfig
from omni_cli.core.machine import HostMemory
from omni_cli.models import reference
from omni_cli.models.reference import check_whole, load_model
from omni_cli.models.scores import NoReferenceError, Way


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_model_that_does_not_fit_gives_the_same_tokens(
    dtype: str, kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = llama(tmp_path / "llama")
    stages: Any = {"model": {"kind": "ar"}}
    fields: Any = {"version": 1, "name": "reference", "model": str(folder), "dtype": "float32", "stages": stages}
    config = EngineConfig(**fields)
    whole = load_model(AutoModelForCausalLM, folder, Way(dtype), config)
    size = sum(weight.nbytes for weight in whole.parameters())
    free = HostMemory(total_bytes=size, available_bytes=int(2 * kept * size), limit_bytes=None)
    monkeypatch.setattr(reference, "read_memory", lambda: free)
    parts = load_model(AutoModelForCausalLM, folder, Way(dtype, low_memory=True), config)
    resident = sum(weight.nbytes for weight in parts.parameters() if not weight.is_meta)
    assert resident <= kept * size, "the others are not in memory"
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    limits = {"max_new_tokens": 16, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    expected, found = (model.generate(ids, **limits) for model in (whole, parts))
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert all(map(torch.equal, found.logits, expected.logits))


def test_diffusers_pipelines_are_read_whole() -> None:
    with pytest.raises(NoReferenceError, match="`--low-memory` is for references in transformers"):
        check_whole(Way("float32", low_memory=True))
