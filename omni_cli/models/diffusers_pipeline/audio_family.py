"""Audio pipelines of diffusers: one stage, from a prompt to music or sounds."""

from __future__ import annotations

from omni_cli.families import CheckpointNeeds, Family, StageRole

_HERE = "omni_cli.models.diffusers_pipeline"

FAMILY = Family(
    name="diffusers_audio",
    title="an audio pipeline of diffusers",
    entry_file="model_index.json",
    architectures=(
        "AceStepPipeline",
        "AudioLDM2Pipeline",
        "AudioLDMPipeline",
        "LongCatAudioDiTPipeline",
        "MusicLDMPipeline",
        "StableAudio3AudioToAudioPipeline",
        "StableAudio3InpaintPipeline",
        "StableAudio3Pipeline",
        "StableAudioPipeline",
    ),
    roles=(
        StageRole(
            name="audio",
            kind="diffusion",
            backend="diffusers",
            stage="omni_cli.diffusers_integration.stage:DiffusersStage",
            makes="audio",
            takes=f"{_HERE}.inputs:inputs_of",
        ),
    ),
    builtins={"tiny-audio": f"{_HERE}.audio_builder:tiny_audio"},
    # It makes one by default, and diffusers saves no part whose argument has a default.
    unsaved_parts={"LongCatAudioDiTPipeline": ("scheduler",)},
    profile=f"{_HERE}.profile:audio_stages",
    published={
        # In float32; the profile loads half of that.
        "stabilityai/stable-audio-open-1.0": CheckpointNeeds(53 * 10**8, 8 * 10**9, "StableAudioPipeline")
    },
)
