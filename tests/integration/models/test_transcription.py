"""Speech recognition against transformers' greedy `generate`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import soundfile  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from support.answers import answer_of  # noqa: E402
from support.omni_process import run_omni  # noqa: E402
from support.references import TranscriptionReferenceAlone  # noqa: E402
from support.spoken_sentences import SENTENCES, has_espeak, speak  # noqa: E402
from support.tiny_models import qwen3_asr, whisper  # noqa: E402
from support.tiny_voxtral import voxtral  # noqa: E402
from support.transcriptions import voice  # noqa: E402

from omni_cli.models.transcription.long_form import TimedModel  # noqa: E402
from omni_cli.requests.contents import Word  # noqa: E402
from omni_cli.requests.encoding import resample  # noqa: E402

REQUESTS: tuple[dict[str, Any], ...] = (
    {"seed": 0},
    {"seed": 1, "language": "French"},
    {"seed": 2, "language": "DE", "task": "translate"},
    {"seed": 3, "seconds": 3.9, "prompt": "the long road home"},
    {"seed": 4, "language": "en", "timestamps": True},
    {"seed": 5, "timestamps": True, "seconds": 2.0},
    {"seed": 6, "seconds": 1.0},
    {"seed": 7, "language": "es", "prompt": "grey skies", "timestamps": True},
)
LONG: tuple[dict[str, Any], ...] = (
    {"seed": 8, "seconds": 6.0, "language": "en", "word_timestamps": True},
    {"seed": 9, "seconds": 4.5, "language": "fr", "timestamps": True, "word_timestamps": True},
    {"seed": 10, "seconds": 5.0, "language": "de", "prompt": "the long road home", "max_tokens": 40},
    {"seed": 13, "seconds": 9.0, "language": "en", "prompt": "grey skies", "prompt_condition_type": "all-segments"},
    {"seed": 14, "seconds": 9.0, "language": "en", "prompt": "grey skies", "condition_on_prev_tokens": True},
    {"seed": 12, "seconds": 17.0},
)
REFUSED: dict[str, dict[str, Any]] = {
    "this model transcribes one sound per request, not 0": {"language": "en"},
    "the sound is empty: it has 0 samples at 16000 Hz": {"seed": 0, "seconds": 0.0},
    "the `prompt` has `<|endoftext|>`, which this model does not read as text": {"seed": 0, "prompt": "<|endoftext|>"},
    "unknown `language`: klingon": {"seed": 0, "language": "klingon"},
    "a transcript is that of the whole sound": {"seed": 0, "sampling": {"stop": ["ship"]}},
    "this model transcribes speech: it does not chat": {"seed": 0, "raw": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper(tmp_path_factory.mktemp("models") / "whisper")


@pytest.fixture(scope="module")
def answers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    task = {"folder": str(folder), "requests": [*REQUESTS, *LONG, *REFUSED.values()]}
    return answer_of("transcriptions", task, tmp_path_factory.mktemp("answers"))


def test_tokens_are_those_of_transformers(folder: Path, answers: dict[str, Any]) -> None:
    reference = TranscriptionReferenceAlone(folder)
    expected = [reference.tokens(**request) for request in REQUESTS]
    assert len({tuple(tokens) for tokens, _ in expected}) > len(REQUESTS) // 2, "answers that depend on the sound"
    for way in ("alone", "once"):
        found = answers[way][: len(REQUESTS)]
        assert [(answer["token_ids"], answer["num_input_tokens"]) for answer in found] == expected


def check_tokens_of_texts(folder: Path, requests: Sequence[dict[str, Any]]) -> None:
    """Tokens of a text are the model's own as far as it says the same, whatever comes then, and the end."""
    reference = TranscriptionReferenceAlone(folder)
    for request in requests:
        own, text = reference.tokens_of(None, **request)
        assert reference.tokens_of(f" {text} ", **request) == (own, text)
        half = len(text) // 2
        for other in ("", text[:half], f"{text[:half]}zq{text[half + 1 :]}", f"{text} zq", f"zq{text}"):
            found, said = reference.tokens_of(other, **request)
            if found[-1] in reference.ends:
                assert said == other.strip()
            else:
                assert len(found) == len(own), "as many as fit the model"
                assert other.startswith(said.rstrip("\ufffd"))
            pairs = enumerate(zip(own, found, strict=False))
            same = next((number for number, (mine, its) in pairs if mine != its), len(own))
            assert text.startswith(reference.read(found[:same]).rstrip("\ufffd"))


