"""A profile without memory keys, in the README's own shape, loads: its stages' caches are planned together."""

from __future__ import annotations

import json
from pathlib import Path

from support.omni_process import run_omni

PROFILE = """
version: 1
name: own
model: builtin:tiny-omni
dtype: float32
stages:
  thinker: {kind: ar, backend: vllm}
  talker: {kind: ar, backend: vllm, input: thinker, sampling: {max_tokens: 8}}
  token2wav: {kind: diffusion, backend: vllm, input: talker, num_inference_steps: 2}
"""


def test_a_chain_without_memory_keys(tmp_path: Path) -> None:
    """vLLM's own default would take 92 % of the memory for the first stage alone."""
    profile = tmp_path / "own.yaml"
    profile.write_text(PROFILE)
    ended = run_omni(tmp_path, "generate", "-p", str(profile), "-v", "--json", "--max-tokens", "4", "hello")
    assert ended.code == 0, ended.err
    assert len(json.loads(ended.out)["results"][0]["outputs"]) == 2
    assert "memory, as planned:" in ended.err
    # At most 4,096 tokens of 1 KiB for each of 256 requests: as much of it as is free.
    rows = [line.split() for line in ended.err.splitlines() if line.startswith(("  thinker", "  talker"))]
    assert all(row[-3] in ("MiB", "GiB") and float(row[-4]) > 0 for row in rows[:2])
