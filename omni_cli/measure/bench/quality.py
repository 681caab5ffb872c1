"""Measures of outputs by models: their weights, in folders that the user names, and the process that runs them, which
may need torch. Images and sounds are measured after the benchmark, words of answers between windows.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from omni_cli.core.compat.libraries import prepare_libraries
from omni_cli.core.errors import ExitCode, OmniError, UsageError
from omni_cli.core.text import suggest, visible
from omni_cli.measure.bench.outputs import load_arrays
from omni_cli.records.metrics import DELETIONS, INSERTIONS, SUBSTITUTIONS, WER, WORDS
from omni_cli.records.record import PROMPT, RATE
from omni_cli.records.results import MODEL_BASED_MEASURES
from omni_cli.stats.output_quality import get_worst

ALEXNET = "alexnet-owt-7be5be79.pth"
"""torchvision's file of AlexNet, the network of LPIPS; torchmetrics has the layers on top of it."""
# `model_type` of the checkpoints that transformers loads.
_CHECKPOINTS = {"clip_score": "clip", "wer": "whisper"}

_WHISPER_RATE = 16_000
_LONGEST = 30 * _WHISPER_RATE
_BATCH = 8
T = TypeVar("T")
Sound = tuple[np.ndarray, int]
Utterance = tuple[str, str | Sound]
"""The text that an answer should have, and its text, or its samples with their rate."""
Transcribe = Callable[[Sequence[Sound]], list[str]]
"""Returns the text of sounds, (num_samples,) or (num_samples, channels), each with its sample rate."""
Frames = Callable[[np.ndarray, np.ndarray, str], float | None]
"""Measures frames (num_frames, height, width, channels), uint8, of two variants; the second's prompt is given."""


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
    if measure == "lpips":
        if importlib.util.find_spec("torchmetrics") is None:
            hint = "install it: `pip install 'omni-cli[quality]'`"
            raise UsageError("`lpips` needs torchmetrics, which is not installed", hint=hint)
        if not (folder / ALEXNET).is_file():
            hint = "get torchvision's weights of AlexNet, and keep their name"
            raise _bad_value(f"no file `{folder / ALEXNET}`", hint)
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


@contextmanager
def _start_process(*, ignores_signals: bool = False) -> Iterator[ProcessPoolExecutor]:
    """Start the process; what it does is not waited for after an interrupt."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_keep_quiet, initargs=(ignores_signals,)) as process:
        try:
            yield process
        except BaseException:
            for child in process._processes.values():
                child.kill()
            raise


def _call(process: ProcessPoolExecutor, measures: str, function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function returns in the process. Raises `QualityWeightsError` if it fails."""
    try:
        return process.submit(function, *arguments).result()
    except Exception as error:
        why, hint = str(error) or type(error).__name__, "check the weights of `--quality MEASURE=FOLDER`"
        raise QualityWeightsError(f"cannot measure {measures}: {why}", hint=hint) from error


def _keep_quiet(ignores_signals: bool) -> None:
    """Keep what libraries print out of the command's output; signals may be for the command, which has answers left."""
    for number in (signal.SIGINT, signal.SIGTERM) if ignores_signals else ():
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    prepare_libraries()