def test_tokens_of_a_text_of_a_server(folder: Path) -> None:
    check_tokens_of_texts(folder, REQUESTS[:4])


def test_a_model_that_writes_the_language_itself(tmp_path: Path) -> None:
    """Qwen3-ASR: no tokens of language and task, but words before the transcript."""
    folder = qwen3_asr(tmp_path / "qwen3_asr")
    requests: list[dict[str, Any]] = [
        {"seed": 0, "seconds": 1.0},
        {"seed": 1, "seconds": 1.3, "language": "fr"},
        {"seed": 2, "seconds": 2.0, "language": "de", "prompt": "grey skies"},
        {"seed": 3, "seconds": 3.9},
        {"seed": 4, "seconds": 0.3},
        {"seed": 5, "seconds": 0.7, "language": "en"},
    ]
    check_tokens_of_texts(folder, requests[:4])
    answers = answer_of(
        "transcriptions", {"folder": str(folder), "requests": [*requests, {"seed": 0, "timestamps": True}]}, tmp_path
    )
    reference = TranscriptionReferenceAlone(folder)
    expected = [reference.tokens(**request) for request in requests]
    assert len({tuple(tokens) for tokens, _ in expected}) > 2, "answers that depend on the sound"
    for way in ("alone", "once"):
        found = answers[way][: len(requests)]
        assert [(answer["token_ids"], answer["num_input_tokens"]) for answer in found] == expected
    assert answers["alone"][-1] == "InputError: this model tells no times"


def test_a_model_in_the_files_of_mistral(tmp_path: Path) -> None:
    """Voxtral: transformers reads its own files, and vLLM those of Mistral, which take several windows at once."""
    folder = voxtral(tmp_path / "voxtral")
    requests: list[dict[str, Any]] = [
        {"seed": 0, "seconds": 1.0, "language": "en"},
        {"seed": 1, "seconds": 1.3, "language": "fr"},
        {"seed": 2, "seconds": 2.0},
        {"seed": 3, "seconds": 0.4, "language": "de"},
        {"seed": 4, "seconds": 31.0, "language": "de"},
    ]
    refused: list[dict[str, Any]] = [{"prompt": "grey skies"}, {"task": "translate"}, {"timestamps": True}]
    answers = answer_of(
        "transcriptions", {"folder": str(folder), "requests": [*requests, *({"seed": 0, **each} for each in refused)]},
        tmp_path,
    )  # fmt: skip
    reference = TranscriptionReferenceAlone(folder)
    expected = [reference.tokens(**request) for request in requests]
    assert len({tuple(tokens) for tokens, _ in expected}) > 3, "answers that depend on the sound"
    for way in ("alone", "once"):
        found = answers[way][: len(requests)]
        assert [(answer["token_ids"], answer["num_input_tokens"]) for answer in found] == expected
        assert answers[way][len(requests) :] == [
            "InputError: this model takes no words before the transcript",
            "InputError: this model does not translate",
            "InputError: this model tells no times",
        ]
    (folder / "consolidated.safetensors").unlink()
    soundfile.write(tmp_path / "sound.wav", np.zeros(16_000), 16_000)
    ended = run_omni(tmp_path, "generate", "--model", str(folder), "--audio", "sound.wav")
    assert ended.code == 2 and "has no consolidated.safetensors, which stage `transcriber` needs" in ended.err


def test_times_of_words_are_those_of_transformers(folder: Path, answers: dict[str, Any]) -> None:
    processor = transformers.WhisperProcessor.from_pretrained(folder)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    all_words = []
    for number, request in enumerate(LONG[:2], start=len(REQUESTS)):
        samples, rate = voice(request["seed"], request["seconds"])
        whole = {"truncation": False, "padding": "longest", "return_attention_mask": True, "return_tensors": "pt"}
        inputs = processor(resample(samples, rate, 16_000), sampling_rate=16_000, **whole)
        made = model.generate(
            **inputs, language=request["language"], task="transcribe", max_new_tokens=12,
            return_timestamps=True, return_token_timestamps=True, return_segments=True,
        )  # fmt: skip
        names = ("tokens", "token_timestamps")
        joined = {name: torch.cat([part[name] for part in made["segments"][0]])[None] for name in names}
        _, read = processor.tokenizer._decode_asr(
            [joined], return_timestamps="word", return_language=None, time_precision=0.02
        )
        expected = [[word["text"].strip(), *word["timestamp"]] for word in read["chunks"]]
        for way in ("alone", "once"):
            found = answers[way][number]["words"]
            # transformers goes on in the silence that fills up the last window.
            assert found == expected[: len(found)]
        all_words += found
    assert len({start_s for _, start_s, _ in all_words}) > 1


