"""The row of a tokenizer: ids that the engine has for texts against those of the checkpoint's own file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omni_cli.checkpoints.files import read_object
from omni_cli.compat.own_tokenizers import PROBES
from omni_cli.outputs import GenerateRequest
from omni_cli.verify.engine_runs import EngineSession
from omni_cli.verify_record import Row


async def tokenizer_rows(session: EngineSession, folder: Path) -> list[Row]:
    """Return the row of the first stage; none if it does not tokenize, or the checkpoint has no file for it."""
    encode, stage = _get_encoder(folder), session.stages[0]
    if encode is None:
        return []
    for text, special in [*((text, False) for text in PROBES), ("a", True)]:
        request = GenerateRequest("tokenizer", text, raw=True, prompt_only=True, add_special_tokens=special)
        (run,) = await session.alone([request])
        if run.text is None or run.text.prompt is None:
            return []
        expected, got = encode(text, special), list(run.text.prompt.token_ids)
        if expected not in (None, got):
            why = f"the engine reads {text!r} as other ids than the checkpoint's file"
            words = [" ".join(map(str, ids or ())) for ids in (expected, got)]
            row = Row(
                check="tokenizer", stage=stage.name, verdict="different", expected=words[0], got=words[1], why=why
            )
            return [row]
    return [Row(check="tokenizer", stage=stage.name, verdict="equal", why=stage.effective.get("tokenizer"))]


def _get_encoder(folder: Path) -> Callable[[str, bool], list[int] | None] | None:
    """Return the ids of a text by tokenizer.json or tokenizer.model, perhaps with special tokens; None if unknown.

    None, too, for a tokenizer.json that the configuration changes.
    """
    file, model, settings = (folder / f"tokenizer{end}" for end in (".json", ".model", "_config.json"))
    config = read_object(settings) if settings.is_file() else {}
    if file.is_file():
        from tokenizers import Tokenizer

        own, bos = Tokenizer.from_file(str(file)), config.get("bos_token")
        prefix = config.get("add_prefix_space")
        if prefix is not None and getattr(own.pre_tokenizer, "add_prefix_space", prefix) != prefix:
            return None
        first = own.token_to_id(bos["content"] if isinstance(bos, dict) else bos) if bos else None
        before = (
            [first]
            if first is not None and config.get("add_bos_token") is True and first not in own.encode("a").ids[:1]
            else []
        )
        return lambda text, special: before * special + own.encode(text, add_special_tokens=special).ids
    if model.is_file():
        from sentencepiece import SentencePieceProcessor

        pieces = SentencePieceProcessor(model_file=str(model))
        return lambda text, special: None if special else pieces.encode(text)
    return None
