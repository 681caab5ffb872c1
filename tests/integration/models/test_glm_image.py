"""GLM-Image's chain against diffusers' own pipeline: the same tokens, and the same image bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.request_fields import with_fields
from support.samples import sample

from omni_cli.checkpoints.build import build_folder
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.checkpoints.tiny import DecoderSizes
from omni_cli.checkpoints.tiny_pipelines import GlmImageSizes, glm_image
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import InputError
from omni_cli.models.glm_image.prompts import mrope_positions
from omni_cli.models.glm_image.reference import GlmImageReference
from omni_cli.models.scores import Way
from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import GenerateRequest, ImageOutput, RequestResult

NUM_STEPS = 4
OTHER_SIZES = GlmImageSizes(
    num_text_tokens=640,
    num_image_tokens=1000,
    vision_vocab_size=1100,
    decoder=DecoderSizes(256, 320, 3, 4, 2, 64),
    vision_hidden_size=32,
    glyph_size=96,
    vae_width=8,
)


class Reference(GlmImageReference):
    """The product's reference, called with plain values."""

    def __init__(self, model: str) -> None:
        config = load_profile("tiny-glm-image", overrides=(f"decoder.num_inference_steps={NUM_STEPS}",))
        super().__init__(Path(model), config, Way("float32"))

    def __call__(
        self,
        prompt: str,
        seed: int,
        height: int,
        width: int,
        images: Sequence[np.ndarray] = (),
        *,
        greedy: bool = False,
    ) -> np.ndarray:
        size = {"height": height, "width": width}
        asked = GenerateRequest("0", prompt, seed=seed, media=Media(images=tuple(images)), diffusion=size)
        return self.run(asked, greedy=greedy)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(resolve_model("builtin:tiny-glm-image"))


@pytest.fixture(scope="module")
def chain(start_engine: Any) -> Any:
    return start_engine("tiny-glm-image")


def random_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def request(name: str, prompt: str, seed: int = 0, *, greedy: bool = False, **given: Any) -> GenerateRequest:
    sampling = {"temperature": 0.0} if greedy else {}
    return with_fields(GenerateRequest(name, prompt, seed=seed, sampling=sampling), **given)


def token_ids(result: RequestResult) -> list[int]:
    assert result.error is None, result.error
    return list(result.stages[0].output_token_ids or ())


def pixels(result: RequestResult) -> np.ndarray:
    assert result.error is None, result.error
    (output,) = result.outputs
    assert isinstance(output, ImageOutput)
    return output.pixels


SIGN = "a sign that says 'open' and \"closed\""


@pytest.mark.parametrize(
    ("prompt", "seed", "height", "width", "greedy"),
    [
        ("a red lighthouse", 0, 64, 64, True),
        (SIGN, 3, 96, 160, False),
        pytest.param(SIGN, 3, 96, 160, True, marks=pytest.mark.nightly),
        pytest.param("a red lighthouse", 0, 64, 64, False, marks=pytest.mark.nightly),
    ],
)
def test_tokens_and_image_equal_the_pipeline(
    chain: Any, reference: Reference, prompt: str, seed: int, height: int, width: int, greedy: bool
) -> None:
    size = {"height": height, "width": width}
    result = chain.run(request("one", prompt, seed, greedy=greedy, diffusion=size))
    expected = reference(prompt, seed, height, width, greedy=greedy)
    assert token_ids(result) == list(reference.token_ids[:-1])
    assert len(set(token_ids(result))) > 20
    assert np.array_equal(pixels(result), expected)


def test_the_pipeline_cannot_edit_without_a_workaround() -> None:
    """If this fails, diffusers has fixed the bug: remove the workaround from `GlmImageReference`."""
    from diffusers import GlmImagePipeline

    pipeline = GlmImagePipeline.from_pretrained(resolve_model("builtin:tiny-glm-image"), dtype=torch.float32)
    with pytest.raises(RuntimeError, match=r"expected input.* to have 64 channels"):
        pipeline("make it blue", image=[Image.fromarray(random_image(64, 64))], height=64, width=64)


@pytest.mark.parametrize("sizes", [[(96, 64)], [(64, 64), (64, 64)]])
def test_edited_images_equal_the_pipeline(chain: Any, reference: Reference, sizes: list[tuple[int, int]]) -> None:
    images = tuple(random_image(height, width, index) for index, (height, width) in enumerate(sizes))
    result = chain.run(request("edit", "make it blue", 1, images=images, diffusion={"height": 64, "width": 96}))
    expected = reference("make it blue", 1, 64, 96, images)
    assert token_ids(result) == list(reference.token_ids[:-1])
    assert np.array_equal(pixels(result), expected)
    other = chain.run(
        request("other", "make it blue", 1, images=(random_image(96, 64, 9),), diffusion={"height": 64, "width": 96})
    )
    assert token_ids(other) != token_ids(result)


