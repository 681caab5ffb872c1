"""A checkpoint's own tokenizer, where transformers makes another one of its files.

transformers 5.4 and later build some classes from the vocabulary alone: their own normalizer, pre-tokenizer and decoder
take the place of those in tokenizer.json. `add_bos_token` is ignored beside that file. Without the file, spaces are not
those of sentencepiece: the first one is missing, or one of two.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

PROBES = (
    "Hello, world!", " The capital of France is Paris.", "def f(x):\n    return x + 1  # one\n\n\n", "a    b\t\tc  ",
    "12345 + 6.78 = 2024", "I'LL see; don't you?", "naïve café — “quoted”", "日本語のテキスト。中文", "Привет, мир",
    "مرحبا بالعالم", "👩‍🚀 🎉", "\n\n  x",
)  # fmt: skip
_VOCABULARY = re.compile(r'"vocab"\s*:\s*[{\[]')
_differences: dict[str, str] = {}


def tokenizer_effect() -> dict[str, object]:
    """Return what transformers would have made otherwise of this process's tokenizers; nothing if it would not."""
    return {"tokenizer": "; ".join(_differences.values())} if _differences else {}


def use_own_tokenizers() -> None:
    """Make transformers' tokenizers give the ids of their files, in this process."""
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    load = PreTrainedTokenizerBase.__dict__["_from_pretrained"].__func__

    @functools.wraps(load)
    def load_own(cls: Any, files: dict[str, Any], name: Any, *args: Any, **kwargs: Any) -> Any:
        paths = {key: Path(path) for key, path in files.items() if isinstance(path, str)}
        tokenizer = load(cls, files, name, *args, **kwargs)
        if isinstance(tokenizer, TokenizersBackend):
            # A class without an `__init__` of its own is read from tokenizer.json as it is.
            is_built = type(tokenizer).__init__ is not TokenizersBackend.__init__
            if found := _restore(tokenizer, paths, is_built=is_built):
                _differences[str(name)] = f"transformers {version('transformers')} {found}"
        return tokenizer

    PreTrainedTokenizerBase._from_pretrained = classmethod(load_own)


def _restore(tokenizer: Any, files: Mapping[str, Path], *, is_built: bool) -> str:
    """Give a tokenizer the ids of its file, and its first token; return what was different."""
    backend, found = tokenizer.backend_tokenizer, []
    before, expected = _read(backend), None
    file, model = files.get("tokenizer_file"), files.get("vocab_file", Path())
    if file is not None and is_built:
        _set_parts(backend, file)
    elif file is None and model.suffix == ".model":
        expected = _set_spaces(backend, model)
    after, otherwise = _read(backend), f"otherwise than {(file or model).name}, as {type(tokenizer).__name__}"
    probes = zip(PROBES, before, after, strict=True)
    if wrong := [text for text, (ids, _), own in zip(PROBES, after, expected or (), strict=False) if ids != own]:
        found.append(f"reads {wrong[0]!r} {otherwise}, and nothing gives the file's ids: add a tokenizer.json")
    elif changed := [text for text, old, new in probes if old[0] != new[0] or old[1] != text == new[1]]:
        found.append(f"reads {changed[0]!r} {otherwise}: the file's ids are used")
    config = files.get("tokenizer_config_file")
    adds = config is not None and json.loads(config.read_text(encoding="utf-8")).get("add_bos_token") is True
    if adds and tokenizer.bos_token_id not in (None, *backend.encode("a").ids[:1]):
        tokenizer.add_bos_token = True
        found.append("ignores `add_bos_token: true`: it is followed")
    return "; ".join(found)


def _read(backend: Any) -> list[tuple[list[int], str]]:
    """Return the ids of all probes, and their text; nothing for one that cannot be read."""
    found = []
    for text in PROBES:
        try:
            ids = backend.encode(text, add_special_tokens=False).ids
            found.append((ids, backend.decode(ids, skip_special_tokens=False)))
        except Exception:  # noqa: BLE001 - tokenizers raises no other, such as for a class's `<unk>`
            found.append(([], ""))
    return found


def _set_parts(backend: Any, file: Path) -> None:
    """Give a backend all of a tokenizer.json but its vocabulary, which takes long to read."""
    from tokenizers import Tokenizer

    head = ""
    with file.open(encoding="utf-8") as text:
        while (end := _VOCABULARY.search(head)) is None and (more := text.read(1 << 16)):
            head += more
    own = json.loads(head[: end.start()] + '"vocab": {}}}' if end else head)
    if "pre_tokenizer" not in own:  # the model comes first
        own = json.loads(file.read_text(encoding="utf-8"))
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    parts = Tokenizer.from_str(json.dumps({**own, "added_tokens": [], "model": empty}))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = parts.normalizer, parts.pre_tokenizer, parts.decoder
    if own["model"].get("type", (kind := type(backend.model).__name__)) != kind:
        backend.model = Tokenizer.from_file(str(file)).model
    model = backend.model
    for key in own["model"].keys() & {"byte_fallback", "ignore_merges", "fuse_unk", "unk_token"}:
        if hasattr(model, key):
            setattr(model, key, own["model"][key])
    if hasattr(model, "_clear_cache"):
        model._clear_cache()


def _set_spaces(backend: Any, file: Path) -> list[list[int]] | None:
    """Give a backend the normalizer of sentencepiece if more ids are then those of the file; return the file's ids."""
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Regex, decoders, normalizers
    from transformers.convert_slow_tokenizer import import_protobuf

    try:
        own = SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError):  # of tiktoken, whose files have the same name
        return None
    # Some classes number the file's pieces otherwise, after special tokens of their own, as their checkpoints do.
    expected = [[backend.token_to_id(own.id_to_piece(number)) for number in own.encode(text)] for text in PROBES]
    spec = import_protobuf().ModelProto.FromString(own.serialized_model_proto()).normalizer_spec
    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    steps += [normalizers.Strip(), normalizers.Replace(Regex(" +"), " ")] * spec.remove_extra_whitespaces
    steps += [*([normalizers.Prepend("▁")] * spec.add_dummy_prefix), normalizers.Replace(" ", "▁")]
    texts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    texts += [decoders.Strip(" ", 1, 0)] * spec.add_dummy_prefix
    parts = backend.normalizer, backend.pre_tokenizer, backend.decoder

    def use(parts: tuple[Any, ...]) -> int:
        backend.normalizer, backend.pre_tokenizer, backend.decoder = parts
        backend.model._clear_cache()
        return sum(ids == own for (ids, _), own in zip(_read(backend), expected, strict=True))

    use(max(parts, (normalizers.Sequence(steps), None, decoders.Sequence(texts)), key=use))
    return expected
