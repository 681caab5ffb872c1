"""A language model that transcribes speech as well. Its stage has a name of its own, which tells profiles apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_cli.config.families import Machine
from omni_cli.models.language_model import family as language_model
from omni_cli.models.transcription import family

_HERE = "omni_cli.models.transcription"
_STAGE = "listener"

FAMILY = replace(
    language_model.FAMILY,
    name="listener",
    title="a language model that transcribes speech",
    claims=f"{_HERE}.architectures:also_transcribes",
    vllm_models={family.KIMI_AUDIO: f"{_HERE}.kimi_audio:KimiAudio"},
    roles=(
        replace(language_model.FAMILY.roles[0], name=_STAGE, stage=family.ROLE.stage, transcribes=True, chats=True),
    ),
    profile=f"{_HERE}.listener:derive_stages",
    reference=f"{_HERE}.reference:ListenerReference",
)


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return one stage with the settings of a language model's; only a transcript is greedy."""
    (settings,) = language_model.derive_stages(folder, machine).values()
    return {_STAGE: settings}
