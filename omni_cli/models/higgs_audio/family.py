"""Higgs Audio v2: language model with delayed codebooks -> codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.config.families import Cloning, Family, Machine, ar_role
from omni_cli.models.codec import codec_role

_HERE = "omni_cli.models.higgs_audio"
# Tags of turns in a text: `[SPEAKER1] Hello.`
SPEAKERS = ("0", "1", "2", "3")
CLONING = Cloning(max_voices=len(SPEAKERS), text="optional", max_s=60)

FAMILY = Family(
    name="higgs_audio",
    title="Higgs Audio v2",
    architectures=("HiggsAudioV2ForConditionalGeneration",),
    roles=(
        ar_role(
            name="backbone",
            stage=f"{_HERE}.stages:HiggsBackboneStage",
            model=f"{_HERE}.stages:HiggsBackbone",
            takes=("instructions", "sampling", "max_tokens", "temperature", "raw"),
            clones=CLONING,
            needed_files=(("tokenizer.json",), ("processor_config.json",)),
            # A codec that is not in the folder is looked for where processor_config.json names it.
            needed_weights=(
                "model.",
                "audio_lm_head.",
                "audio_tokenizer/acoustic_encoder.",
                "audio_tokenizer/semantic_model.",
            ),
        ),
        codec_role(
            name="codec",
            model=f"{_HERE}.stages:HiggsCodec",
            input="backbone",
            needed_files=(("processor_config.json",),),
            needed_weights=("audio_tokenizer/quantizer.", "audio_tokenizer/acoustic_decoder."),
        ),
    ),
    builtins={"tiny-higgs-audio": "omni_cli.checkpoints.tiny_speech:tiny_higgs_audio"},
    profile=f"{_HERE}.family:derive_stages",
    prompt_frame=(
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n<|audio_out_bos|>",
    ),
    reference=f"{_HERE}.reference:HiggsAudioReference",
)


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return backbone and codec with the sampling of the model's own examples."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    backbone = decoder_settings(read_config(folder), machine, max_model_len={"cpu": 2048, "cuda": 4096})
    sampling = {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "max_tokens": min(1024, backbone["max_model_len"] // 2)}
    codec = {"max_num_seqs": backbone["max_num_seqs"], "execution": "eager", "output_copy": "async"}
    return {"backbone": {**backbone, "sampling": sampling}, "codec": codec}
