"""Measures by models, against the same models used directly: tiny random checkpoints of the real architectures."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.omni_process import run_omni
from support.tiny_pipelines.tokenizers import clip as clip_tokenizer
from tokenizers import pre_tokenizers

from omni_cli.measure.bench.outputs import save_arrays
from omni_cli.measure.bench.quality import ALEXNET, QualityWeightsError, measure_pairs

pytest.importorskip("torchmetrics", reason="torchmetrics is an extra: `omni-cli[quality]`")
pytestmark = pytest.mark.slow

RATE = 24_000


@pytest.fixture(scope="module")
def alexnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AlexNet, random except for the classifier, which LPIPS does not use and which would have 230 MB."""
    from torchvision.models import alexnet

    torch.manual_seed(0)
    weights = alexnet().state_dict()
    small = {
        name: torch.zeros(1).expand(each.shape) if "classifier" in name else each for name, each in weights.items()
    }
    folder = tmp_path_factory.mktemp("alexnet")
    torch.save(small, folder / ALEXNET)
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    torch.manual_seed(0)
    tokenizer = clip_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text = {**sizes, **ends, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.eos_token_id}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    folder = tmp_path_factory.mktemp("clip")
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

    torch.manual_seed(3)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    vocab = {token: index for index, token in enumerate([*letters, *special])}
    tokenizer = WhisperTokenizer(vocab=vocab, merges=[])
    end, start = vocab["<|endoftext|>"], vocab["<|startoftranscript|>"]
    config = WhisperConfig(
        vocab_size=len(vocab), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=80, max_target_positions=48,
        bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=start, init_std=1.0,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.generation_config.no_timestamps_token_id = vocab["<|notimestamps|>"]
    model.generation_config.is_multilingual = False
    model.generation_config.max_length = 40
    folder = tmp_path_factory.mktemp("whisper")
    for part in (model, tokenizer, WhisperFeatureExtractor(feature_size=80)):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def outputs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs of two variants: an image, a video, and audio in two lengths; a second request's are equal."""
    source = np.random.default_rng(0)
    image, video = source.integers(0, 256, (64, 64, 3), np.uint8), source.integers(0, 256, (3, 64, 64, 3), np.uint8)
    audio = source.standard_normal(RATE, np.float32)
    first = {"0.prompt": np.array("a red cat"), "0.image.0": image, "0.video.1": video, "0.audio.2": audio}
    second = {
        **first,
        "0.image.0": 255 - image,
        "0.video.1": video // 2,
        "0.audio.2": source.standard_normal(RATE // 2, np.float32),
    }
    rates = {"0.audio.2.rate": np.array(RATE)}
    equal = {"1.prompt": np.array("a dog"), "1.image.0": image}
    return {**first, **rates, **equal}, {**second, **rates, **equal}


@pytest.fixture(scope="module")
def pair(outputs: tuple[dict[str, Any], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("outputs")
    for name, arrays in zip("ab", outputs, strict=True):
        save_arrays(folder / f"{name}.npz", arrays)
    return folder / "a.npz", folder / "b.npz"


def test_measures_are_those_of_the_libraries(alexnet, clip, whisper, outputs, pair):
    ((first, second),) = measure_pairs({"lpips": alexnet, "clip_score": clip, "wer": whisper}, [pair])
    a, b = outputs
    assert second == {}, "equal outputs have no measures"
    distances = [_lpips(alexnet, a[name], b[name]) for name in ("0.image.0", "0.video.1")]
    assert first["lpips"] == pytest.approx(max(distances), rel=1e-5)
    scores = [_clip_score(clip, b[name], "a red cat") for name in ("0.image.0", "0.video.1")]
    assert first["clip_score"] == pytest.approx(min(scores), abs=1e-4) and len(set(scores)) == 2
    reference, heard = (_words(whisper, arrays["0.audio.2"]) for arrays in outputs)
    assert first["wer"] == pytest.approx(_edits(reference, heard) / len(reference)) and first["wer"] > 0


def _lpips(folder: Path, a: np.ndarray, b: np.ndarray) -> float:
    """LPIPS with the layers that torchmetrics has, and AlexNet's features put into its places by hand."""
    from torchmetrics.functional.image.lpips import _LPIPS

    net = _LPIPS(net="alex", pnet_rand=True)
    weights = torch.load(folder / ALEXNET, weights_only=True)
    own = net.net.state_dict()
    net.net.load_state_dict({name: weights[f"features.{name.split('.', 1)[1]}"] for name in own})
    x, y = (torch.from_numpy(each).reshape(-1, 64, 64, 3).permute(0, 3, 1, 2) / 127.5 - 1 for each in (a, b))
    return float(net(x, y).mean())


def _clip_score(folder: Path, pixels: np.ndarray, prompt: str) -> float:
    from transformers import CLIPModel, CLIPProcessor

    model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
    frames = list(pixels.reshape(-1, 64, 64, 3))
    with torch.no_grad():
        found = model(**processor(text=[prompt], images=frames, return_tensors="pt"))
        cosines = found.logits_per_image / model.logit_scale.exp()
    return float(100 * cosines.clamp(min=0).mean())


def _words(folder: Path, samples: np.ndarray) -> list[str]:
    import soxr
    from transformers import pipeline

    hear = pipeline("automatic-speech-recognition", model=str(folder), device="cpu")
    heard = {"raw": soxr.resample(samples, RATE, 16_000), "sampling_rate": 16_000}
    text = hear(heard, generate_kwargs={"num_beams": 1})["text"]
    return str(hear.tokenizer.basic_normalize(text)).split()


def _edits(reference: list[str], heard: list[str]) -> int:
    """Levenshtein's distance."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(reference, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def test_weights_that_cannot_be_read_are_one_error(pair):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ALEXNET).write_bytes(b"no weights")
        with pytest.raises(QualityWeightsError, match="cannot measure lpips: "):
            measure_pairs({"lpips": Path(folder)}, [pair])


def test_the_command_gates_them(alexnet, clip, tmp_path):
    arguments = ("bench", "-p", "tiny-image", "--vary", "image.num_inference_steps=20,30", "--num-iters", "5",
                 "--num-iters-warmup", "1", "--quality", f"lpips={alexnet}", "--quality",
                 f"clip_score={clip}", "--json")  # fmt: skip
    ended = run_omni(tmp_path, *arguments, "--quality", "lpips<=0.0000001", "--quality", "clip_score>=0")
    assert ended.code == 5 and "have lpips" in ended.err, ended.err
    (found,) = [item["outputs"] for item in ended.document["comparisons"] if item["metric"] == "e2e_s"]
    assert 0 < found["lpips"] < 10 and 0 <= found["clip_score"] < 100
    assert found["means"]["lpips"]["n"] == found["compared"] == 8
    verdicts = {item["limit"]: item["verdict"] for item in ended.document["gate"]["quality"]}
    assert verdicts == {"lpips<=1e-07": "output mismatch", "clip_score>=0": "pass"}
    weights = ended.document["environment"]["conditions"]["quality_weights"]
    assert weights == {"lpips": str(alexnet), "clip_score": str(clip)}
