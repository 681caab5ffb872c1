"""LoRA adapters of language models: the tokens are PEFT's, adapters and base interleaved in one batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from support.lora_adapters import PeftTokens, language_adapter, save_adapter
from support.omni_process import Ended, run_omni
from support.omni_server import CHAT, OmniServer
from support.tiny_models import qwen3
from transformers import (
    AutoProcessor,
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
)

from omni_cli.backends.vllm import adapters as vllm_adapters
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import StageError
from omni_cli.models.qwen2_5_omni.reference import Qwen2_5OmniReference
from omni_cli.models.scores import NoReferenceError, Way

MAX_TOKENS = 12
PROMPTS = ("hello", "the long road home", "rain on a tin roof")


@dataclass(frozen=True)
class Model:
    """A checkpoint with two adapters, of different ranks, and PEFT's answers."""

    base: Path
    adapters: dict[str, Path]
    peft: PeftTokens

    @property
    def options(self) -> list[str]:
        return ["--model", str(self.base), *(f"--lora={name}={path}" for name, path in self.adapters.items())]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    base = qwen3(tmp_path_factory.mktemp("model") / "qwen3")
    folder = tmp_path_factory.mktemp("adapters")
    modules = ("q_proj", "k_proj", "gate_proj", "up_proj", "down_proj")
    adapters = {
        "formal": language_adapter(base, folder / "formal", 1),
        "terse": language_adapter(base, folder / "terse", 2, rank=16, modules=modules),
    }
    return Model(base, adapters, PeftTokens(base, adapters))


