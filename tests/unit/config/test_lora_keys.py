"""The key `lora` of a stage, `--lora` options, and the field `lora` of a request line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_cli.cli.generate.options import GenerateOptions
from omni_cli.cli.profile_choice import profile_source
from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import ARStageConfig
from omni_cli.config.stage_keys import Adapter
from omni_cli.core.errors import InputError, UsageError
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.jsonl import read_requests
from omni_cli.requests.request_spec import BadRequest


@pytest.mark.parametrize(
    ("source", "path", "scale"),
    [
        ("a/b", "a/b", None),
        ("a/b@0.8", "a/b", 0.8),
        ("a@2/b@1", "a@2/b", 1.0),
        ("a@2/b", "a@2/b", None),
        ("a@x", "a@x", None),
    ],
)
def test_a_source_may_end_with_a_scale(source: str, path: str, scale: float | None) -> None:
    adapter = Adapter("style", source)
    assert (adapter.path, adapter.scale) == (Path(path), scale)


def test_a_request_without_a_name_uses_the_only_adapter() -> None:
    one = ARStageConfig.create("model", lora={"a": "x"})
    two = ARStageConfig.create("model", lora={"a": "x", "b": "y"})
    assert [one.choose_adapter(wanted) for wanted in (None, "", "a", "c")] == ["a", None, "a", None]
    assert [two.choose_adapter(wanted) for wanted in (None, "", "b")] == [None, None, "b"]


MISTAKES = {
    "token2wav.lora.a=x": "`lora` has no effect in a diffusion stage with `backend: vllm`",
    "thinker.lora.a=x@0.5": "an adapter's scale is for pipelines of diffusers",
    "thinker.lora.a=3": "expected a string, got the number 3",
    "thinker.lora={-a: x}": "invalid adapter name `-a` in `lora` of stage `thinker`",
    "thinker.max_lora_rank=17": "expected one of 8, 16, 32",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_mistakes_are_named(override: str) -> None:
    with pytest.raises(InvalidProfileError) as raised:
        load_profile("tiny-omni", [override])
    assert len(raised.value.diagnostics) == 1
    assert MISTAKES[override] in raised.value.message, raised.value.message


@pytest.mark.parametrize("execution", ["cudagraph", "compile_cudagraph"])
def test_captured_steps_have_no_adapters(execution: str) -> None:
    with pytest.raises(InvalidProfileError, match="cannot be used with `lora`"):
        load_profile("tiny-image", ["image.lora.a=x", f"image.execution={execution}"])


def test_the_option_is_a_key_of_the_first_stage() -> None:
    options = GenerateOptions(profile="tiny-omni", set_=["thinker.lora.own=z"], lora=["a=x", "b=true", "c=y=z"])
    config = profile_source(options, options.lora).load()
    here = Path.cwd()
    expected = {"own": Path("z"), "a": here / "x", "b": here / "true", "c": here / "y=z"}
    assert {name: adapter.path for name, adapter in config.adapters.items()} == expected
    assert config.stage("thinker").lora.keys() == expected.keys()


@pytest.mark.parametrize("given", [["a"], ["a="], ["=x"], ["a.b=x"], ["a=x", "a=y"]])
def test_a_wrong_option_is_refused(given: list[str]) -> None:
    options = GenerateOptions(profile="tiny-omni", lora=given)
    with pytest.raises(UsageError, match="--lora"):
        profile_source(options, options.lora)


def test_lines_name_adapters(tmp_path: Path) -> None:
    config = load_profile("tiny-omni", ["thinker.lora.style=x"])
    lines: list[dict[str, Any]] = [{}, {"lora": None}, {"lora": "style"}, {"lora": "stile"}, {"lora": 3}]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "hello", **line}) for line in lines))
    *good, unknown, wrong = read_requests(path, Capabilities.of(config), {})
    assert [spec.request.lora for spec in good] == [None, "", "style"]
    assert isinstance(unknown, BadRequest) and unknown.error.message == "no LoRA adapter `stile` is loaded"
    assert unknown.error.hint == "did you mean `style`?"
    assert isinstance(wrong, BadRequest) and wrong.error.message == "`lora` must be text, not a number"


def test_an_adapter_of_a_profile_without_any_is_refused() -> None:
    with pytest.raises(InputError, match="no LoRA adapter `style` is loaded") as raised:
        load_profile("tiny-omni").check_adapter("style")
    assert raised.value.hint == "load it: `--lora style=DIR`"
