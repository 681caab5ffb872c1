"""The row of a tokenizer: ids that the engine has for texts against those of the checkpoint's own file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.files import read_family
from omni_cli.compat.own_tokenizers import PROBES
from omni_cli.outputs import GenerateRequest
from omni_cli.verify.engine_runs import EngineSession
from omni_cli.verify_record import Row


async def tokenizer_rows(session: EngineSession, folder: Path) -> list[Row]:
    """Return the row of the first stage; none if it does not tokenize, or the checkpoint has no file for it."""
    file, model, stage = folder / "tokenizer.json", folder / "tokenizer.model", session.stages[0]
    role = read_family(folder).role(stage.name)
    if role is None or role.makes != "text" or role.transcribes:
        return []
    if file.is_file():
        from tokenizers import Tokenizer

        own: Any = Tokenizer.from_file(str(file))
    elif model.is_file():
        from sentencepiece import SentencePieceProcessor

        own = SentencePieceProcessor(model_file=str(model))
    else:
        return []
    ask = GenerateRequest(
        "tokenizer", raw=True, prompt_only=True, add_special_tokens=False, modalities=frozenset({"text"})
    )
    for text in PROBES:
        (run,) = await session.alone([replace(ask, prompt=text)])
        if run.text is None or run.text.prompt is None:
            return []
        expected = str(own.encode(text, add_special_tokens=False).ids if file.is_file() else own.encode(text))
        if (got := str(list(run.text.prompt.token_ids))) != expected:
            why = f"the engine reads {text!r} as other ids than the checkpoint's file"
            return [Row(check="tokenizer", stage=stage.name, verdict="different", why=why, expected=expected, got=got)]
    return [Row(check="tokenizer", stage=stage.name, verdict="equal", why=stage.effective.get("tokenizer"))]
