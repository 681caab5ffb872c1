"""The built checkpoints: the same bytes everywhere, complete for Hugging Face, vLLM and diffusers, lively outputs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.samples import sample

from omni_cli.checkpoints.build import build_folder
from omni_cli.checkpoints.files import check_checkpoint, count_parameters, read_model_kind
from omni_cli.checkpoints.tiny import DecoderSizes
from omni_cli.checkpoints.tiny_qwen import SMALL_SIZES, OmniSizes, VocoderSizes, qwen2_5_omni
from omni_cli.core.errors import OutputError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

RESOLVE = "import sys; from omni_cli.checkpoints.resolve import resolve_model; print(*map(resolve_model, sys.argv[1:]))"
OTHER_SIZES = OmniSizes(
    vocab_size=640,
    num_codes=100,
    thinker=DecoderSizes(256, 320, 3, 4, 1, 64),
    talker=DecoderSizes(192, 256, 1, 2, 2, 64),
    token2wav=VocoderSizes(96, 3, 3, 32, 48, 128),
)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def start(code: str, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> str:
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return stdout.strip()


@pytest.fixture(scope="module")
def omni_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "tiny-omni"
    assert build_folder("tiny-omni", folder, seed=0)
    return folder


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "tiny-image"
    assert build_folder("tiny-image", folder, seed=0)
    return folder


@pytest.fixture(scope="module")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "tiny-qwen3-omni"
    assert build_folder("tiny-qwen3-omni", folder, seed=0)
    return folder


def test_two_processes_build_once_and_the_same_bytes(
    omni_folder: Path, image_folder: Path, qwen3_folder: Path, tmp_path: Path
) -> None:
    """With other hash seeds and thread counts than here, concurrently, and beside leftovers of a killed builder."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    name = finish(start(_CACHE_PATH, "tiny-image", **environment))
    stale = tmp_path / "omni-cli" / "checkpoints" / f".{name}.partial-0"
    stale.mkdir(parents=True)
    (stale / "model_index.json").write_text("{")
    names = ("builtin:tiny-omni", "builtin:tiny-image", "builtin:tiny-qwen3-omni")
    first = start(RESOLVE, names[0], PYTHONHASHSEED="1", OMP_NUM_THREADS="1", **environment)
    second = start(RESOLVE, *names, PYTHONHASHSEED="2", OMP_NUM_THREADS="2", **environment)
    path = Path(finish(first))
    same, image, qwen3 = map(Path, finish(second).split())
    assert same == path
    assert digests(path) == digests(omni_folder)
    assert digests(image) == digests(image_folder)
    assert digests(qwen3) == digests(qwen3_folder)
    assert {entry.name for entry in path.parent.iterdir() if not entry.name.endswith(".lock")} == {
        path.name,
        image.name,
        qwen3.name,
    }


def test_another_seed_gives_other_weights_alone(qwen3_folder: Path, tmp_path: Path) -> None:
    check_checkpoint(qwen3_folder)
    assert read_model_kind(qwen3_folder) == "Qwen3OmniMoeForConditionalGeneration"
    assert build_folder("tiny-qwen3-omni", tmp_path / "other", seed=1)
    before = digests(qwen3_folder)
    changed = {name for name, digest in digests(tmp_path / "other").items() if digest != before[name]}
    assert changed == {"model.safetensors"}


_CACHE_PATH = "import sys; from omni_cli.checkpoints.build import cached_folder; print(cached_folder(sys.argv[1]).name)"