def generate(folder: Path, *arguments: str, lines: list[dict[str, Any]] | None = None) -> Ended:
    folder.mkdir(exist_ok=True)
    if lines is not None:
        (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
        arguments = (*arguments, "--requests", str(folder / "requests.jsonl"))
    greedy = ("--temperature", "0", "--max-tokens", str(MAX_TOKENS))
    return run_omni(folder, "generate", *arguments, *greedy, "--json", "-q")


def test_adapters_and_base_share_a_batch(model: Model, tmp_path: Path) -> None:
    wanted = [(prompt, lora) for prompt in PROMPTS for lora in (None, "formal", "terse", "missing")]
    lines: list[dict[str, Any]] = [{"prompt": prompt, "lora": lora} for prompt, lora in wanted]
    ended = generate(tmp_path, *model.options, lines=lines)
    answers = {}
    for (prompt, lora), result in zip(wanted, ended.document["results"], strict=True):
        if lora == "missing":
            assert result["status"] == "error" and "no LoRA adapter `missing` is loaded" in result["message"]
            continue
        answers[prompt, lora] = result["outputs"][0]["token_ids"]
        assert answers[prompt, lora] == model.peft.tokens(prompt, MAX_TOKENS, lora)
        assert list(result["stages"][0]["effective"]["lora"]) == ["formal", "terse"]
    assert len(set(map(tuple, answers.values()))) == len(answers)
    assert ended.code == 2


def test_the_only_adapter_is_used_unless_a_line_has_null(model: Model, tmp_path: Path) -> None:
    options = ("--model", str(model.base), "--lora", f"only={model.adapters['terse']}")
    lines: list[dict[str, Any]] = [{"prompt": "hello"}, {"prompt": "hello", "lora": None}]
    used, base = generate(tmp_path, *options, lines=lines).document["results"]
    assert used["outputs"][0]["token_ids"] == model.peft.tokens("hello", MAX_TOKENS, "terse")
    assert base["outputs"][0]["token_ids"] == model.peft.tokens("hello", MAX_TOKENS, None)


def test_a_prompt_cannot_choose_between_several(model: Model, tmp_path: Path) -> None:
    generate(tmp_path, *model.options, "hello").check_error(
        2, "a prompt on the command line cannot choose", "--requests"
    )


def changed(adapter: Path, folder: Path, change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> Path:
    """Return a copy of an adapter with other weights."""
    shutil.copytree(adapter, folder)
    file = folder / "adapter_model.safetensors"
    save_file(dict(change(name, weight) for name, weight in load_file(file).items()), file)
    return folder


def for_another_base(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Shorten the inputs, which vLLM itself does not notice."""
    is_input = "q_proj.lora_A" in name
    return name, weight[:, :32].contiguous() if is_input else weight


def of_a_deeper_model(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    return name.replace("layers.1.", "layers.7."), weight


def of_another_kind(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    return name.replace("lora_A", "hada_w1"), weight


def unfit(kind: str, model: Model, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Return an adapter that cannot be used, and parts of its error."""
    good = model.adapters["formal"]
    folder /= kind
    match kind:
        case "missing":
            return folder, ("there is no folder",)
        case "empty":
            folder.mkdir()
            return folder, ("has no adapter_config.json", "save_pretrained")
        case "large":
            large = language_adapter(model.base, folder, 3, rank=32)
            return large, ("its rank is 32, above `max_lora_rank` 16", "--set model.max_lora_rank=32")
        case "another_base":
            return changed(good, folder, for_another_base), (
                "q_proj",
                "is for a weight of 64 x 32, and the model's has 64 x 64",
            )
        case "deeper":
            return changed(good, folder, of_a_deeper_model), ("the model has no module `model.layers.7.",)
        case "other_kind":
            return changed(good, folder, of_another_kind), ("cannot be used: ", "hada_w1")
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["missing", "empty", "large", "another_base", "deeper", "other_kind"])
def test_an_unfit_adapter_is_one_error(kind: str, model: Model, tmp_path: Path) -> None:
    adapter, parts = unfit(kind, model, tmp_path)
    ended = generate(tmp_path / "run", "--model", str(model.base), "--lora", f"bad={adapter}", "hello")
    ended.check_error(2, "the LoRA adapter `bad` cannot be used", *parts)
    assert ended.document["schema"] == "omni.error/1"
    ended.check_clean()


def test_a_larger_rank_is_a_key(model: Model, tmp_path: Path) -> None:
    adapter = language_adapter(model.base, tmp_path / "large", 3, rank=32)
    options = ("--model", str(model.base), "--lora", f"large={adapter}", "--set", "model.max_lora_rank=32")
    (result,) = generate(tmp_path / "run", *options, "hello").document["results"]
    expected = PeftTokens(model.base, {"large": adapter}).tokens("hello", MAX_TOKENS, "large")
    assert result["outputs"][0]["token_ids"] == expected


def test_a_precision_without_kernels_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_adapters, "current_platform", SimpleNamespace(is_cuda=lambda: True))
    stage = SimpleNamespace(name="model", lora={"formal": "formal"})
    spec: Any = SimpleNamespace(stage=stage, dtype="float32")
    adapters = vllm_adapters.EngineAdapters(spec)
    with pytest.raises(StageError, match="take float16 and bfloat16, and this model runs in float32") as error:
        adapters.engine_args()
    assert error.value.hint == "--set dtype=bfloat16"


@pytest.fixture(scope="module")
def server(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniServer]:
    server = OmniServer(tmp_path_factory.mktemp("server"), *model.options)
    yield server
    assert server.stop().leftovers == ()


def test_a_server_lists_them_and_chooses_by_the_model(model: Model, server: OmniServer) -> None:
    base, *adapters = server.request("GET", "/v1/models").document["data"]
    assert base["parent"] is None
    assert {entry["id"]: entry["root"] for entry in adapters} == {
        name: str(path) for name, path in model.adapters.items()
    }
    assert {entry["parent"] for entry in adapters} == {base["id"]}
    assert server.request("GET", "/v1/models/terse").document == adapters[1]
    with ThreadPoolExecutor() as threads:
        names = [base["id"], "formal", "terse"] * 2
        texts = list(threads.map(lambda name: server_answer(server, name), names))
    assert [document["model"] for document in texts] == names
    for name, document in zip(names, texts, strict=True):
        expected = model.peft.tokens("hello", MAX_TOKENS, None if name == base["id"] else name)
        assert document["choices"][0]["token_ids"] == expected
    refused = server.request("POST", CHAT, {"model": "polite", "messages": [{"role": "user", "content": "hello"}]})
    assert refused.status == 404 and refused.error["code"] == "model_not_found"


def server_answer(server: OmniServer, name: str) -> dict[str, Any]:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    answer = server.request("POST", CHAT, {**body, "return_token_ids": True})
    assert answer.status == 200, answer.body
    return answer.document


@pytest.fixture(scope="module")
def thinker_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an adapter that was made for transformers' thinker, whose modules have other names in the checkpoint."""
    modules = r"model\..*(q_proj|o_proj|up_proj|down_proj)"
    return save_adapter(load_thinker(), tmp_path_factory.mktemp("thinker"), 5, modules=modules)


def load_thinker() -> Any:
    folder = resolve_model("builtin:tiny-omni")
    return Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def test_a_chain_speaks_with_an_adapter_of_its_thinker(thinker_adapter: Path, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"prompt": "hello"}, {"prompt": "hello", "lora": None}]
    options = ("--lora", f"own={thinker_adapter}", "--max-audio-tokens", "8")
    results = generate(tmp_path, "-p", "tiny-omni", *options, lines=lines).document["results"]
    processor = AutoProcessor.from_pretrained(resolve_model("builtin:tiny-omni"))
    turn = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    inputs = processor.tokenizer(text, return_tensors="pt", add_special_tokens=False)
    models = (PeftModel.from_pretrained(load_thinker(), thinker_adapter).eval(), load_thinker())
    answers = []
    for result, thinker in zip(results, models, strict=True):
        spoken = thinker.generate(**inputs, do_sample=False, max_new_tokens=MAX_TOKENS)
        answers.append(spoken[0, inputs["input_ids"].shape[1] :].tolist())
        assert result["outputs"][0]["token_ids"] == answers[-1]
        assert result["outputs"][1]["type"] == "audio"
    assert answers[0] != answers[1]


