"""VibeVoice: one stage, whose every step ends in sound."""

from __future__ import annotations

from omni_cli.families import CheckpointNeeds, Cloning, Family, StageRole

_HERE = "omni_cli.models.vibevoice"
# Architecture name in vLLM.
SPEAKER = "VibeVoiceForSpeech"

SPEAKERS = ("0", "1", "2", "3")
CLONING = Cloning(max_voices=len(SPEAKERS), max_s=120.0)

FAMILY = Family(
    name="vibevoice",
    title="VibeVoice",
    architectures=("VibeVoiceForConditionalGeneration",),
    roles=(
        StageRole(
            name="speaker",
            kind="ar",
            backend="vllm",
            stage=f"{_HERE}.stage:SpeakerStage",
            makes="audio",
            takes=("sampling", "max_tokens", "raw"),
            clones=CLONING,
            settings=f"{_HERE}.settings:SpeakerConfig",
            needed_files=(("tokenizer.json",), ("processor_config.json", "preprocessor_config.json")),
            needed_weights=("model.language_model.", "model.diffusion_head.", "model.audio_tower."),
            decoder="text_config",
            num_branches=2,
        ),
    ),
    vllm_models={SPEAKER: f"{_HERE}.model:VibeVoiceSpeaker"},
    builtins={"tiny-vibevoice": "omni_cli.checkpoints.tiny_speech:tiny_vibevoice"},
    profile=f"{_HERE}.profile:derive_stages",
    published={"vibevoice/VibeVoice-1.5B-hf": CheckpointNeeds(6 * 10**9, {"speaker": 2704 * 10**6})},
    reference=f"{_HERE}.reference:VibeVoiceReference",
)
