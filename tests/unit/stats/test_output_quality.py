"""Distances between outputs: values that follow from the definition, and scikit-image's for structural similarity."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import UNSET

from omni_cli.measure.bench.outputs import kept_outputs
from omni_cli.stats.output_quality import (
    get_quality,
    get_worst,
    kept_distance,
    outputs_quality,
    request_qualities,
    structural_similarity,
)


def test_a_constant_error_has_the_decibels_of_its_definition() -> None:
    a = np.full((16, 16, 3), 100, np.uint8)
    found = get_quality({"0.image.0": a}, {"0.image.0": a + np.uint8(10)})
    assert found["psnr_db"] == pytest.approx(20 * np.log10(255 / 10))
    means = 100, 110
    c1 = (0.01 * 255) ** 2
    assert found["ssim"] == pytest.approx((2 * means[0] * means[1] + c1) / (means[0] ** 2 + means[1] ** 2 + c1))


def test_similarity_is_that_of_scikit_image() -> None:
    """`structural_similarity(a, b, channel_axis=2, data_range=255)` of scikit-image 0.26 gave the number."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (40, 56, 3), dtype=np.uint8)
    b = np.clip(a.astype(int) + rng.integers(-20, 21, a.shape), 0, 255).astype(np.uint8)
    assert structural_similarity(a, b) == pytest.approx(0.9875724195378006, abs=1e-12)
    assert get_quality({"0.image.0": a}, {"0.image.0": b})["psnr_db"] == pytest.approx(26.827260079150562)


def test_a_video_has_the_values_of_its_worst_frame() -> None:
    a = np.full((3, 16, 16, 3), 100, np.uint8)
    b = a.copy()
    b[1] += 20
    b[2] += 10
    found = get_quality({"0.video.0": a}, {"0.video.0": b})
    assert found["worst_frame_psnr_db"] == pytest.approx(20 * np.log10(255 / 20))
    assert found["psnr_db"] == pytest.approx(10 * np.log10(255**2 / ((400 + 100) / 3)))
    assert found["worst_frame_ssim"] < found["ssim"] < 1


def test_audio_has_the_ratio_to_the_noise_and_the_distance_of_its_spectrum() -> None:
    noise = np.random.default_rng(0).standard_normal((2, 24_000)).astype(np.float32) / 10
    a = noise[0]
    arrays = {"0.audio.0": a, "0.audio.0.rate": np.array(24_000)}
    half = get_quality(arrays, {**arrays, "0.audio.0": a / 2})
    assert half["snr_db"] == pytest.approx(20 * np.log10(2), abs=1e-3)
    assert half["log_mel_distance_db"] == pytest.approx(20 * np.log10(2), rel=1e-3), "half is 6 dB less in every band"
    other = get_quality(arrays, {**arrays, "0.audio.0": noise[1]})
    assert other["snr_db"] == pytest.approx(-20 * np.log10(2) / 2, abs=0.1), "the noise is twice the signal"
    assert 0 < other["log_mel_distance_db"] < half["log_mel_distance_db"], "another draw of the same noise"
    two = np.stack([a, a], 1)
    stereo = get_quality({"0.audio.0": two, "0.audio.0.rate": np.array(24_000)}, {"0.audio.0": two / 2})
    assert stereo == pytest.approx(half)
    assert get_quality({"0.audio.0": a}, {"0.audio.0": a / 2}) == {"snr_db": half["snr_db"]}, "no rate, no bands"


def test_tokens_have_a_share_and_a_first_difference() -> None:
    a = {"0.tokens.t": np.array([1, 2, 3]), "1.tokens.t": np.array([4, 5])}
    b = {"0.tokens.t": np.array([1, 2, 9]), "1.tokens.t": np.array([4, 5])}
    assert get_quality(a, b) == {"exact_match": 0.5, "first_difference": 2.0}
    assert get_quality(a, a) == {"exact_match": 1.0}
    longer = {**a, "1.tokens.t": np.array([4, 5, 6])}
    assert get_quality(a, longer)["first_difference"] == 2.0, "the first token that only one of them has"


def test_equal_outputs_other_shapes_and_tensors_have_no_decibels_and_the_worst_counts() -> None:
    a = np.zeros((8, 8, 3), np.uint8)
    assert get_quality({"0.image.0": a}, {"0.image.0": a}) == {}
    assert get_quality({"0.image.0": a}, {"0.image.0": a[:4]}) == {}
    assert get_quality({"0.tensor.0": np.zeros((1, 32))}, {"0.tensor.0": np.ones((1, 32))}) == {}
    assert get_worst(
        [{"psnr_db": 30.0, "log_mel_distance_db": 1.0}, {"psnr_db": 40.0, "log_mel_distance_db": 2.0}]
    ) == {
        "psnr_db": 30.0,
        "log_mel_distance_db": 2.0,
    }