def test_a_long_sound_goes_on_from_the_last_time_as_in_transformers(folder: Path, answers: dict[str, Any]) -> None:
    reference = TranscriptionReferenceAlone(folder)
    for number, request in enumerate(LONG, start=len(REQUESTS)):
        token_ids, num_input_tokens = reference.tokens(**request)
        assert sum(token_id in reference.ends for token_id in token_ids) > 1 or len(token_ids) > 12, "several windows"
        for way in ("alone", "once"):
            answer = answers[way][number]
            assert (answer["token_ids"], answer["num_input_tokens"]) == (token_ids, num_input_tokens)
            assert answer["chunks"] == answer["text"] and "<|" not in answer["text"]
            times = [time_s for start_s, end_s, _ in answer["segments"] for time_s in (start_s, end_s)]
            assert times and times == sorted(times) and times[0] >= 0 and times[-1] <= request["seconds"]
    assert answers["alone"] == answers["once"]


def test_the_language_is_that_of_the_first_window_and_told_of_each(folder: Path, answers: dict[str, Any]) -> None:
    """All languages of the checkpoint are known, also those that vLLM does not list."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    size = extractor.nb_max_frames
    marks = {token_id: mark.strip("<|>") for mark, token_id in model.generation_config.lang_to_id.items()}
    samples, rate = voice(LONG[-1]["seed"], LONG[-1]["seconds"])
    form = {"truncation": False, "padding": "longest", "return_tensors": "pt"}
    frames = extractor(resample(samples, rate, 16_000), sampling_rate=16_000, **form)["input_features"]

    def detect(begin: int) -> str:
        window = frames[..., begin : begin + size]
        window = torch.nn.functional.pad(window, (0, size - window.shape[-1]))
        return marks[int(model.detect_language(window, num_segment_frames=size))]

    answer = answers["alone"][len(REQUESTS) + len(LONG) - 1]
    assert answer["language"] == detect(0)
    assert len({language for _, language in answer["languages"]}) > 1
    assert answer["languages"] == [[begin, detect(begin)] for begin, _ in answer["languages"]]
    assert all(language is None for _, language in answers["alone"][1]["languages"]), "asked for"


def test_what_cannot_be_transcribed_is_one_error(answers: dict[str, Any]) -> None:
    assert answers["alone"][-len(REFUSED) :] == [f"InputError: {message}" for message in REFUSED]
    assert answers["left"] == [0, 0], "requests of the stage that have ended"


def test_a_checkpoint_without_a_generation_config_tells_times(folder: Path, tmp_path: Path) -> None:
    """Its tokenizer has the token before the times; its vocabulary is that of a model that hears English alone."""
    old = shutil.copytree(folder, tmp_path / "old")
    (old / "generation_config.json").unlink()
    request = {"seed": 8, "seconds": 6.0, "timestamps": True}
    (found,) = answer_of("transcriptions", {"folder": str(old), "requests": [request]}, tmp_path)["alone"]
    times = [time_s for start_s, end_s, _ in found["segments"] for time_s in (start_s, end_s)]
    assert found["language"] == "en" and times and times == sorted(times) and times[-1] <= 6.0
    assert found["chunks"] == found["text"] and "<|" not in found["text"]


def test_a_benchmark_hears_speech_of_its_own(folder: Path, tmp_path: Path) -> None:
    arguments = ("--batch-size", "2", "--num-iters", "2", "--num-iters-warmup", "1", "--output-len", "8", "--json")
    ended = run_omni(tmp_path, "bench", "--model", str(folder), *arguments)
    assert ended.code == 0, ended.err
    (variant,) = ended.document["variants"]
    assert ended.document["workload"]["input"] == "speech" and "input_len" not in ended.document["workload"]
    # Both sentences of the package, 3.973 s; eight tokens for each window of the model.
    for sample in variant["samples"]:
        assert sample["work"]["audio_s"] == pytest.approx(3.973, abs=1e-3)
        assert sample["work"]["output_tokens"] % 8 == 0
        assert sample["metrics"]["rtf"] == pytest.approx(sample["e2e_s"] / sample["work"]["audio_s"])


@pytest.mark.nightly  # a download of 68 MiB
@pytest.mark.skipif(not has_espeak(), reason="espeak-ng is not installed")
def test_a_real_model_hears_twenty_sentences_as_transformers_does(whisper_tiny: Path, tmp_path: Path) -> None:
    files = [speak(text, tmp_path / f"{number}.wav") for number, text in enumerate(SENTENCES)]
    requests = [{"file": str(file), "max_tokens": 40, "timestamps": bool(n % 2)} for n, file in enumerate(files)]
    task = {"folder": str(whisper_tiny), "requests": requests}
    answers = answer_of("transcriptions", task, tmp_path)
    reference = TranscriptionReferenceAlone(whisper_tiny)
    expected = [reference.tokens(**request) for request in requests]
    for way in ("alone", "once"):
        assert [(answer["token_ids"], answer["num_input_tokens"]) for answer in answers[way]] == expected
    assert all(answer["segments"][0][0] < 1 < answer["segments"][-1][1] < 6 for answer in answers["once"])
    ended = run_omni(tmp_path, "generate", "--model", str(whisper_tiny), "--audio", str(files[0]), "--json", "-q")
    assert ended.code == 0, ended.err
    (output,) = json.loads(ended.out)["results"][0]["outputs"]
    assert output["text"] == SENTENCES[0] and output["transcript"]["language"] == "en"


@pytest.mark.nightly  # a download of 68 MiB
@pytest.mark.skipif(not has_espeak(), reason="espeak-ng is not installed")
def test_a_real_model_hears_long_recordings_as_transformers_does(whisper_tiny: Path, tmp_path: Path) -> None:
    """Speech of a minute, with silence and with music in the middle."""
    spoken = [soundfile.read(speak(text, tmp_path / "one.wav"), dtype="float32") for text in SENTENCES]
    rate = spoken[0][1]
    voices = [samples for samples, _ in spoken]
    music = 0.2 * np.sin(2 * np.pi * 440 * np.arange(12 * rate) / rate, dtype=np.float32)
    requests = []
    for name, middle in (("plain", []), ("silence", [np.zeros_like(music)]), ("music", [music])):
        file = tmp_path / f"{name}.wav"
        soundfile.write(file, np.concatenate([*voices[:10], *middle, *voices[10:]]), rate)
        requests.append({"file": str(file), "max_tokens": 224})
    answers = answer_of("transcriptions", {"folder": str(whisper_tiny), "requests": requests}, tmp_path)
    reference = TranscriptionReferenceAlone(whisper_tiny)
    expected = [reference.tokens(**request) for request in requests]
    for way in ("alone", "once"):
        assert [(answer["token_ids"], answer["num_input_tokens"]) for answer in answers[way]] == expected
    assert all(len(answer["segments"]) > 5 for answer in answers["alone"])


@pytest.mark.parametrize("marks", [{}, {"extra_special_tokens": []}])  # such as of a converted checkpoint
def test_a_character_that_two_parts_share_is_one_word(tmp_path: Path, marks: dict[str, Any]) -> None:
    """As in transformers, a part without a length is one with the next."""
    tokenizer = transformers.WhisperTokenizer.from_pretrained(whisper(tmp_path / "whisper"), **marks)
    left, right = tokenizer.encode("\u00e9", add_special_tokens=False)
    first = tokenizer.convert_tokens_to_ids("<|0.00|>")
    model: Any = TimedModel.__new__(TimedModel)
    model._tokenizer, model._clock = tokenizer, SimpleNamespace(frames_per_step=2, frame_s=0.01)
    parts, ends_s = [(first, left, first), (first, right, first + 50)], [0.0, 0.2, 0.2, 0.2, 0.6, 0.6]
    seeker: Any = SimpleNamespace(heard=parts, ends_s=ends_s)
    assert list(model.read_words(seeker, "en")) == [Word(0.0, 0.6, "\u00e9")]
