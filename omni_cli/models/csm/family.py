"""CSM: backbone with a depth decoder -> Mimi."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.config.families import PROCESSOR_FILES, CheckpointNeeds, Family, Machine, ar_role
from omni_cli.core.errors import InputError
from omni_cli.models.codec import codec_role
from omni_cli.models.voices import speaker_for

if TYPE_CHECKING:
    from omni_cli.requests.outputs import GenerateRequest

# Of a conversation; a single text may have any number.
SPEAKERS = ("0", "1")


def pick_speaker(name: str | None) -> str:
    """Return the speaker, by default the first. Raises `InputError` for one that is not a number."""
    speaker = speaker_for(name or SPEAKERS[0], SPEAKERS)
    if not (speaker.isascii() and speaker.isdigit()):
        raise InputError(f"unknown speaker `{speaker}`", hint="this model's speakers are numbers, from 0 on")
    return speaker


def make_inputs(processor: Any, request: GenerateRequest) -> Any:
    """Return the inputs of transformers' `processor` for a request: its text after the speaker's number, `[0]hello`.

    Raises `InputError` for one that the model cannot speak.
    """
    if request.text.raw:
        if request.speech.speaker is not None:
            raise InputError("a raw prompt names its speaker itself", hint="drop the speaker, or `raw`")
        return processor.tokenizer(request.prompt, return_tensors="pt")
    text = request.text.reply
    if text is None:
        text = "".join(part.text for message in request.messages for part in message.parts) or request.prompt
        if not text:
            raise InputError("the prompt is empty", hint="give it something to answer")
        if len(request.messages) > 1:
            raise InputError("this model speaks one message, and not a conversation")
    turn = {"role": pick_speaker(request.speech.speaker), "content": [{"type": "text", "text": text}]}
    return processor.apply_chat_template([turn], tokenize=True, return_dict=True, return_tensors="pt")


_HERE = "omni_cli.models.csm"

FAMILY = Family(
    name="csm",
    title="CSM",
    architectures=("CsmForConditionalGeneration",),
    roles=(
        ar_role(
            name="backbone",
            stage=f"{_HERE}.stages:BackboneStage",
            model=f"{_HERE}.stages:CsmBackbone",
            takes=("sampling", "max_tokens", "temperature", "raw"),
            needed_files=(("tokenizer.json",), PROCESSOR_FILES),
            needed_weights=("backbone_model.", "depth_decoder.", "embed_text_tokens.", "lm_head."),
        ),
        codec_role(
            name="codec",
            model=f"{_HERE}.stages:CsmCodec",
            input="backbone",
            needed_weights=("codec_model.",),
        ),
    ),
    builtins={"tiny-csm": "omni_cli.checkpoints.tiny_speech:tiny_csm"},
    profile=f"{_HERE}.family:derive_stages",
    published={"sesame/csm-1b": CheckpointNeeds(7 * 10**9, {"backbone": 1553 * 10**6, "codec": 79 * 10**6})},
    reference=f"{_HERE}.reference:CsmReference",
)


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return backbone and codec with the released model's sampling."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    backbone = decoder_settings(read_config(folder), machine, max_model_len={"cpu": 2048, "cuda": 2048})
    sampling = {"temperature": 0.9, "top_k": 50, "max_tokens": min(1024, backbone["max_model_len"] // 2)}
    codec = {"max_num_seqs": backbone["max_num_seqs"], "execution": "eager", "output_copy": "async"}
    return {"backbone": {**backbone, "sampling": sampling}, "codec": codec}