def test_kept_outputs_have_the_distance_of_the_outputs() -> None:
    tone = np.sin(np.arange(8_000) / 9).astype(np.float32) / 2
    video = np.full((5, 16, 16, 3), 100, np.uint8)  # in two rows, the second of which has three black frames, too
    a = {"0.audio.0": np.stack([tone, tone], 1), "0.audio.0.rate": np.array(8_000), "0.video.1": video}
    b = {**a, "0.audio.0": a["0.audio.0"] / 2, "0.video.1": video + np.uint8(10)}
    found, exact = kept_distance(kept_outputs(a, None), kept_outputs(b, None)), get_quality(a, b)
    assert found.reduced is UNSET and found.max_abs_diff == 10
    assert found.snr_db == pytest.approx(exact["snr_db"], abs=1e-3), "in steps of 16 bits"
    assert found.log_mel_distance_db == pytest.approx(exact["log_mel_distance_db"], abs=0.5)
    assert found.psnr_db == found.worst_frame_psnr_db == pytest.approx(exact["psnr_db"])
    long = np.concatenate([video] * 3)
    sheets = kept_outputs({"0.video.0": long}, None), kept_outputs({"0.video.0": long + np.uint8(10)}, None)
    reduced = kept_distance(*sheets)
    assert reduced.reduced is True and reduced.max_abs_diff is None and reduced.psnr_db == found.psnr_db


def test_each_request_has_its_measures_and_its_outputs_the_worst() -> None:
    image = np.full((16, 16, 3), 100, np.uint8)
    a = {"0.image.0": image, "0.image.1": image, "1.image.0": image, "10.tokens.t": np.array([1])}
    b = {**a, "0.image.0": image + np.uint8(10), "0.image.1": image + np.uint8(20), "1.image.0": image + np.uint8(5)}
    first, second, third = request_qualities(a, b)
    assert first["psnr_db"] == pytest.approx(20 * np.log10(255 / 20))
    assert second["psnr_db"] > first["psnr_db"] and third == {} | {"exact_match": 1.0}, "in the order 0, 1, 10"


def test_means_have_intervals_from_eight_requests_on() -> None:
    source = np.random.default_rng(0)
    few = outputs_quality([{"psnr_db": 40.0 + index} for index in range(7)])
    assert few["psnr_db"] == 40.0 and few["compared"] == 7 and few["means"]["psnr_db"].mean == 43.0
    assert few["means"]["psnr_db"].ci95 is None
    covered = 0
    for _ in range(200):
        values = source.normal(40, 2, 12)
        low, high = outputs_quality([{"psnr_db": float(value)} for value in values])["means"]["psnr_db"].ci95
        assert low < float(np.mean(values)) < high
        covered += low <= 40 <= high
    assert covered >= 184, "95 % of 200, less three standard errors"


def test_an_output_far_off_is_not_trimmed_and_a_share_is_not_sure() -> None:
    off = outputs_quality([{"psnr_db": value} for value in [45.0] * 7 + [10.0]])
    assert off["means"]["psnr_db"].mean == pytest.approx(40.625) and off["psnr_db"] == 10.0
    equal = outputs_quality([{"exact_match": 1.0}] * 8)["means"]["exact_match"]
    assert equal.mean == 1.0 and equal.ci95 == pytest.approx((0.6756, 1.0), abs=1e-4), "Wilson's interval of 8 of 8"
    half = outputs_quality([{"exact_match": float(index % 2)} for index in range(8)])
    assert half["exact_match"] == 0.5, "the share, not the worst of the shares"


IMAGE, SOUND, RATE_OF = np.zeros((4, 4, 3), np.uint8), np.zeros(100, np.float32), np.array(24_000)


@pytest.mark.parametrize(
    ("first", "second", "unlike"),
    [
        ({"image.0": IMAGE}, {"image.0": np.zeros((4, 8, 3), np.uint8)}, {"unmatched": 1}),
        ({"image.0": IMAGE, "image.1": IMAGE}, {"image.0": IMAGE}, {"missing": 1}),
        ({"image.0": IMAGE}, {"tokens.text": np.zeros(3, np.uint8)}, {"missing": 1}),
        ({"video.0": np.stack([IMAGE] * 3)}, {"video.0": np.stack([IMAGE] * 4)}, {"unmatched": 1}),
        ({"audio.0": SOUND}, {"audio.0": SOUND[:99]}, {"unmatched": 1}),
        (
            {"audio.0": SOUND, "audio.0.rate": RATE_OF},
            {"audio.0": SOUND, "audio.0.rate": RATE_OF // 2},
            {"unmatched": 1},
        ),
        ({"audio.0": SOUND, "audio.0.rate": RATE_OF}, {"audio.0": SOUND + 1, "audio.0.rate": RATE_OF}, {}),
        ({"tokens.text": np.zeros(3, np.uint8)}, {"tokens.text": np.zeros(4, np.uint8)}, {}),
    ],
)
def test_outputs_of_another_number_size_length_or_rate_are_counted(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray], unlike: dict[str, int]
) -> None:
    """Beside a request whose outputs have a measure."""
    both = [{f"0.{name}": array for name, array in arrays.items()} for arrays in (first, second)]
    quality = outputs_quality(request_qualities({**both[0], "1.image.0": IMAGE}, {**both[1], "1.image.0": IMAGE + 1}))
    assert {name: quality[name] for name in ("unmatched", "missing") if name in quality} == unlike
    assert quality["compared"] == 2 and quality["psnr_db"] == pytest.approx(48.1, abs=0.1)


def test_kept_outputs_of_another_size_are_counted() -> None:
    large, other = (
        np.random.default_rng(seed).integers(0, 256, (1400, size, 3), np.uint8) for seed, size in ((0, 1400), (1, 1401))
    )
    kept = [kept_outputs({"0.image.0": image}, None) for image in (large, other)]
    distance = kept_distance(*kept)
    assert distance.unmatched == 1 and distance.missing is UNSET
