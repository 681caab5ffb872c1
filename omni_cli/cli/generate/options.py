"""The options that only `omni generate` has, as types for its signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _option(name: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, metavar=metavar, help=help_text)
    return option


PromptArgument = Annotated[
    str | None, typer.Argument(metavar="[PROMPT]", help="What to ask for; `-` reads it from stdin.")
]
AudioOption = Annotated[
    list[str] | None, _option("--audio", "FILE", "Audio to hear (WAV, FLAC, OGG, MP3); repeatable.")
]
ImageOption = Annotated[
    list[str] | None, _option("--image", "FILE", "Image to see (PNG, JPEG, WebP, ...); repeatable.")
]
ModalitiesOption = Annotated[
    str | None,
    _option("--modalities", "LIST", "What to make, as `text,audio`; default: all the profile can."),
]
MaxTokensOption = Annotated[
    int | None, _option("--max-tokens", "N", "Longest answer of the first AR stage, in tokens.")
]
TemperatureOption = Annotated[
    float | None, _option("--temperature", "T", "Sampling temperature of the first AR stage; 0 is greedy.")
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Give the prompt to the tokenizer as it is, without the chat template.")
]
SpeakerOption = Annotated[str | None, _option("--speaker", "NAME", "Voice of the speech.")]
NegativePromptOption = Annotated[str | None, _option("--negative-prompt", "TEXT", "What the image should not show.")]
NumInferenceStepsOption = Annotated[
    int | None, _option("--num-inference-steps", "N", "Denoising steps of the diffusion stage.")
]
GuidanceScaleOption = Annotated[
    float | None, _option("--guidance-scale", "G", "Guidance scale of the diffusion stage.")
]
HeightOption = Annotated[int | None, _option("--height", "PIXELS", "Height of the image.")]
WidthOption = Annotated[int | None, _option("--width", "PIXELS", "Width of the image.")]
RequestsOption = Annotated[
    Path | None,
    typer.Option(
        "--requests",
        metavar="FILE.jsonl",
        help="Many requests, one JSON object a line; other options hold where a line is silent.",
    ),
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        metavar="N",
        min=1,
        help="Run `--requests` on N engines through Ray Data: on the cluster of RAY_ADDRESS, else on this machine. "
        "What is done is not done again.",
    ),
]
