"""A model that computes NaN for one request: that request fails with an error, and the others in its batch finish.

The checkpoint has NaN where only one of the requests looks: in the embedding of a character, and in a speaker's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.omni_requests import BRIEF_SPEECH
from support.request_fields import with_fields
from transformers import AutoTokenizer

from omni_cli.core.errors import StageError
from omni_cli.requests.contents import SpeechOptions, TextOptions
from omni_cli.requests.outputs import GenerateRequest, RequestResult, TextOutput

pytestmark = pytest.mark.slow

SAMPLING = {"max_tokens": 24, "ignore_eos": True}
CHARACTERS = "~^|{}@$%&*+=<>"
BOTH, TEXT = frozenset({"text", "audio"}), frozenset({"text"})


def run(engine: Any, prefix: str, character: str, speaker: str, **fields: Any) -> list[RequestResult]:
    """A good request, one with the character, one with the speaker, and another good one, concurrently."""
    requests = [
        GenerateRequest(f"{prefix} first", "Good morning."),
        GenerateRequest(f"{prefix} character", character, text=TextOptions(raw=True)),
        GenerateRequest(f"{prefix} speaker", "Good evening.", speech=SpeechOptions(speaker=speaker)),
        GenerateRequest(f"{prefix} last", "Good night."),
    ]
    return engine.run_all([with_fields(request, sampling=SAMPLING, **fields) for request in requests])


def tokens_of(result: RequestResult) -> list[Any]:
    return [trace.output_token_ids for trace in result.stages]


@pytest.fixture(scope="module")
def speaker(tiny_omni_path: Path) -> str:
    return list(torch.load(tiny_omni_path / "spk_dict.pt", weights_only=True))[1]


@pytest.fixture(scope="module")
def expected(tiny_omni: Any, speaker: str) -> list[RequestResult]:
    results = run(tiny_omni, "expected", "~", speaker, modalities=BOTH)
    assert [result.error for result in results] == [None] * 4
    return results


@pytest.fixture(scope="module")
def character(tiny_omni_path: Path, expected: list[RequestResult]) -> tuple[str, int]:
    """A character that no good request contains, and its token."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_omni_path)
    said = {token_id for result in expected for token_id in tokens_of(result)[0]}
    pairs = [(each, *tokenizer.encode(each, add_special_tokens=False)) for each in CHARACTERS]
    return next((each, token_id) for each, token_id in pairs if token_id not in said)


@pytest.fixture(scope="module")
def broken(
    start_engine: Any, tiny_omni_path: Path, tmp_path_factory: Any, speaker: str, character: tuple[str, int]
) -> Any:
    folder = Path(shutil.copytree(tiny_omni_path, tmp_path_factory.mktemp("broken") / "checkpoint"))
    name = "thinker.model.embed_tokens.weight"
    (shard,) = [path for path in folder.glob("*.safetensors") if name in load_file(path)]
    weights = load_file(shard)
    weights[name][character[1]] = float("nan")
    save_file(weights, shard, {"format": "pt"})
    speakers = torch.load(folder / "spk_dict.pt", weights_only=True)
    speakers[speaker]["cond"][:] = float("nan")
    torch.save(speakers, folder / "spk_dict.pt")
    return start_engine("tiny-omni", *BRIEF_SPEECH, model=str(folder))


@pytest.mark.parametrize("stream", [False, True])
def test_one_fails_and_the_others_finish(
    broken: Any, expected: list[RequestResult], character: tuple[str, int], speaker: str, stream: bool
) -> None:
    first, word, spoken, last = run(broken, str(stream), character[0], speaker, modalities=BOTH, stream_audio=stream)
    assert isinstance(word.error, StageError) and isinstance(spoken.error, StageError)
    assert word.error.message == "stage `thinker`: the model produced NaN logits"
    assert word.error.request_id == f"{stream} character" and word.outputs == ()
    assert spoken.error.message == "stage `token2wav`: the model produced NaN or infinite samples"
    assert spoken.error.request_id == f"{stream} speaker"
    assert [type(output) for output in spoken.outputs] == [TextOutput]
    for good, same in ((first, expected[0]), (last, expected[3])):
        assert good.error is None
        assert tokens_of(good) == tokens_of(same)
    assert broken.llm.failed_stages == {} and broken.llm.busy_stages == ()


def test_text_alone(broken: Any, character: tuple[str, int], speaker: str) -> None:
    first, word, _, last = run(broken, "text", character[0], speaker, modalities=TEXT)
    assert word.error is not None and "NaN logits" in word.error.message
    assert (first.error, last.error) == (None, None)