def _end_with_parent() -> None:
    """End if the command was killed: its end of the queue is open in this process, too, which would wait for good."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


@dataclass
class WordJudge:
    """Counts the wrong words of answers; `known` are those of answers so far: what is equal is heard once."""

    process: ProcessPoolExecutor
    folder: str
    known: dict[str, dict[str, float]] = field(default_factory=dict)

    def judge(self, answers: Sequence[Utterance]) -> list[dict[str, float]]:
        """Return the errors of each answer as `count_word_errors`. Raises `QualityWeightsError` if hearing fails."""
        keys = [_hash(answer) for answer in answers]
        new = {key: answer for key, answer in zip(keys, answers, strict=True) if key not in self.known}
        self.known |= zip(new, _call(self.process, WER, _count, self.folder, list(new.values())), strict=True)
        return [self.known[key] for key in keys]


@contextmanager
def start_word_judge(folder: str | None) -> Iterator[WordJudge | None]:
    """Start the process for the Whisper in `folder`, "" for answers of text, and load it, so that this takes no time
    from requests; nothing for None. Raises `QualityWeightsError`."""
    if folder is None:
        yield None
        return
    with _start_process(ignores_signals=True) as process:
        judge = WordJudge(process, folder)
        judge.judge([])
        yield judge


def _hash(answer: Utterance) -> str:
    expected, said = answer
    content = said.encode() if isinstance(said, str) else f"{said[1]} {said[0].shape}".encode() + said[0].tobytes()
    return hashlib.sha256(expected.encode() + b"\0" + content).hexdigest()


@cache
def _load_ears(folder: str) -> tuple[Callable[[str], str], Transcribe | None]:
    """Load Whisper's normaliser of English (lower case, no punctuation, numbers as digits), and the model, if any."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    spellings = Path(folder, "normalizer.json")
    normalise = EnglishTextNormalizer(json.loads(spellings.read_text()) if spellings.is_file() else {})
    return normalise, make_transcriber(Path(folder)) if folder else None


def _count(folder: str, answers: Sequence[Utterance]) -> list[dict[str, float]]:
    normalise, transcribe = _load_ears(folder)
    sounds = [said for _, said in answers if not isinstance(said, str)]
    heard = iter(transcribe(sounds) if transcribe else ())
    texts = [said if isinstance(said, str) else next(heard) for _, said in answers]
    pairs = zip(answers, texts, strict=True)
    return [count_word_errors(normalise(expected).split(), normalise(text).split()) for (expected, _), text in pairs]


def count_word_errors(expected: Sequence[str], said: Sequence[str]) -> dict[str, float]:
    """Return the number of expected `words`, and by `WORD_ERRORS` the shares of them that are wrong.

    The errors are the fewest insertions, deletions and substitutions that turn one into the other; of several such
    ways, the one with the most substitutions counts. Without expected words, all words are wrong if there are any.
    """
    count = len(expected)
    if not count:
        wrong = float(bool(said))
        return {WORDS: 0.0, WER: wrong, DELETIONS: 0.0, INSERTIONS: wrong, SUBSTITUTIONS: 0.0}
    row = [(place, 0) for place in range(len(said) + 1)]  # errors, and deletions among them
    for number, word in enumerate(expected, start=1):
        above, row = row, [(number, number)]
        for place, other in enumerate(said, start=1):
            errors, deleted = above[place - 1]
            changed = errors + (word != other), deleted
            left_out = above[place][0] + 1, above[place][1] + 1
            row.append(min(changed, left_out, (row[-1][0] + 1, row[-1][1])))
    errors, deleted = row[-1]
    inserted = deleted + len(said) - count
    shares = {WER: errors, DELETIONS: deleted, INSERTIONS: inserted, SUBSTITUTIONS: errors - deleted - inserted}
    return {WORDS: float(count), **{name: value / count for name, value in shares.items()}}


def measure_pairs(weights: Mapping[str, Path], pairs: Sequence[tuple[Path, Path]]) -> list[list[dict[str, float]]]:
    """Return the measures of each request of each pair of files, the worst of its outputs; equal outputs have none.

    Raises `QualityWeightsError`.
    """
    with _start_process() as process:
        return _call(process, ", ".join(weights), _measure_all, dict(weights), pairs)


def _measure_all(weights: Mapping[str, Path], pairs: Sequence[tuple[Path, Path]]) -> list[list[dict[str, float]]]:
    of_frames = {name: make(weights[name]) for name, make in _OF_FRAMES.items() if name in weights}
    transcribe = make_transcriber(weights[WER], words_only=True) if WER in weights else None
    return [_pair(load_arrays(a) or {}, load_arrays(b) or {}, of_frames, transcribe) for a, b in pairs]


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
            reference, heard = (transcribe([(sound, rate)])[0].split() for sound in (a, b))
            values = {WER: count_word_errors(reference, heard)[WER]}
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

    def transcribe(sounds: Sequence[Sound]) -> list[str]:
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