def test_verify_loads_the_adapter_of_a_chain(thinker_adapter: Path, tmp_path: Path) -> None:
    lines = [{"prompt": "hello"}, {"prompt": "hello", "lora": None}]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ("-p", "tiny-omni", "--lora", f"own={thinker_adapter}", "--requests", str(tmp_path / "requests.jsonl"))
    short = (f"--set=thinker.sampling.max_tokens={MAX_TOKENS}", "--set=talker.sampling.max_tokens=8")
    ended = run_omni(tmp_path, "verify", *options, *short, "--json", "-q")
    rows = [row for row in ended.document["rows"] if row["check"].startswith("reference")]
    assert {row["stage"] for row in rows} == {"thinker", "talker", "token2wav"}, ended.document["rows"]
    assert {row["verdict"] for row in rows} == {"equal"}, rows
    assert [row["verdict"] for row in ended.document["rows"] if row["check"] == "tokenizer"] == ["equal"]
    assert ended.code == 0


def test_an_adapter_of_the_whole_chain_has_no_reference(thinker_adapter: Path, tmp_path: Path) -> None:
    whole = changed(
        thinker_adapter,
        tmp_path / "whole",
        lambda name, weight: (name.replace("base_model.model.", "base_model.model.thinker."), weight),
    )
    config = load_profile("tiny-omni", [f"thinker.lora.own={whole}"])
    with pytest.raises(NoReferenceError, match="`own` is not one of transformers' thinker class"):
        Qwen2_5OmniReference(Path(resolve_model("builtin:tiny-omni")), config, Way("float32"))


def test_a_talker_takes_none(tmp_path: Path) -> None:
    folder = resolve_model("builtin:tiny-omni")
    talker = Qwen2_5OmniTalkerForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    adapter = save_adapter(talker, tmp_path / "adapter", 6, modules=["q_proj"])
    ended = generate(tmp_path / "run", "-p", "tiny-omni", "--set", f"talker.lora.own={adapter}", "hello")
    ended.check_error(2, "stage `talker` takes no LoRA adapters: vLLM has none for Qwen2_5OmniTalker", "remove `lora`")


def test_vision_modules_are_one_error(tmp_path: Path) -> None:
    adapter = save_adapter(load_thinker(), tmp_path / "adapter", 7, modules=["down_proj"])
    ended = generate(tmp_path / "run", "-p", "tiny-omni", "--lora", f"own={adapter}", "hello")
    ended.check_error(2, "vLLM has no LoRA for this model's `visual.blocks.0.mlp.down_proj`")
