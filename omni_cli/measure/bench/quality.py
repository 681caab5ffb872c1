"""Measures of outputs by models: their weights, in folders that the user names, and the process that runs them.

`measure_pairs` starts the process, `python -m omni_cli.measure.bench.quality` with its work on stdin as JSON, after the
benchmark, so that it takes nothing from what is measured.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omni_cli.core.child_python import python_command
from omni_cli.core.compat.libraries import prepare_libraries
from omni_cli.core.errors import ExitCode, OmniError, UsageError
from omni_cli.core.text import suggest, visible
from omni_cli.measure.bench.outputs import load_arrays
from omni_cli.records.metrics import WER
from omni_cli.records.record import PROMPT, RATE
from omni_cli.records.results import MODEL_BASED_MEASURES
from omni_cli.stats.output_quality import get_worst
from omni_cli.stats.word_errors import count_word_errors

ALEXNET = "alexnet-owt-7be5be79.pth"
"""torchvision's file of AlexNet, the network of LPIPS; torchmetrics has the layers on top of it."""
# `model_type` of the checkpoints that transformers loads.
_CHECKPOINTS = {"clip_score": "clip", "wer": "whisper"}
_NEEDS_TORCHMETRICS = ("lpips",)

_WHISPER_RATE = 16_000
_LONGEST = 30 * _WHISPER_RATE
_BATCH = 8
Transcribe = Callable[[Sequence[tuple[np.ndarray, int]]], list[str]]
"""Returns the text of sounds, (num_samples,) or (num_samples, channels), each with its sample rate."""
Frames = Callable[[np.ndarray, np.ndarray, str], float | None]
"""Measures frames (num_frames, height, width, channels), uint8, of two variants; the second's prompt is given."""


class Measurement(msgspec.Struct, frozen=True):
    """Work of the process: folders of weights by measure, and pairs of files with outputs."""

    weights: dict[str, str]
    pairs: list[tuple[str, str]]


class QualityWeightsError(OmniError):
    exit_code = ExitCode.RUN_FAILED


def parse_weights(texts: Sequence[str]) -> dict[str, Path]:
    """Parse `lpips=FOLDER` and check the folders. Raises `UsageError`."""
    folders: dict[str, Path] = {}
    for text in texts:
        name, _, folder = text.partition("=")
        if name not in MODEL_BASED_MEASURES:
            hint = suggest(name, MODEL_BASED_MEASURES) or f"there are {', '.join(MODEL_BASED_MEASURES)}"
            raise _bad_value(f"no measure `{visible(name, 40)}` with weights", hint)
        folders[name] = Path(folder)
        _check_folder(name, folders[name])
    return folders


def _check_folder(measure: str, folder: Path) -> None:
    if measure in _NEEDS_TORCHMETRICS and importlib.util.find_spec("torchmetrics") is None:
        hint = "install it: `pip install 'omni-cli[quality]'`"
        raise UsageError(f"`{measure}` needs torchmetrics, which is not installed", hint=hint)
    if measure == "lpips":
        if not (folder / ALEXNET).is_file():
            raise _bad_value(
                f"no file `{folder / ALEXNET}`", "get torchvision's weights of AlexNet, and keep their name"
            )
        return
    kind = _CHECKPOINTS[measure]
    try:
        model_type = json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise _bad_value(f"no checkpoint in `{folder}`: cannot read its config.json", f"name one of {kind}") from error
    if model_type != kind:
        raise _bad_value(f"`{measure}` needs a checkpoint of {kind}, and `{folder}` has one of {model_type}", None)


def _bad_value(why: str, hint: str | None) -> UsageError:
    return UsageError(f"invalid value for `--quality`: {why}", hint=hint)


def measure_pairs(weights: Mapping[str, Path], pairs: Sequence[tuple[Path, Path]]) -> list[list[dict[str, float]]]:
    """Return the measures of each request of each pair of files, in a process of its own, since they need torch.

    Raises `QualityWeightsError` if the process fails.
    """
    work = Measurement(
        {name: str(folder.absolute()) for name, folder in weights.items()}, [(str(a), str(b)) for a, b in pairs]
    )
    ended = subprocess.run(
        python_command("-m", "omni_cli.measure.bench.quality"),
        input=msgspec.json.encode(work),
        capture_output=True,
    )
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        names = ", ".join(weights)
        raise QualityWeightsError(f"cannot measure {names}: {lines[-1]}", hint="check the weights: `-v` shows more")
    return msgspec.json.decode(ended.stdout, type=list[list[dict[str, float]]])


def measure_all(work: Measurement) -> list[list[dict[str, float]]]:
    """Return the measures of each request of each pair, the worst of its outputs; equal outputs have none."""
    of_frames = {name: make(Path(work.weights[name])) for name, make in _OF_FRAMES.items() if name in work.weights}
    transcribe = make_transcriber(Path(work.weights["wer"]), words_only=True) if "wer" in work.weights else None
    return [_pair(load_arrays(Path(a)) or {}, load_arrays(Path(b)) or {}, of_frames, transcribe) for a, b in work.pairs]


