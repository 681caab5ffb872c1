"""Distances between the outputs of two variants, by kind: tokens, images, videos, audio."""

from __future__ import annotations

import io
import warnings
import wave
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import UNSET

from omni_cli.core.errors import InputError
from omni_cli.records.record import ANSWERS, NO_OUTPUTS, PROMPT, RATE, SHEET_COLUMNS, KeptOutput, Record, Variant
from omni_cli.records.results import MeasureMean, Outputs
from omni_cli.stats.estimate import MIN_BLOCKS, get_centre, share_interval

_PEAK = 255.0
_WINDOW = 7
_NUM_MELS, _FFT, _HOP = 80, 1024, 256
_FLOOR = 1e-10
# The worse of two values of a measure.
_WORSE: dict[str, Callable[[float, float], float]] = {"log_mel_distance_db": max, "lpips": max, "wer": max}


def get_quality(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the measures of outputs by their names; of several outputs the worst value, of tokens the share.

    Equal images and audio have no decibels, so they are left out, as are outputs of different shapes, and tensors.
    """
    worst: dict[str, float] = {}
    for name in sorted(first.keys() & second.keys()):
        kind, a, b = name.split(".")[1], first[name], second[name]
        if name.endswith(RATE) or kind in ("tokens", "tensor", "prompt") or a.shape != b.shape or np.array_equal(a, b):
            continue
        if kind == "audio":
            measures = _audio(a, b, first.get(name + RATE))
        else:
            measures = _frames(a[None] if kind == "image" else a, b[None] if kind == "image" else b)
        worst = get_worst([worst, measures])
    return worst | _tokens(first, second)


def request_qualities(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
    """Return the measures of each request's outputs; the names of outputs begin with the request's number.

    One with an image, a video or a sound that a side lacks is `missing`; with one of another size, length or rate, it
    is `unmatched`.
    """
    measures = []
    for request in sorted({name.partition(".")[0] for name in (*first, *second)}):
        a, b = ({name: a[name] for name in a if name.partition(".")[0] == request} for a in (first, second))
        forms = _forms(a), _forms(b)
        unlike = "missing" if forms[0].keys() != forms[1].keys() else "unmatched"
        measures.append(get_quality(a, b) | ({unlike: 1.0} if forms[0] != forms[1] else {}))
    return measures


def _forms(arrays: Mapping[str, np.ndarray]) -> dict[str, object]:
    """Return the shapes of outputs that are measured at each place, and the rates of sounds."""
    measured = {name: a for name, a in arrays.items() if name.split(".")[1] in ("image", "video", "audio")}
    return {name: a.tolist() if name.endswith(RATE) else a.shape for name, a in measured.items()}


def outputs_quality(requests: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the fields of `Outputs` for the measures of several requests: the worst values, and means with intervals.

    The worst of shares is their mean.
    """
    unlike = {name: count for name in ("unmatched", "missing") if (count := sum(name in item for item in requests))}
    worst = {name: value for name, value in get_worst(requests).items() if name not in unlike}
    means = {name: _spread(name, [measures[name] for measures in requests if name in measures]) for name in worst}
    if "exact_match" in means:
        worst["exact_match"] = means["exact_match"].mean
    return {**worst, **unlike, "compared": len(requests), "means": means} if means or unlike else worst


def _spread(name: str, values: Sequence[float]) -> MeasureMean:
    count, mean = len(values), float(np.mean(values))
    if count < MIN_BLOCKS:
        return MeasureMean(count, mean)
    if name == "exact_match":
        # A share: equal values do not show that others would be equal, so Wilson's interval and not the bootstrap's.
        low, high = share_interval(mean, count)
    else:
        # Not trimmed: the output that is furthest off counts.
        low, high = get_centre(np.array(values), trim=0).interval(0.05)
    return MeasureMean(count, mean, (float(low), float(high)) if np.isfinite([low, high]).all() else None)


def max_abs_difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float | None:
    """Return the largest difference of any sample or pixel; None for one without a size (other tokens or lengths)."""
    a, b = ({name: array for name, array in arrays.items() if not name.endswith((RATE, PROMPT))} for arrays in (a, b))
    if a.keys() != b.keys():
        return None
    largest = 0.0
    for name, left in a.items():
        right = b[name]
        if left.shape != right.shape:
            return None
        if ".tokens." in name:
            if not np.array_equal(left, right):
                return None
        elif left.size:
            gap = np.abs(left.astype(np.float64) - right.astype(np.float64)).max()
            largest = max(largest, float(gap))
    return largest


def is_identical(a: str | None, b: str | None) -> bool | None:
    """Compare hashes of outputs; None if there is nothing to compare, or if they are of other parts of answers."""
    if a is None or b is None or a.startswith(ANSWERS) != b.startswith(ANSWERS) or a == b == NO_OUTPUTS:
        return None
    return a == b


def compare_outputs(a: Variant, b: Variant, records: Sequence[Record]) -> Outputs:
    """Compare by hash; a difference is the one measured during the run, else that of the outputs which are kept."""
    identical = is_identical(a.output_sha256, b.output_sha256)
    if len(records) == 1:  # the hashes are those of the first window, the comparison is that of all
        measured = [entry.outputs for entry in records[0].comparisons if (entry.a, entry.b) == (a.name, b.name)]
        if measured:
            return measured[-1]
    if identical is False and a.outputs and b.outputs:
        return kept_distance(a.outputs, b.outputs)
    return Outputs(identical, 0.0 if identical else None)


def kept_distance(a: Sequence[KeptOutput], b: Sequence[KeptOutput]) -> Outputs:
    """Return the distance of the outputs that two variants keep, which differ."""
    first, second = kept_arrays(a), kept_arrays(b)
    common = [item for item in (*a, *b) if item.name in first and item.name in second]
    # Of two sizes, which the copies may not have.
    sizes = [{item.name: item.text for item in items} for items in (a, b)]
    unmatched = {item.name.partition(".")[0] for item in common if sizes[0][item.name] != sizes[1][item.name]}
    missing = {name.partition(".")[0] for name in first.keys() ^ second.keys()}
    quality: dict[str, Any] = {"unmatched": len(unmatched) or UNSET, "missing": len(missing) or UNSET}
    is_reduced = not all(item.whole for item in common)
    largest = None if is_reduced else max_abs_difference(first, second)
    # Equal copies would claim that the outputs are equal.
    quality |= get_quality(first, second)
    return Outputs(False, largest or None, **quality, reduced=True if is_reduced else UNSET)


def kept_arrays(outputs: Iterable[KeptOutput]) -> dict[str, np.ndarray]:
    """Decode the outputs that a record keeps, by name: pixels uint8, samples float32 in steps of 16 bits.

    Raises `InputError` for an output that cannot be decoded.
    """
    arrays: dict[str, np.ndarray] = {}
    for output in outputs:
        try:
            if output.kind == "audio":
                arrays[output.name], rate = read_wav(output.data)
                arrays[output.name + RATE] = np.array(rate)
            else:
                pixels = _pixels(output.data)
                arrays[output.name] = pixels if output.frames is None else _from_sheet(pixels, output.frames)
        except (OSError, EOFError, ValueError, IndexError, SyntaxError, ArithmeticError, wave.Error) as error:
            raise InputError(
                f"the output `{output.name}` of a record cannot be decoded: {error}",
                hint="measure again with `--output-json`",
            ) from error
    return arrays


def read_wav(data: bytes, full_scale: int = 32767) -> tuple[np.ndarray, int]:
    """Return the samples of 16 bits, float32 (num_samples,) or (num_samples, channels), and their rate."""
    with wave.open(io.BytesIO(data)) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"the sound has samples of {8 * file.getsampwidth()} bits, not 16")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / full_scale
        channels, rate = file.getnchannels(), file.getframerate()
    return samples if channels == 1 else samples.reshape(-1, channels), rate