@pytest.mark.parametrize("images", [[], [(2, 3)], [(4, 1), (2, 2)]])
def test_positions_equal_those_of_transformers(reference: Reference, images: list[tuple[int, int]]) -> None:
    start, end = 16384, 16385
    targets = [(3, 5)] if images else [(3, 5), (12, 20)]
    tokens = [17000]
    for rows, columns in images:
        tokens += [start, *range(rows * columns), end, 17001]
    tokens += [17002, 17003, start]
    model = reference.pipeline.vision_language_encoder.model
    grids = torch.tensor([[1, *grid] for grid in (*images, *targets)])
    prompt, _ = model.get_rope_index(torch.tensor([tokens]), grids, torch.tensor([len(grids)]))
    expected = torch.cat([prompt[:, 0], model._cached_decode_position_ids[0]], dim=1)
    assert torch.equal(mrope_positions(tokens, start, images, targets[::-1]), expected)


def test_eight_at_once_equal_to_alone(chain: Any) -> None:
    given: list[dict[str, Any]] = [
        {"images": (random_image(64, 64),)} if index % 4 == 3 else {"diffusion": {"height": 64 + 32 * (index % 2)}}
        for index in range(8)
    ]
    requests = [request(str(index), f"a lighthouse, number {index}", index, **given[index]) for index in range(8)]
    together = chain.run_all(requests)
    for index in (0, 3, 5, 7):
        result, alone = together[index], chain.run(requests[index])
        assert token_ids(alone) == token_ids(result)
        assert np.array_equal(pixels(alone), pixels(result))


def test_the_size_determines_the_number_of_tokens(chain: Any) -> None:
    """Count the tokens of the image, and of a preview of 256 in the same proportions."""
    for size, number in (((64, 64), 256 + 4), ((64, 128), 11 * 22 + 8), ((128, 96), 18 * 13 + 12)):
        height, width = size
        result = chain.run(request("size", "snow", diffusion={"height": height, "width": width}))
        assert result.stages[0].num_output_tokens == number
        assert pixels(result).shape == (height, width, 3)


def test_wrong_requests_fail_alone(chain: Any) -> None:
    wrong = {
        "height": (request("height", "snow", diffusion={"height": 100}), "multiple of 32 for this model, not 100"),
        "long": (request("long", "snow", diffusion={"height": 2048, "width": 2048}), "takes 4352 tokens"),
        "prompt": (request("prompt", "  "), "the prompt is empty"),
        "length": (GenerateRequest("length", "snow", sampling={"max_tokens": 9}), "sampling has no `max_tokens`"),
        "reserved": (request("reserved", "an <|image|>"), "the prompt contains `<|image|>`"),
        "negative": (request("negative", "snow", diffusion={"negative_prompt": "rain"}), "takes no `negative_prompt`"),
        "image": (request("image", "snow", images=(random_image(80, 80),)), "cannot use an image of 80x80 pixels"),
        "narrow": (request("narrow", "snow", images=(random_image(64, 640),)), "aspect ratio"),
    }
    results = chain.run_all([request("good", "snow"), *(one for one, _ in wrong.values())])
    assert results[0].error is None
    for result in results[1:]:
        assert isinstance(result.error, InputError), (result.request_id, result.error)
        assert wrong[result.request_id][1] in result.error.message
        assert "\n" not in result.error.message


RANKS = {"tensor": "prior.tensor_parallel_size=2", "pipeline": "prior.pipeline_parallel_size=2"}


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two ranks need two CUDA devices, or none")
@pytest.mark.parametrize("ranks", sample([*RANKS], ["pipeline"]))
def test_equal_on_two_ranks(start_brief_engine: Any, chain: Any, ranks: str) -> None:
    several = start_brief_engine("tiny-glm-image", RANKS[ranks])
    requests = [
        request("greedy", SIGN, greedy=True),
        request("sampled", SIGN, 3, diffusion={"height": 96, "width": 160}),
        request("edit", "make it blue", 1, images=(random_image(96, 64), random_image(64, 64))),
    ]
    for alone, result in zip(chain.run_all(requests), several.run_all(requests), strict=True):
        assert token_ids(alone) == token_ids(result)
        assert np.array_equal(pixels(alone), pixels(result))


def test_other_sizes_preempted_and_in_chunks(start_brief_engine: Any, tmp_path: Path) -> None:
    """A KV cache for two of three requests, and prompts over several steps, greedy and sampled."""
    glm_image(OTHER_SIZES).write(tmp_path, seed=5)
    tight = start_brief_engine(
        "tiny-glm-image",
        "prior.max_model_len=512",
        "prior.max_num_batched_tokens=16",
        "prior.kv_cache_memory_bytes=2400000",
        model=str(tmp_path),
    )
    requests = [
        request(str(index), f"a lighthouse in the snow {index}", index, greedy=index == 2) for index in range(3)
    ]
    results = tight.run_all(requests)
    other = Reference(str(tmp_path))
    for one, result in zip(requests, results, strict=True):
        expected = other(one.prompt, one.seed, 64, 64, greedy=bool(one.sampling))
        assert token_ids(result) == list(other.token_ids[:-1])
        assert np.array_equal(pixels(result), expected)


def test_the_same_seed_builds_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert build_folder("tiny-glm-image", tmp_path / name, seed=3)
    files = sorted(file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file())
    assert len(files) > 15
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    assert build_folder("tiny-glm-image", tmp_path / "other", seed=4)
    weights = "vision_language_encoder/model.safetensors"
    assert (tmp_path / "one" / weights).read_bytes() != (tmp_path / "other" / weights).read_bytes()
