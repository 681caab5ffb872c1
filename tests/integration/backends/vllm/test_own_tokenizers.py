"""A checkpoint's own tokenizer is used where transformers makes another one, and `omni verify` has a row for it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from support.omni_process import run_omni
from support.tiny_models import qwen3
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoProcessor, AutoTokenizer, Qwen2Tokenizer, XLMRobertaTokenizer

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.checkpoints.tokenizer import training_text
from omni_cli.cli.profile_choice import choose_profile
from omni_cli.cli.terminal.progress import print_stage_warnings
from omni_cli.core.compat import own_tokenizers
from omni_cli.core.compat.own_tokenizers import PROBES, tokenizer_effect
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.verify.engine_subject import EngineAnswer, EngineSubject
from omni_cli.records.verify_record import Row
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.outputs import GenerateRequest


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen3(tmp_path_factory.mktemp("model") / "qwen3")


@pytest.fixture(autouse=True)
def no_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_tokenizers, "_differences", {})
    own_tokenizers.use_own_tokenizers()


def changed(base: Path, folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a copy of a checkpoint with another configuration file."""
    shutil.copytree(base, folder)
    config = json.loads((folder / name).read_text())
    change(config)
    (folder / name).write_text(json.dumps(config))
    return folder


def of_class(base: Path, folder: Path, name: str) -> Path:
    return changed(base, folder, "tokenizer_config.json", lambda config: config.update(tokenizer_class=name))


def check_own(folder: Path) -> Any:
    """Return the tokenizer that transformers loads, whose ids and texts are those of tokenizer.json."""
    tokenizer, own = AutoTokenizer.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in PROBES:
        ids = own.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == own.decode(ids, skip_special_tokens=False)
    return tokenizer


@pytest.mark.parametrize("name", ["LlamaTokenizerFast", "GemmaTokenizer", "CodeLlamaTokenizerFast"])
def test_a_class_with_other_spaces(name: str, base: Path, tmp_path: Path) -> None:
    check_own(of_class(base, tmp_path / "model", name))
    assert "reads 'Hello, world!' otherwise than tokenizer.json" in str(tokenizer_effect()["tokenizer"])


def test_a_model_type_with_another_pre_tokenizer(base: Path, tmp_path: Path) -> None:
    folder = of_class(base, tmp_path / "model", "Qwen2Tokenizer")
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    letters = pre_tokenizers.Split("l", "isolated")
    own.pre_tokenizer = pre_tokenizers.Sequence([letters, pre_tokenizers.ByteLevel(False, use_regex=False)])
    own.save(str(folder / "tokenizer.json"))
    check_own(folder)
    assert "otherwise than tokenizer.json, as Qwen2Tokenizer" in str(tokenizer_effect()["tokenizer"])


def test_tokenizers_that_are_their_files_are_not_reported(base: Path) -> None:
    check_own(base)
    chain = Path(resolve_model("builtin:tiny-omni"))
    check_own(chain)
    AutoProcessor.from_pretrained(chain)
    Qwen2Tokenizer.from_pretrained(Path(resolve_model("builtin:tiny-image")) / "tokenizer")
    assert tokenizer_effect() == {}


def test_a_first_token_without_a_post_processor(base: Path, tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["add_bos_token"] = True

    tokenizer = check_own(changed(base, tmp_path / "model", "tokenizer_config.json", change))
    assert tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    assert "ignores `add_bos_token: true`" in str(tokenizer_effect()["tokenizer"])


def load_model_alone(folder: Path, model_type: str, **training: Any) -> tuple[Any, SentencePieceProcessor]:
    """Return transformers' and sentencepiece's tokenizer of a new tokenizer.model."""
    (folder / "text").write_text("\n".join([*training_text(num_words=700), "def f(x):\n        return  x"]))
    settings: dict[str, Any] = {
        "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, **training,
    }  # fmt: skip
    SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), vocab_size=420, minloglevel=2,
        hard_vocab_limit=False, **settings,
    )  # fmt: skip
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    own = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return AutoTokenizer.from_pretrained(folder), own


@pytest.mark.parametrize(
    ("model_type", "training"),
    [
        ("llama", {}),
        ("mistral", {}),
        ("llama", {"add_dummy_prefix": False}),
        ("llama", {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}),
        ("mistral", {"normalization_rule_name": "nmt_nfkc"}),
    ],
)
def test_a_tokenizer_model_alone(model_type: str, training: dict[str, Any], tmp_path: Path) -> None:
    tokenizer, own = load_model_alone(tmp_path, model_type, **training)
    for text in PROBES:
        assert tokenizer.encode(text, add_special_tokens=False) == own.encode(text)
        assert tokenizer.decode(own.encode(text)) == own.decode(own.encode(text))
    assert "otherwise than tokenizer.model, as" in str(tokenizer_effect()["tokenizer"])
    assert str(tokenizer_effect()["tokenizer"]).endswith("the file's ids are used")


