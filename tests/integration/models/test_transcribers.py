"""Architectures that vLLM transcribes with, from small checkpoints, against transformers where it has the class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import pytest  # noqa: E402
from support.answers import answer_of  # noqa: E402
from support.references import TranscriptionReferenceAlone  # noqa: E402
from support.tiny_transcribers import BUILDERS, NEEDS  # noqa: E402

from omni_cli.checkpoints.files import read_family  # noqa: E402

REQUESTS: tuple[dict[str, Any], ...] = (
    {"seed": 0, "seconds": 1.0},
    {"seed": 1, "seconds": 1.3, "language": "en"},
    {"seed": 2, "seconds": 3.7, "language": "zh"},
)
# Those of which transformers 5.19 has no class.
ALONE = ("fire_red_asr2", "fun_asr", "kimi_audio", "moss")
# Cohere ASR's spectrograms are compiled; Kimi-Audio has the 151,680 tokens of the release.
SLOW = ("cohere_asr", "kimi_audio")


@pytest.mark.filterwarnings("ignore:`rope_config_validation` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in SLOW else []) for name in BUILDERS],
)
def test_a_transcriber(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    folder = BUILDERS[name](tmp_path / name)
    requests = [{**request, "asked": True} for request in REQUESTS]
    chats = read_family(folder).roles[0].chats and name not in ALONE
    others = [{"seed": 0, "seconds": 1.0, "prompt": "What is it?"}] if chats else []
    answers = answer_of("transcriptions", {"folder": str(folder), "requests": [*requests, *others]}, tmp_path)
    found = answers["alone"][: len(requests)]
    assert answers["once"] == answers["alone"]
    assert len({tuple(answer["token_ids"]) for answer in found}) == len(requests), "answers that depend on the sound"
    assert all(answer["chunks"] == answer["text"] for answer in found)
    if chats:
        assert answers["alone"][-1]["segments"] is None, "a prompt is answered"
    if name not in ALONE:
        reference = TranscriptionReferenceAlone(folder)
        expected = [reference.tokens(**request) for request in requests]
        assert [(answer["token_ids"], answer["num_input_tokens"]) for answer in found] == expected