def _pair(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    of_frames: Mapping[str, Frames],
    transcribe: Transcribe | None,
) -> list[dict[str, float]]:
    by_request: dict[str, dict[str, float]] = {}
    for name in sorted(first.keys() & second.keys()):
        (request, kind), a, b = name.split(".")[:2], first[name], second[name]
        measures = by_request.setdefault(request, {})
        if np.array_equal(a, b):
            continue
        if kind in ("image", "video"):
            (a, b), prompt = (a, b) if kind == "video" else (a[None], b[None]), str(second.get(request + PROMPT, ""))
            values = {measure: of(a, b, prompt) for measure, of in of_frames.items()}
        elif kind == "audio" and name + RATE in first and transcribe is not None:
            rate = int(first[name + RATE])
            values = {"wer": _word_error_rate(*(transcribe([(sound, rate)])[0] for sound in (a, b)))}
        else:
            continue
        known = {measure: value for measure, value in values.items() if value is not None}
        by_request[request] = get_worst([measures, known])
    return list(by_request.values())


def _lpips(folder: Path) -> Frames:
    import torch
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

    # torchvision unpickles it, wherever torch's hub keeps its files.
    torch.load(folder / ALEXNET, weights_only=True, map_location="cpu")
    with tempfile.TemporaryDirectory(prefix="omni-lpips-") as hub:
        kept = Path(hub, "checkpoints", ALEXNET)
        kept.parent.mkdir()
        kept.symlink_to((folder / ALEXNET).absolute())
        torch.hub.set_dir(hub)
        model = LearnedPerceptualImagePatchSimilarity(net_type="alex", normalize=True).to(_device())

    def distance(a: np.ndarray, b: np.ndarray, _prompt: str) -> float | None:
        """Return the mean over the frames; None for sizes that differ."""
        if a.shape != b.shape:
            return None
        x, y = (torch.from_numpy(frames[..., :3].copy()).permute(0, 3, 1, 2).to(_device()) / 255 for frames in (a, b))
        with torch.inference_mode():
            value = float(model(x, y))
        model.reset()
        return value

    return distance


def _clip_score(folder: Path) -> Frames:
    import torch
    from transformers import AutoProcessor, CLIPModel

    model, processor = _load_model(CLIPModel, folder), AutoProcessor.from_pretrained(folder, local_files_only=True)

    def score(_a: np.ndarray, b: np.ndarray, prompt: str) -> float | None:
        """Return 100 times the cosine of the image and its prompt, at least 0, the mean over the frames."""
        if not prompt:
            return None
        images = [np.ascontiguousarray(frame[..., :3]) for frame in b]
        inputs = processor(text=[prompt], images=images, return_tensors="pt", padding=True, truncation=True)
        with torch.inference_mode():
            embedded = model(**inputs.to(_device()))
        return float(100 * (embedded.image_embeds @ embedded.text_embeds.T).clamp(min=0).mean())

    return score


def make_transcriber(folder: Path, *, words_only: bool = False) -> Transcribe:
    """Load a Whisper; with `words_only`, its texts are lower-case and without punctuation."""
    import soxr
    import torch
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    model = _load_model(WhisperForConditionalGeneration, folder)
    processor = AutoProcessor.from_pretrained(folder, local_files_only=True)

    def hear(sounds: Sequence[np.ndarray]) -> list[str]:
        is_long = len(sounds[0]) > _LONGEST
        whole = {"truncation": False, "padding": "longest"} if is_long else {}
        kwargs = {"sampling_rate": _WHISPER_RATE, "return_tensors": "pt", "return_attention_mask": True}
        inputs = processor(list(sounds), **kwargs, **whole)
        with torch.inference_mode():
            tokens = model.generate(**inputs.to(_device()), **({"return_timestamps": True} if is_long else {}))
        texts = processor.batch_decode(tokens, skip_special_tokens=True)
        return [str(processor.tokenizer.basic_normalize(text)) if words_only else str(text) for text in texts]

    def transcribe(sounds: Sequence[tuple[np.ndarray, int]]) -> list[str]:
        mono = [(samples if samples.ndim == 1 else samples.mean(axis=1), rate) for samples, rate in sounds]
        heard = [soxr.resample(samples.astype(np.float32), rate, _WHISPER_RATE) for samples, rate in mono]
        texts = [""] * len(heard)
        # Whisper hears 30 s at once, together with others; of a longer sound one part after the other.
        short = [place for place, sound in enumerate(heard) if 0 < len(sound) <= _LONGEST]
        batches = [short[start : start + _BATCH] for start in range(0, len(short), _BATCH)]
        batches += [[place] for place, sound in enumerate(heard) if len(sound) > _LONGEST]
        for places in batches:
            for place, text in zip(places, hear([heard[place] for place in places]), strict=True):
                texts[place] = text
        return texts

    return transcribe


def _word_error_rate(reference: str, heard: str) -> float:
    """Return the word error rate; without words in the reference, 1 if there are any in the other."""
    return count_word_errors(reference.split(), heard.split())[WER]


def _load_model(kind: Any, folder: Path) -> Any:
    """Load a model with all its weights. Raises `ValueError` if some are missing."""
    model, info = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"{folder} lacks {len(missing)} of its weights, the first is {missing[0]}")
    return model.eval().to(_device())


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


_OF_FRAMES = {"lpips": _lpips, "clip_score": _clip_score}


def main() -> None:
    # Libraries print; the answer must be the only thing on stdout.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=Measurement)
    prepare_libraries()
    with answer:
        answer.write(msgspec.json.encode(measure_all(work)))


if __name__ == "__main__":
    main()