@pytest.mark.parametrize("training", [{"user_defined_symbols": ["    "]}, {"user_defined_symbols": ["cap"]}])
def test_what_a_tokenizer_model_has_alone_is_said(training: dict[str, Any], tmp_path: Path) -> None:
    tokenizer, own = load_model_alone(tmp_path, "mistral", **training)
    equal = [tokenizer.encode(text, add_special_tokens=False) == own.encode(text) for text in PROBES]
    assert False in equal and sum(equal) > 8
    assert "otherwise than tokenizer.model" in str(tokenizer_effect()["tokenizer"])
    assert str(tokenizer_effect()["tokenizer"]).endswith("nothing gives the file's ids: add a tokenizer.json")


def test_pieces_that_a_class_numbers_otherwise_are_not_reported(tmp_path: Path) -> None:
    """XLM-R and its kin have special tokens of their own before the file's pieces, as their weights do."""
    (tmp_path / "text").write_text("\n".join(training_text(num_words=700)))
    file = tmp_path / "sentencepiece.bpe.model"
    SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(file.with_suffix("")), vocab_size=300, minloglevel=2
    )
    own = SentencePieceProcessor(model_file=str(file))
    tokenizer = XLMRobertaTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("cap", add_special_tokens=False) != own.encode("cap")
    assert tokenizer_effect() == {}


@pytest.mark.parametrize("name", ["LlamaTokenizerFast", "Qwen2Tokenizer"])
def test_a_class_for_another_kind_of_vocabulary(name: str, base: Path, tmp_path: Path) -> None:
    folder = of_class(base, tmp_path / "model", name)
    own = Tokenizer(models.Unigram())
    own.pre_tokenizer, own.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<unk>", *json.loads((folder / "tokenizer_config.json").read_text()).get("extra_special_tokens", ())]
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="<unk>")
    own.train_from_iterator(training_text(num_words=99), trainer)
    own.save(str(folder / "tokenizer.json"))
    check_own(folder)


def test_the_row_of_a_tokenizer(base: Path, tmp_path: Path) -> None:
    folder = of_class(base, tmp_path / "model", "LlamaTokenizerFast")
    other = shutil.copytree(base, tmp_path / "other")
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("l", "isolated"), pre_tokenizers.ByteLevel()]
    )
    tokenizer.save(str(other / "tokenizer.json"))

    async def run() -> tuple[EngineAnswer, list[Row], list[Row]]:
        source = ProfileSource(choose_profile(None, str(folder), quiet=True), (), None, None, False)
        on_event: Any = print_stage_warnings
        subject = EngineSubject(source, [VariantConfig("")], on_event=on_event, say=lambda _: None)
        async with subject as engine:
            request = GenerateRequest(
                "0", "two  words", text=TextOptions(raw=True), sampling={"temperature": 0, "max_tokens": 8}
            )
            answer = await engine.ask(request)
            return answer, await engine.tokenizer_rows(folder), await engine.tokenizer_rows(other)

    answer, (equal,), (different,) = asyncio.run(run())
    output = answer.text_output
    assert output is not None and answer.text_deltas == output.text
    own = Tokenizer.from_file(str(base / "tokenizer.json"))
    assert output.text == own.decode(list(output.token_ids))
    assert answer.num_input_tokens == len(own.encode("two  words").ids)
    assert equal.check == "tokenizer" and equal.verdict == "equal" and "as LlamaTokenizer" in (equal.why or "")
    assert different.verdict == "different" and "reads 'Hello, world!' as other ids" in (different.why or "")


def test_a_command_says_it(base: Path, tmp_path: Path) -> None:
    folder = of_class(base, tmp_path / "model", "LlamaTokenizerFast")
    ended = run_omni(tmp_path, "generate", "--model", str(folder), "hello", "--max-tokens", "2", "--json")
    expected = "transformers 5.19.0 reads 'Hello, world!' otherwise than tokenizer.json, as LlamaTokenizer"
    assert f"stage `model`: {expected}" in ended.err
    assert ended.document["results"][0]["stages"][0]["effective"]["tokenizer"].startswith(expected)
