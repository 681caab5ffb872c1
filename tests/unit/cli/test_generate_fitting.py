"""Changes that `omni generate` makes to a profile for the requests that it knows."""

from __future__ import annotations

import pytest

from omni_cli.cli.generate.inputs import fit_to_requests
from omni_cli.config.loader import load_profile
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.request_spec import RequestSpec


def specs(*sizes: dict[str, int]) -> list[RequestSpec]:
    return [RequestSpec(GenerateRequest(str(index), "a cat", diffusion=size)) for index, size in enumerate(sizes)]


def fitted(profile: str, *sizes: dict[str, int], makes_video: bool = False):
    return fit_to_requests(load_profile(profile), specs(*sizes), makes_video=makes_video).stages[-1]


def test_few_requests_run_eagerly_and_many_or_a_video_choose():
    assert load_profile("qwen-image").stages[-1].execution is None
    assert fitted("qwen-image", *[{}] * 7).execution == "eager"
    assert fitted("qwen-image", *[{}] * 8).execution is None
    assert fitted("wan2.2-t2v", {}, makes_video=True).execution is None
    float8 = load_profile("qwen-image", overrides=["image.quantization=float8_dynamic"])
    assert fit_to_requests(float8, specs({}), makes_video=False).stages[-1].execution == "compile"


def test_a_mode_of_the_profile_stays():
    config = load_profile("qwen-image", overrides=["image.execution=compile"])
    assert fit_to_requests(config, specs({}), makes_video=False).stages[-1].execution == "compile"


@pytest.mark.parametrize(
    ("sizes", "size"),
    [
        ([{"height": 512, "width": 768}], (512, 768)),
        ([{"height": 512}, {"height": 512}], (512, 1328)),
        ([{"height": 512}, {"height": 640}], (1328, 1328)),
        ([{"height": 512}, {}], (1328, 1328)),
        ([{}], (1328, 1328)),
    ],
)
def test_it_warms_up_at_the_size_that_all_requests_share(sizes, size):
    stage = fitted("qwen-image", *sizes)
    assert (stage.height, stage.width) == size


def test_other_stages_stay():
    config = load_profile("tiny-omni")
    assert fit_to_requests(config, specs({}), makes_video=False) == config