def _pixels(data: bytes) -> np.ndarray:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
                return np.asarray(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError("it has more pixels than any record keeps") from error


def _from_sheet(pixels: np.ndarray, num_frames: int) -> np.ndarray:
    """Cut a sheet into its frames (num_frames, height, width, channels); black ones fill its last row."""
    rows = -(-num_frames // SHEET_COLUMNS)
    height, width = pixels.shape[0] // rows, pixels.shape[1] // SHEET_COLUMNS
    tiles = pixels[: rows * height, : SHEET_COLUMNS * width].reshape(rows, height, SHEET_COLUMNS, width, -1)
    return tiles.swapaxes(1, 2).reshape(-1, height, width, pixels.shape[2])[:num_frames]


def get_worst(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the worst value of each measure."""
    worst: dict[str, float] = {}
    for measures in several:
        for name, value in measures.items():
            worst[name] = _WORSE.get(name, min)(worst[name], value) if name in worst else value
    return worst


def _tokens(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`exact_match` is the share of equal sequences, `first_difference` the earliest position that differs."""
    names = [name for name in first.keys() & second.keys() if ".tokens." in name]
    differing = [name for name in names if not np.array_equal(first[name], second[name])]
    if not names:
        return {}
    measures = {"exact_match": 1 - len(differing) / len(names)}
    if differing:
        measures["first_difference"] = float(min(first_difference(first[name], second[name]) for name in differing))
    return measures


def first_difference(a: Sequence[int] | np.ndarray, b: Sequence[int] | np.ndarray) -> int:
    """Return the first position at which two series differ, or where the shorter one ends."""
    shorter = min(len(a), len(b))
    unequal = np.flatnonzero(np.asarray(a[:shorter]) != np.asarray(b[:shorter]))
    return int(unequal[0]) if len(unequal) else shorter


def _frames(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Measure uint8 images (num_frames, height, width, channels); of several frames also the worst one."""
    errors = [float(np.mean((x.astype(np.float64) - y) ** 2)) for x, y in zip(a, b, strict=True)]
    similar = [structural_similarity(x, y) for x, y in zip(a, b, strict=True)]
    measures = {"psnr_db": _psnr(float(np.mean(errors))), "ssim": float(np.mean(similar))}
    if len(errors) > 1:
        measures |= {"worst_frame_psnr_db": _psnr(max(errors)), "worst_frame_ssim": min(similar)}
    return measures


def _psnr(error: float) -> float:
    return float(10 * np.log10(_PEAK**2 / error))


def structural_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean SSIM of uint8 images (height, width, channels): windows of 7x7, sample covariance."""
    size = min(_WINDOW, *a.shape[:2])
    count = size * size
    x, y = a.astype(np.float64), b.astype(np.float64)
    mean_x, mean_y = _box(x, size), _box(y, size)
    scale = count / max(count - 1, 1)
    var_x, var_y = scale * (_box(x * x, size) - mean_x**2), scale * (_box(y * y, size) - mean_y**2)
    covariance = scale * (_box(x * y, size) - mean_x * mean_y)
    c1, c2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2
    similar = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return float(np.mean(similar / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))))


def _box(values: np.ndarray, size: int) -> np.ndarray:
    """Average every window of `size` x `size` pixels."""
    for axis in (0, 1):
        total = np.cumsum(values, axis=axis)
        total = np.concatenate([np.zeros_like(np.take(total, [0], axis)), total], axis=axis)
        length = total.shape[axis]
        upper, lower = np.arange(size, length), np.arange(length - size)
        values = (np.take(total, upper, axis) - np.take(total, lower, axis)) / size
    return values


def _audio(a: np.ndarray, b: np.ndarray, rate: np.ndarray | None) -> dict[str, float]:
    """Measure float samples (num_samples,) or (num_samples, channels)."""
    signal = float(np.sum(a.astype(np.float64) ** 2))
    noise = float(np.sum((a.astype(np.float64) - b) ** 2))
    measures = {"snr_db": float(10 * np.log10(signal / noise))} if signal > 0 else {}
    if rate is None:
        return measures
    channels = zip(np.atleast_2d(a.T), np.atleast_2d(b.T), strict=True)
    gaps = [_log_mel(x, int(rate)) - _log_mel(y, int(rate)) for x, y in channels]
    distances = [np.sqrt(np.mean(gap**2, axis=-1)) for gap in gaps]
    return {**measures, "log_mel_distance_db": float(np.mean(distances))}


def _log_mel(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return the power in decibels, (num_windows, mels): windows of 1,024 samples, 256 apart."""
    padded = np.pad(samples.astype(np.float64), (0, max(0, _FFT - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    power = np.abs(np.fft.rfft(windows * np.hanning(_FFT), axis=-1)) ** 2 / _FFT
    decibels: np.ndarray = 10 * np.log10(np.maximum(power @ _mel_filters(rate), _FLOOR))
    return decibels


def _mel_filters(rate: int) -> np.ndarray:
    """Return triangles (frequencies, mels) with equal distances on the mel scale, from 0 to half the rate."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, _NUM_MELS + 2) / 2595) - 1)
    frequencies = np.linspace(0, rate / 2, _FFT // 2 + 1)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    triangles: np.ndarray = np.maximum(0, np.minimum(rising, falling))
    return triangles
