"""A model family from another package: installed, then used by every command like our own."""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.omni_process import Ended, run_omni
from support.omni_server import CHAT, IMAGES, OmniServer

PACKAGE = Path(__file__).parents[1] / "packages" / "omni-toy"
PROFILE = str(PACKAGE / "toy.yaml")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment's Python, over this one, with the package installed offline."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = str(folder / "bin" / "python")
    paths = {"base": str(folder), "platbase": str(folder)}
    below = Path(sysconfig.get_path("purelib", vars=paths)) / "below.pth"
    below.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    # A copy, for setuptools builds beside the sources.
    source = shutil.copytree(PACKAGE, folder / "source")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", source], check=True)
    return python


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An empty cache of built-in checkpoints."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture
def omni(python: str, cache: dict[str, str], tmp_path: Path) -> Callable[..., Ended]:
    """`omni(*arguments, **environment)` in the environment of the package."""

    def run(*arguments: str, **environment: str) -> Ended:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return run_omni(folder, *arguments, python=python, environment={**cache, **environment})

    return run


def check_framed(png: bytes) -> np.ndarray:
    """Return the pixels (16, 16, 3) of an image with exactly the frame that the profile sets."""
    pixels = np.array(Image.open(io.BytesIO(png)))
    assert pixels.shape == (16, 16, 3)
    assert not pixels[0].any() and not pixels[:, -1].any()
    assert pixels[1:-1, 1:-1].std() > 20
    return pixels


def test_generate_builds_and_runs_it(omni: Callable[..., Ended], tmp_path: Path) -> None:
    arguments = ("generate", "--profile", PROFILE, "--json", "-q", "--output-dir")
    ended = omni(*arguments, str(tmp_path / "out"), "hello")
    ended.check_clean()
    assert ended.code == 0, ended.err
    (result,) = ended.document["results"]
    text, image = result["outputs"]
    assert (text["type"], image["type"], len(text["token_ids"])) == ("text", "image", 16)
    writer, painter = result["stages"]
    assert (writer["num_output_tokens"], painter["num_input_tokens"]) == (16, 16)
    check_framed(Path(image["path"]).read_bytes())


@pytest.mark.nightly
def test_bench_varies_a_key_of_the_family(omni: Callable[..., Ended]) -> None:
    ended = omni(
        "bench", "--profile", PROFILE, "--json", "-q", "--num-iters", "2", "--num-iters-warmup", "1",
        "--vary", "painter.frame_pixels=0,2",
    )  # fmt: skip
    record = ended.document
    names = [variant["name"] for variant in record["variants"]]
    assert names == ["painter.frame_pixels=0", "painter.frame_pixels=2"]
    assert all("painter.latency_s" in sample["metrics"] for sample in record["variants"][0]["samples"])
    (outputs,) = {comparison["outputs"]["identical"] for comparison in record["comparisons"]}
    assert outputs is False


def test_serve_answers_with_both_of_its_outputs(python: str, cache: dict[str, str], tmp_path: Path) -> None:
    server = OmniServer(tmp_path, "--profile", PROFILE, python=python, environment=cache, warm=True)
    try:
        chat = server.request("POST", CHAT, {"model": "toy", "messages": [{"role": "user", "content": "hello"}]})
        assert chat.status == 200 and chat.document["choices"][0]["message"]["content"]
        first, again, other = [
            server.request("POST", IMAGES, {"prompt": prompt, "seed": 0}).document["data"][0]["b64_json"]
            for prompt in ("hello", "hello", "goodbye")
        ]
        assert first == again != other
        check_framed(base64.b64decode(first))
        refused = server.request("POST", "/v1/audio/speech", {"input": "hello", "voice": "any", "model": "toy"})
        assert refused.status == 404 and "makes text and image, not audio" in refused.error["message"]
    finally:
        ended = server.stop()
    assert ended.code in (0, 130) and ended.leftovers == ()


def test_a_profile_derives_from_its_checkpoint(omni: Callable[..., Ended], tmp_path: Path) -> None:
    created = omni("profiles", "create", "builtin:tiny-toy", "-o", str(tmp_path / "derived.yaml"))
    assert created.code == 0, created.err
    shown = omni("profiles", "show", str(tmp_path / "derived.yaml"))
    assert shown.code == 0 and "writer:" in shown.out and "frame_pixels: 0" in shown.out


@pytest.mark.nightly
def test_ranks_in_processes_of_their_own_know_its_models(omni: Callable[..., Ended]) -> None:
    ranks = ("--set", "writer.tensor_parallel_size=2", "--set", "writer.distributed_executor_backend=mp")
    ended = omni("generate", "--profile", PROFILE, "--json", "-q", *ranks, "hello")
    assert ended.code == 0, ended.err
    assert [output["type"] for output in ended.document["results"][0]["outputs"]] == ["text", "image"]


def test_its_keys_have_the_usual_diagnostics(omni: Callable[..., Ended]) -> None:
    misspelt = omni("generate", "--profile", PROFILE, "--set", "painter.frame_pixel=1", "hello")
    misspelt.check_error(2, "unknown key `frame_pixel`", "did you mean `frame_pixels`?")
    too_wide = omni("generate", "--profile", PROFILE, "--set", "painter.frame_pixels=5", "hello")
    too_wide.check_error(2, "frame_pixels")
    speech = omni("generate", "--profile", PROFILE, "--modalities", "audio", "hello")
    speech.check_error(2, "makes text and image, not `audio`")


@pytest.mark.nightly
def test_a_vllm_that_may_not_load_our_plugin(omni: Callable[..., Ended]) -> None:
    ended = omni("generate", "--profile", PROFILE, "-q", "hello", VLLM_PLUGINS="lora_hf_hub_resolver")
    ended.check_error(
        6,
        "VLLM_PLUGINS=lora_hf_hub_resolver keeps vLLM from loading the plugin `omni_cli`",
        "export VLLM_PLUGINS=lora_hf_hub_resolver,omni_cli",
    )


def test_this_environment_does_not_have_it(tmp_path: Path) -> None:
    """Premise of the tests above: neither its checkpoint nor its stages are known here."""
    ended = run_omni(tmp_path, "generate", "--profile", PROFILE, "hello")
    assert ended.code == 2
    assert "unknown builtin model `tiny-toy`" in ended.err and "unknown key `frame_pixels`" in ended.err
