"""VibeVoice: one stage, whose every step ends in sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.config.families import PROCESSOR_FILES, CheckpointNeeds, Cloning, Family, Machine, ar_role

_HERE = "omni_cli.models.vibevoice"
SPEAKERS = ("0", "1", "2", "3")
CLONING = Cloning(max_voices=len(SPEAKERS), max_s=120.0)

FAMILY = Family(
    name="vibevoice",
    title="VibeVoice",
    architectures=("VibeVoiceForConditionalGeneration",),
    roles=(
        ar_role(
            name="speaker",
            stage=f"{_HERE}.stage:SpeakerStage",
            model=f"{_HERE}.stage:VibeVoiceSpeaker",
            makes="audio",
            takes=("sampling", "max_tokens", "raw"),
            clones=CLONING,
            settings=f"{_HERE}.settings:SpeakerConfig",
            needed_files=(("tokenizer.json",), PROCESSOR_FILES),
            needed_weights=("model.language_model.", "model.diffusion_head.", "model.audio_tower."),
            decoder="text_config",
            num_branches=2,
        ),
    ),
    builtins={"tiny-vibevoice": "omni_cli.checkpoints.tiny_speech:tiny_vibevoice"},
    profile=f"{_HERE}.family:derive_stages",
    published={"vibevoice/VibeVoice-1.5B-hf": CheckpointNeeds(6 * 10**9, {"speaker": 2704 * 10**6})},
    reference=f"{_HERE}.reference:VibeVoiceReference",
)


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return the one stage; steps and guidance are the checkpoint's."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    decoder = read_config(folder)["text_config"]
    speaker = decoder_settings(decoder, machine, max_model_len={"cpu": 4096, "cuda": 32768})
    return {"speaker": speaker}