@pytest.mark.parametrize("number", sample([signal.SIGINT, signal.SIGKILL], [signal.SIGINT]))
def test_a_stopped_builder_leaves_no_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = tmp_path / "omni-cli" / "checkpoints"
    process = start(RESOLVE, "builtin:tiny-image", **environment)
    while not list(folder.glob(".*.partial-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    left = [entry.name for entry in folder.iterdir() if not entry.name.endswith(".lock")]
    assert all(name.startswith(".") for name in left)
    if number == signal.SIGINT:
        assert left == []


def test_an_interrupt_while_the_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkdir

    def make_and_be_interrupted(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", make_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_folder("tiny-image", tmp_path / "tiny-image", seed=0)
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_not_changed(omni_folder: Path, tmp_path: Path) -> None:
    assert build_folder("tiny-omni", omni_folder, seed=0) is False
    before = digests(omni_folder)
    with pytest.raises(OutputError, match=r"not empty.*model\.safetensors"):
        build_folder("tiny-omni", omni_folder, seed=1)
    assert digests(omni_folder) == before
    assert [entry.name for entry in omni_folder.parent.iterdir()] == ["tiny-omni"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert build_folder("tiny-omni", empty, seed=0)
    assert digests(empty) == before


@pytest.mark.nightly
def test_a_file_that_cannot_be_written_whole(tmp_path: Path) -> None:
    """A limit on the file size fails like a full disk in the middle of a file, here for files of several kinds."""
    code = """
import resource, sys
from pathlib import Path
from omni_cli.core.errors import OutputError
from omni_cli.checkpoints.build import build_folder

for limit in (4_000, 1_000_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for name in ("tiny-omni", "tiny-image"):
        try:
            build_folder(name, Path(sys.argv[1]), 0)
        except OutputError as error:
            print(error.message)
"""
    target = tmp_path / "x"
    assert finish(start(code, target)).splitlines() == [f"cannot write `{target}`: File too large"] * 4
    assert list(tmp_path.iterdir()) == []


def test_small_omni_is_mostly_thinker_and_talker() -> None:
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    config = qwen2_5_omni(SMALL_SIZES).models[""].config
    with torch.device("meta"):
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**config))
    parts = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    total = sum(parts.values())
    assert 90e6 < total < 110e6
    assert parts["thinker"] + parts["talker"] > 0.85 * total


def prompts(processor) -> dict[str, dict]:
    """Return text, audio and image prompts with the processor's names."""
    rng = np.random.default_rng(0)
    noise = (0.1 * rng.standard_normal(24_000)).astype(np.float32)
    image = Image.fromarray(rng.integers(0, 255, (196, 228, 3), dtype=np.uint8))

    def chat(*parts: dict) -> str:
        message = [{"role": "user", "content": list(parts)}]
        return processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)

    question = {"type": "text", "text": "What is this?"}
    return {
        "hello": {"text": chat({"type": "text", "text": "hello"})},
        "question": {"text": chat({"type": "text", "text": "How are you today?"})},
        "audio": {"text": chat({"type": "audio"}, question), "audio": [noise]},
        "image": {"text": chat({"type": "image"}, question), "images": [image]},
    }


def generate(model, processor, prompt: dict) -> tuple[list[int], torch.Tensor]:
    """Return greedy tokens of the answer, and the waveform for noise of seed 0."""
    inputs = dict(processor(return_tensors="pt", **prompt))
    # transformers 5.19 also passes plain pixel_values to the talker, which refuses them.
    if "pixel_values" in inputs:
        inputs["thinker_pixel_values"] = inputs.pop("pixel_values")
    talker = model.config.talker_config
    torch.manual_seed(0)
    ids, waveform = model.generate(
        **inputs,
        thinker_do_sample=False,
        talker_do_sample=False,
        thinker_max_new_tokens=32,
        talker_max_new_tokens=64,
        talker_repetition_penalty=1.0,
        talker_eos_token_id=[talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id],
    )
    return ids[0, inputs["input_ids"].shape[1] :].tolist(), waveform


def assert_lively(answers: dict[str, tuple[list[int], torch.Tensor]], tokenizer) -> None:
    for tokens, waveform in answers.values():
        # An answer of one token is more than transformers' own chain can speak; any later end is fine.
        assert len(tokens) >= 2
        assert len(set(tokens)) > len(tokens) / 2
        assert "\ufffd" not in tokenizer.decode(tokens)
        assert torch.isfinite(waveform).all()
        assert waveform.numel() >= 10 * 480
        assert 0.02 < waveform.std() < 0.5
        assert (waveform.abs() > 0.99).float().mean() < 0.01
        assert waveform.mean().abs() < 0.01
    assert sum(len(tokens) for tokens, _ in answers.values()) >= 10 * len(answers)
    texts = {tuple(tokens) for tokens, _ in answers.values()}
    assert len(texts) == len(answers)


@pytest.fixture(scope="module")
def reference(omni_folder: Path) -> dict:
    from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(omni_folder)
    processor = Qwen2_5OmniProcessor.from_pretrained(omni_folder)
    requests = prompts(processor)
    answers = {name: generate(model, processor, prompt) for name, prompt in requests.items()}
    return {"requests": requests, "answers": answers, "tokenizer": processor.tokenizer, "model": model}


def test_tiny_omni_speaks(reference: dict) -> None:
    assert_lively(reference["answers"], reference["tokenizer"])
    speakers = reference["model"].speaker_map
    assert set(speakers) == {"Chelsie", "Ethan"}
    assert speakers["Chelsie"]["bos_token"] != speakers["Ethan"]["bos_token"]
    assert not torch.equal(speakers["Chelsie"]["cond"], speakers["Ethan"]["cond"])


@pytest.mark.nightly
def test_other_sizes_and_seeds_speak(tmp_path: Path) -> None:
    from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

    qwen2_5_omni(OTHER_SIZES).write(tmp_path, seed=7)
    check_checkpoint(tmp_path)
    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(tmp_path)
    assert model.config.talker_config.hidden_size == 192
    processor = Qwen2_5OmniProcessor.from_pretrained(tmp_path)
    answers = {name: generate(model, processor, prompt) for name, prompt in prompts(processor).items()}
    assert_lively(answers, processor.tokenizer)


# In a separate process, because vLLM's CPU worker binds the threads of its process to cores.
VLLM_ANSWERS = """
import json, sys
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
ensure_torchvision_importable()
import numpy as np
from PIL import Image
from vllm import LLM, ModelRegistry, SamplingParams
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerForConditionalGeneration

ModelRegistry.register_model("Qwen2_5OmniModel", Qwen2_5OmniThinkerForConditionalGeneration)
llm = LLM(
    model=sys.argv[1], enforce_eager=True, kv_cache_memory_bytes=64 << 20, dtype="float32", max_model_len=2048
)
requests = []
for text, media in json.load(open(sys.argv[2])):
    if "audio" in media:
        media = {"audio": (np.array(media["audio"], dtype=np.float32), 16_000)}
    if "image" in media:
        media = {"image": Image.fromarray(np.array(media["image"], dtype=np.uint8))}
    requests.append({"prompt": text, "multi_modal_data": media})
results = llm.generate(requests, SamplingParams(temperature=0.0, max_tokens=32), use_tqdm=False)
json.dump([list(result.outputs[0].token_ids) for result in results], open(sys.argv[3], "w"))
"""


@pytest.mark.nightly
def test_vllm_answers_like_hugging_face(omni_folder: Path, reference: dict, tmp_path: Path) -> None:
    """Every weight of the thinker arrives in vLLM, because biases and norms are not at 0 and 1."""
    pytest.importorskip("vllm")
    assert read_model_kind(omni_folder) == "Qwen2_5OmniModel"
    requests = []
    for prompt in reference["requests"].values():
        media = {}
        if "audio" in prompt:
            media["audio"] = prompt["audio"][0].tolist()
        if "images" in prompt:
            media["image"] = np.array(prompt["images"][0]).tolist()
        requests.append((prompt["text"], media))
    asked, answered = tmp_path / "requests.json", tmp_path / "answers.json"
    asked.write_text(json.dumps(requests))
    finish(start(VLLM_ANSWERS, omni_folder, asked, answered, VLLM_ENABLE_V1_MULTIPROCESSING="0"))
    answers = json.loads(answered.read_text())
    assert answers == [tokens for tokens, _ in reference["answers"].values()]


def test_tiny_image_draws(image_folder: Path) -> None:
    from diffusers import QwenImagePipeline

    assert read_model_kind(image_folder) == "QwenImagePipeline"
    assert count_parameters(image_folder) < 3e6
    pipeline = QwenImagePipeline.from_pretrained(image_folder)
    pipeline.set_progress_bar_config(disable=True)

    def draw(prompt: str, seed: int) -> np.ndarray:
        generator = torch.Generator().manual_seed(seed)
        call = {"height": 64, "width": 64, "num_inference_steps": 4, "output_type": "np"}
        return pipeline(prompt, generator=generator, **call).images[0]

    image = draw("a red house", 0)
    assert image.shape == (64, 64, 3)
    assert np.isfinite(image).all()
    assert image.std() > 0.05
    assert np.array_equal(image, draw("a red house", 0))
    assert np.abs(image - draw("a red house", 1)).mean() > 0.05
    assert np.abs(image - draw("a blue boat", 0)).mean() > 0.01


def test_the_image_instruction_is_as_long_as_diffusers_expects(image_folder: Path) -> None:
    """diffusers cuts off a fixed number of tokens; another length would cut into the prompt."""
    from diffusers import QwenImagePipeline
    from transformers import AutoTokenizer

    pipeline = QwenImagePipeline(None, None, None, AutoTokenizer.from_pretrained(image_folder / "tokenizer"), None)
    instruction = pipeline.prompt_template_encode.partition("{}")[0]
    assert len(pipeline.tokenizer(instruction).input_ids) == pipeline.prompt_template_encode_start_idx
