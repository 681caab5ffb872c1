"""The options of `omni generate`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from omni_cli.cli.options import LoraOption, OutputDirOption, ProfileOptions, TimeoutOption, argument, option


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """One request, by the names of its fields in a JSONL file."""

    prompt: Annotated[str | None, argument("[PROMPT]", "The prompt; `-` reads it from stdin.")] = None
    audio: Annotated[
        list[str] | None, option("--audio", "FILE", "Audio input (WAV, MP3, M4A, Ogg, ...). Repeatable.")
    ] = None
    image: Annotated[list[str] | None, option("--image", "FILE", "Image input (PNG, JPEG, WebP, ...). Repeatable.")] = (
        None
    )
    mask: Annotated[
        str | None,
        option(
            "--mask",
            "FILE",
            "Mask of the image: white where the model paints, black where the image stays. Of a video, one per frame.",
        ),
    ] = None
    control_image: Annotated[
        list[str] | None, option("--control-image", "FILE", "Image that controls the layout. Repeatable.")
    ] = None
    video: Annotated[
        list[str] | None, option("--video", "FILE", "Video input (MP4, WebM, ...), without its sound. Repeatable.")
    ] = None
    media_io_kwargs: Annotated[
        str | None, option("--media-io-kwargs", "JSON", 'Frames of videos, as in vLLM: `{"video": {"fps": 1}}`.')
    ] = None
    language: Annotated[
        str | None,
        option("--language", "CODE", "Language of the speech to transcribe, such as `en`. Default: detected."),
    ] = None
    task: Annotated[
        str | None, option("--task", "TASK", "`transcribe` speech in its language, or `translate` it to English.")
    ] = None
    timestamps: Annotated[bool, option("--timestamps", None, "Transcribe with the times of the text's parts.")] = False
    modalities: Annotated[
        str | None,
        option("--modalities", "LIST", "Output modalities, such as `text,audio`. Default: all that the profile has."),
    ] = None
    max_tokens: Annotated[
        int | None, option("--max-tokens", "N", "Maximum length of the first AR stage's output, in tokens.")
    ] = None
    max_audio_tokens: Annotated[
        int | None,
        option("--max-audio-tokens", "N", "Maximum length of the speech, in tokens of the stage that makes it."),
    ] = None
    temperature: Annotated[
        float | None, option("--temperature", "T", "Sampling temperature of the first AR stage; 0 is greedy.")
    ] = None
    raw: Annotated[bool, option("--raw", None, "Tokenize the prompt as it is, without the chat template.")] = False
    speak: Annotated[
        bool, option("--speak", None, "Speak the prompt itself, word for word, instead of an answer to it.")
    ] = False
    voice: Annotated[
        list[str] | None,
        option(
            "--voice --speaker",
            "NAME|FILE",
            "Voice of the speech: a speaker of the model, or a recording to clone, which has a `.` or `/` in its name. "
            "Repeatable for recordings, one per speaker of the text.",
        ),
    ] = None
    ref_text: Annotated[
        list[str] | None,
        option("--ref-text", "TEXT", "Words spoken in the recording of `--voice`. Repeatable, one per recording."),
    ] = None
    negative_prompt: Annotated[
        str | None, option("--negative-prompt", "TEXT", "Content to avoid in the image or video.")
    ] = None
    num_inference_steps: Annotated[
        int | None, option("--num-inference-steps", "N", "Denoising steps of the diffusion stage.")
    ] = None
    guidance_scale: Annotated[
        float | None, option("--guidance-scale", "G", "Guidance scale of the diffusion stage.")
    ] = None
    strength: Annotated[float | None, option("--strength", "S", "How far the input image is changed.")] = None
    duration: Annotated[
        float | None, option("--duration", "SECONDS", "Length of the audio or video that a diffusers pipeline makes.")
    ] = None
    num_frames: Annotated[int | None, option("--num-frames", "N", "Number of frames of the video.")] = None
    fps: Annotated[
        str | None,
        option("--fps", "RATE", "Frames per second of the video, such as 24 or 24000/1001. Default: the pipeline's."),
    ] = None
    arg: Annotated[
        list[str] | None,
        option("--arg", "NAME=VALUE", "Any other argument of the diffusers pipeline's call. Repeatable."),
    ] = None
    height: Annotated[int | None, option("--height", "PIXELS", "Height of the image or video.")] = None
    width: Annotated[int | None, option("--width", "PIXELS", "Width of the image or video.")] = None

    def set_fields(self) -> dict[str, Any]:
        """Return the fields that are set."""
        values = {field.name: getattr(self, field.name) for field in fields(RequestOptions)}
        return {name: value for name, value in values.items() if not (value is None or value is False or value == [])}


@dataclass(frozen=True, kw_only=True)
class RunOptions(ProfileOptions):
    """A file of requests, and options for running and showing requests."""

    requests: Annotated[
        Path | None,
        option(
            "--requests",
            "FILE.jsonl",
            "Many requests, one JSON object per line, or OpenAI's batch form; a field that a line lacks has the "
            "value of its option.",
        ),
    ] = None
    lora: LoraOption = None
    replicas: Annotated[
        int | None,
        option(
            "--replicas",
            "N",
            "Run `--requests` on N engines through Ray Data: on the cluster of RAY_ADDRESS, else on this machine. "
            "Finished requests are not run again.",
            min=1,
        ),
    ] = None
    help_inputs: Annotated[
        bool,
        option(
            "--help-inputs", None, "List the inputs and outputs of the profile, without loading the model, and exit."
        ),
    ] = False
    output_dir: OutputDirOption = Path("out")
    timeout: TimeoutOption = None


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(RequestOptions, RunOptions):
    """The options of `omni generate`."""
