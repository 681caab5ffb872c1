"""Architectures that vLLM transcribes with, from small checkpoints, against transformers where it has the class."""

from __future__ import annotations

import string
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from support.answers import answer_of  # noqa: E402
from support.references import TranscriptionReferenceAlone  # noqa: E402
from support.tiny_models import qwen3_asr, whisper  # noqa: E402
from support.tiny_transcribers import BUILDERS, NEEDS, forced_aligner, speakers  # noqa: E402
from support.transcriptions import voice  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.qwen3_asr import processing_qwen3_asr  # noqa: E402

from omni_cli.checkpoints.files import read_family  # noqa: E402
from omni_cli.core.errors import InputError  # noqa: E402
from omni_cli.models.forcing import replace_attribute  # noqa: E402
from omni_cli.models.transcription.word_times import ForcedAligner  # noqa: E402
from omni_cli.requests.encoding import resample  # noqa: E402

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
    # A profile's stop strings are those of chats; this one drops them.
    asked = [*requests, *({**other, "sampling": {"stop": None}} for other in others)]
    task = {"folder": str(folder), "requests": asked, "stop": list(string.ascii_letters) if chats else []}
    answers = answer_of("transcriptions", task, tmp_path)
    found = answers["alone"][: len(requests)]
    assert answers["once"] == answers["alone"]
    assert len({tuple(answer["token_ids"]) for answer in found}) == len(requests), "answers that depend on the sound"
    assert all(answer["chunks"] == answer["text"] for answer in found)
    if chats:
        assert answers["alone"][-1]["segments"] is None, "a prompt is answered"
    if name not in ALONE:
        reference = TranscriptionReferenceAlone(folder, max_tokens=12)
        expected = [reference.tokens(**request) for request in (*requests, *others)]
        assert [(answer["token_ids"], answer["num_input_tokens"]) for answer in answers["alone"]] == expected


def test_a_forced_aligner_comes_before_the_heads_of_a_whisper(tmp_path: Path) -> None:
    """Each window's words are found in the part of it that the next one does not hear again."""
    aligner = forced_aligner(tmp_path / "aligner")
    request = {"seed": 8, "seconds": 6.0, "language": "en", "word_timestamps": True}
    task = {"folder": str(whisper(tmp_path / "whisper")), "aligner": str(aligner), "requests": [request]}
    (found,) = answer_of("transcriptions", task, tmp_path)["alone"]
    samples = resample(*voice(8, 6.0), 16_000)
    begins = [*dict.fromkeys(seek * 160 for seek, _ in found["languages"])]
    own = ForcedAligner(str(aligner), torch.float32, torch.device("cpu"))
    texts = [
        "".join(
            text
            for (_, _, text), (seek, _) in zip(found["segments"], found["languages"], strict=True)
            if seek * 160 == begin
        )
        for begin in begins
    ]
    words = [
        word
        for begin, end, text in zip(begins, [*begins[1:], None], texts, strict=True)
        for word in own.find_words(samples[begin:end], text, begin / 16_000, "en")
    ]
    assert len(begins) > 1 and words
    assert found["words"] == [[word.text, word.start_s, word.end_s] for word in words]


def test_a_forced_aligner_tells_the_times_of_words(tmp_path: Path) -> None:
    folder, aligner = qwen3_asr(tmp_path / "qwen3_asr"), forced_aligner(tmp_path / "aligner")
    request = {"seed": 5, "seconds": 3.0, "language": "en", "max_tokens": 20}
    timed = {**request, "word_timestamps": True}
    requests = [timed, request, {**timed, "language": "ja"}, {**timed, "speakers": True}]
    task = {"folder": str(folder), "aligner": str(aligner), "requests": requests}
    timed, plain, japanese, diarized = answer_of("transcriptions", task, tmp_path)["alone"]
    assert diarized == "InputError: this model does not tell speakers apart"
    assert find_spec("nagisa") or japanese == "InputError: Japanese forced alignment requires the `nagisa` package"
    assert timed["text"] == plain["text"] and not plain["words"]
    with replace_attribute(CONFIG_MAPPING, "_extra_content", {}):  # without those that vLLM registers
        processor = transformers.Qwen3ASRProcessor.from_pretrained(aligner)
    model = transformers.Qwen3ASRForTokenClassification.from_pretrained(aligner)
    samples = resample(*voice(5, 3.0), 16_000)
    inputs, words = processor.prepare_forced_aligner_inputs(samples, timed["text"], "en")
    with torch.no_grad():
        logits = model(**inputs).logits
    (found,) = processor.decode_forced_alignment(logits, inputs["input_ids"], words, model.config.timestamp_token_id)
    assert len(found) > 1 and found[-1]["end_time"] > 0
    assert timed["words"] == [[word["text"], word["start_time"], word["end_time"]] for word in found]


def test_the_parts_of_speakers(tmp_path: Path) -> None:
    requests = [
        {"seed": 0, "seconds": 75.0, "speakers": True},
        *({"seed": 0, "seconds": 2.5, "speakers": True, "max_tokens": number} for number in (1, 2, 5)),
        {"seed": 0, "seconds": 2.5},
    ]
    folder = speakers(tmp_path / "moss")
    answers = answer_of("transcriptions", {"folder": str(folder), "requests": requests}, tmp_path)["alone"]
    whole, *cut, plain = answers
    assert whole["text"] == "[0.50][S01]ships at sea[1.25][1.50][S02]rain[2.00]"
    assert whole["segments"] == [[0.5, 1.25, " ships at sea"], [1.5, 2.0, " rain"]]
    assert whole["speakers"] == ["S01", "S02"]
    assert plain["text"] == whole["text"] and not whole["notes"]
    heard: list[Any] = [[], [[0.5, 2.5, " ships at sea"]], [[0.5, 1.25, " ships at sea"], [1.5, 2.5, " rain"]]]
    assert [answer["segments"] for answer in cut] == heard, "the last part has no end of its own"
    assert all(answer["notes"] == ["the transcript is cut: the model reached its maximum of tokens"] for answer in cut)


def test_a_forced_aligner_finds_no_words_in_marks_and_names_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aligner = ForcedAligner(str(forced_aligner(tmp_path / "aligner")), torch.float32, torch.device("cpu"))
    monkeypatch.setattr(processing_qwen3_asr, "is_soynlp_available", lambda: False)
    with pytest.raises(InputError, match=r"^Korean forced alignment requires the `soynlp` package\n"):
        list(aligner.find_words(voice(0, 1.0, 16_000)[0], "a word", 0.0, "ko"))
    assert list(aligner.find_words(voice(0, 1.0, 16_000)[0], " ... \u266a", 0.0, "en")) == []
