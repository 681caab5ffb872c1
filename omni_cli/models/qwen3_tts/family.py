"""Qwen3-TTS, 12 Hz: talker with a code predictor -> code2wav."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_cli.config.families import CheckpointNeeds, Cloning, Family, Machine, ar_role
from omni_cli.models.codec import codec_role

_HERE = "omni_cli.models.qwen3_tts"
_BUILDERS = f"{_HERE}.tiny"
SPEECH_TOKENIZER = "speech_tokenizer"
PROMPT_FRAME = ("<|im_start|>assistant\n", "<|im_end|>\n<|im_start|>assistant\n")

FAMILY = Family(
    name="qwen3_tts",
    title="Qwen3-TTS",
    architectures=("Qwen3TTSForConditionalGeneration",),
    roles=(
        ar_role(
            name="talker",
            stage=f"{_HERE}.stages:Qwen3TTSTalkerStage",
            model=f"{_HERE}.model:Qwen3TTSTalker",
            takes=("instructions", "language", "sampling", "max_tokens", "temperature", "raw"),
            clones=Cloning(text="optional", by_all=False),
            settings=f"{_HERE}.settings:Qwen3TTSTalkerKeys",
            needed_files=(("tokenizer.json", "vocab.json"),),
            # Text embeddings stay in the file, from which rows are read.
            needed_weights=tuple(
                f"talker.{part}."
                for part in ("model.layers", "model.codec_embedding", "code_predictor", "codec_head", "text_projection")
            ),
            decoder="talker_config",
        ),
        codec_role(
            name="code2wav",
            stage=f"{_HERE}.model:Qwen3TTSCodecStage",
            model=f"{_HERE}.model:Qwen3TTSCode2Wav",
            input="talker",
            needed_files=((f"{SPEECH_TOKENIZER}/config.json",),),
            needed_weights=(f"{SPEECH_TOKENIZER}/decoder.",),
        ),
    ),
    builtins={
        "tiny-qwen3-tts": f"{_BUILDERS}:custom_voice",
        "tiny-qwen3-tts-base": f"{_BUILDERS}:base",
        "tiny-qwen3-tts-design": f"{_BUILDERS}:voice_design",
    },
    profile=f"{_HERE}.family:derive_stages",
    # By the configurations of the releases; the 682 MB of both speech encoder and decoder are in float32.
    published={
        f"Qwen/Qwen3-TTS-12Hz-{size}-{kind}": CheckpointNeeds(
            num_bytes + (682 * 10**6), {"talker": talker, "code2wav": 114 * 10**6}
        )
        for size, num_bytes, talker, kinds in (
            ("0.6B", 1812 * 10**6, 595 * 10**6, ("CustomVoice",)),
            ("1.7B", 3833 * 10**6, 1606 * 10**6, ("CustomVoice", "VoiceDesign")),
            ("0.6B", 1829 * 10**6, 595 * 10**6, ("Base",)),
            ("1.7B", 3857 * 10**6, 1606 * 10**6, ("Base",)),
        )
        for kind in kinds
    },
    prompt_frame=PROMPT_FRAME,
    check=f"{_HERE}.spoken:check_request",
    reference=f"{_HERE}.reference:Qwen3TTSReference",
    reference_package="qwen_tts",
    reference_recipe="reference-qwen3-tts",
)


# The publisher's, where generation_config.json has no others; the code predictor's have names of their own there.
_DEFAULTS = {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0}


def generation_settings(folder: Path, prefix: str = "") -> dict[str, Any]:
    """Return how a checkpoint samples the talker's codes, or the code predictor's, whose keys have a `prefix`."""
    from omni_cli.checkpoints.files import read_object

    file = folder / "generation_config.json"
    own = read_object(file) if file.is_file() else {}
    if prefix:
        own = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
        own["do_sample"] = own.get("dosample", True)
    return {**_DEFAULTS, "repetition_penalty": 1.05, "max_new_tokens": 2048, **own}


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return talker and code2wav with the checkpoint's sampling."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    own, decoder = generation_settings(folder), read_config(folder)["talker_config"]
    talker = decoder_settings(decoder, machine, max_model_len={"cpu": 4096, "cuda": 32768})
    sampling = {name: own[name] for name in ("temperature", "top_k", "top_p", "repetition_penalty")}
    if not own["do_sample"]:
        sampling = {"temperature": 0.0, "repetition_penalty": own["repetition_penalty"]}
    sampling["max_tokens"] = min(own["max_new_tokens"], talker["max_model_len"] // 2)
    execution = "eager" if machine.device == "cpu" else "cudagraph"
    code2wav = {"max_num_seqs": talker["max_num_seqs"], "execution": execution, "output_copy": "async"}
    return {"talker": {**talker, "sampling": sampling}, "code2wav": code2wav}
