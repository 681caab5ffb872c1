"""The fields of a request, each declared once.

The options of `omni generate`, the keys of request lines, the capabilities of a profile, the arguments of a pipeline's
call and the bodies of HTTP requests are derived from these rows. The parameters of sampling are declared in
`config.stage_keys`, because profiles have them, too. Imports no NumPy, which the help of a command does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from omni_cli.config import bounds
from omni_cli.requests import checks
from omni_cli.requests.contents import PromptCondition, SpeechTask

Part = Literal["request", "text", "media", "sampling", "speech", "transcription", "diffusion"]
Taker = Literal["any", "chain", "transcription", "diffusion", "text", "audio", "image", "video"]
Route = Literal["chat", "speech", "transcriptions", "translations", "images", "edits", "videos"]
Lines = Literal["generate", "loadtest"]


@dataclass(frozen=True)
class Option:
    """A field's option of `omni generate`: its names, separated by spaces; "" for the argument."""

    flags: str
    metavar: str | None
    help: str


@dataclass(frozen=True)
class RequestField:
    """One field of a request.

    `check` returns the checked value of an option or of a line's key, or raises `ValueError`. `part` is the part of a
    `GenerateRequest` that has it, with an attribute of the same name, or `request` for its own attributes; `media` are
    files, `sampling` and `diffusion` mappings. The value of a field that `is_combined` is put together with others'
    there.
    `takers` are the stages that it affects: all, those of chains, those that transcribe or denoise, and those that make
    an output; the role of a family's stage may name more fields. A pipeline takes it if its call has one of
    `arguments`, the usual name first, and makes a video if that is the only taker.

    `type` is the type of its `option` and in HTTP bodies. `lines` are the kinds of request lines with such a key.
    `http` is its name in the body of each route, "" where the path says it; there, `limits` (as in `pydantic.Field`)
    are those of a stranger, and `about` is its description. With `is_traced`, a stage reports it, and
    `omni generate --json` shows that.
    """

    name: str
    check: Callable[[object], Any]
    part: Part = "request"
    is_combined: bool = False
    takers: tuple[Taker, ...] = ()
    arguments: tuple[str, ...] = ()
    option: Option | None = None
    type: Any = str
    lines: tuple[Lines, ...] = ("generate",)
    http: Mapping[Route, str] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    about: str | None = None
    is_traced: bool = False


def on(*routes: Route, name: str) -> Mapping[Route, str]:
    """Return the name of a field that is the same on several routes."""
    return dict.fromkeys(routes, name)


_BOTH: tuple[Lines, ...] = ("generate", "loadtest")

_ROWS = (
    RequestField("request_id", checks.check_name, takers=("any",), lines=_BOTH),
    RequestField(
        "prompt", checks.check_text, takers=("chain",), arguments=("prompt",),
        option=Option("", "[PROMPT]", "The prompt; `-` reads it from stdin."), lines=_BOTH,
        http={
            **on("images", "edits", "videos", "transcriptions", "translations", name="prompt"), "chat": "messages",
            "speech": "input",
        },
    ),
    RequestField(
        "audio", checks.check_paths, part="media", takers=("text", "transcription"),
        arguments=("audio", "initial_audio_waveforms", "src_audio"),
        option=Option("--audio", "FILE", "Audio input (WAV, MP3, M4A, Ogg, ...). Repeatable."), type=list[str],
        lines=_BOTH, http={"chat": "messages", **on("transcriptions", "translations", name="file")},
    ),
    RequestField(
        "image", checks.check_paths, part="media", takers=("text",), arguments=("image", "images", "input_images"),
        option=Option("--image", "FILE", "Image input (PNG, JPEG, WebP, ...). Repeatable."), type=list[str],
        lines=_BOTH, http={"chat": "messages", "edits": "image", "videos": "input_reference"},
    ),
    RequestField(
        "mask", checks.check_path, part="media", arguments=("mask_image", "mask"),
        option=Option(
            "--mask", "FILE",
            "Mask of the image: white where the model paints, black where the image stays. Of a video, one per frame.",
        ),
        http={"edits": "mask"},
    ),
    RequestField(
        "control_image", checks.check_paths, part="media", arguments=("control_image",),
        option=Option("--control-image", "FILE", "Image that controls the layout. Repeatable."), type=list[str],
        http=on("images", "edits", name="control_image"),
    ),
    RequestField(
        "video", checks.check_paths, part="media", takers=("text",), arguments=("video", "driving_video"),
        option=Option("--video", "FILE", "Video input (MP4, WebM, ...), without its sound. Repeatable."),
        type=list[str], http={"chat": "messages", "videos": "input_reference"},
    ),
    RequestField(
        "media_io_kwargs", checks.check_media_io, part="media", is_combined=True, takers=("text",),
        option=Option("--media-io-kwargs", "JSON", 'Frames of videos, as in vLLM: `{"video": {"fps": 1}}`.'),
        http={"chat": "media_io_kwargs"},
    ),
    RequestField(
        "language", checks.check_name, part="transcription", takers=("transcription",),
        option=Option(
            "--language", "CODE",
            "Language of the speech to transcribe, such as `en`, by default detected; or of the speech to make, also "
            "as a name, such as `English`.",
        ),
        http=on("transcriptions", "speech", name="language"),
        limits={"min_length": 1, "max_length": bounds.MAX_NAME_LENGTH},
        about="ISO 639-1 code; of speech to make also a name. Default: detected.",
    ),
    # A route's path names the adapter by the model, and the task.
    RequestField("lora", checks.check_adapter, takers=("any",)),
    RequestField(
        "task", checks.one_of(SpeechTask), part="transcription", takers=("transcription",),
        option=Option("--task", "TASK", "`transcribe` speech in its language, or `translate` it to English."),
        http=on("transcriptions", "translations", name=""),
    ),
    RequestField(
        "timestamps", checks.check_flag, part="transcription", takers=("transcription",),
        option=Option("--timestamps", None, "Transcribe with the times of the text's parts, for `--json`."), type=bool,
    ),
    RequestField(
        "word_timestamps", checks.check_flag, part="transcription", takers=("transcription",),
        option=Option("--word-timestamps", None, "Transcribe with the times of words, for `--json`."), type=bool,
    ),
    RequestField(
        "condition_on_prev_tokens", checks.check_flag, part="transcription", takers=("transcription",),
        option=Option(
            "--condition-on-prev-tokens", None, "Put the text so far before each window of a long sound (Whisper)."
        ),
        type=bool, http=on("transcriptions", "translations", name="condition_on_prev_tokens"),
        about="Put the text so far before each window of a long sound (Whisper).",
    ),
    RequestField(
        "prompt_condition_type", checks.one_of(PromptCondition), part="transcription", takers=("transcription",),
        option=Option(
            "--prompt-condition-type", "TYPE",
            "Windows of a long sound that the prompt comes before: `first-segment` (the default) or `all-segments`.",
        ),
        http=on("transcriptions", "translations", name="prompt_condition_type"),
        limits={"pattern": "^(first-segment|all-segments)$"},
        about="Windows of a long sound that the prompt comes before. Default: `first-segment`.",
    ),
    # The words of `audio`, with which a transcript is compared.
    RequestField("reference", checks.check_text, lines=("loadtest",)),
    # Its option belongs to every command that loads a profile.
    RequestField(
        "seed", checks.whole_number(bounds.MIN_SEED, bounds.MAX_SEED), takers=("any",), lines=_BOTH,
        http=on("chat", "speech", "images", "edits", "videos", name="seed"),
    ),
    RequestField(
        "modalities", checks.check_modalities, takers=("any",),
        option=Option(
            "--modalities", "LIST", "Output modalities, such as `text,audio`. Default: all that the profile has."
        ),
        http={"chat": "modalities"},
    ),
    RequestField(
        "sampling", checks.check_sampling, part="sampling", is_combined=True, takers=("text", "transcription"),
        lines=_BOTH,
    ),
    RequestField(
        "max_tokens", checks.whole_number(1, bounds.MAX_TOKENS), part="sampling", takers=("text", "transcription"),
        option=Option("--max-tokens", "N", "Maximum length of the first AR stage's output, in tokens."), type=int,
        lines=(), http={"chat": "max_completion_tokens"},
    ),
    RequestField(
        "max_audio_tokens", checks.whole_number(1, bounds.MAX_TOKENS), part="speech", takers=("audio",),
        option=Option("--max-audio-tokens", "N", "Maximum length of the speech, in tokens of the stage that makes it."),
        type=int, http=on("chat", "speech", name="max_audio_tokens"), limits={"ge": 1, "le": bounds.MAX_TOKENS},
        about="Maximum of tokens that become sound.",
    ),
    RequestField(
        "temperature", checks.check_temperature, part="sampling", takers=("text", "transcription"),
        option=Option("--temperature", "T", "Sampling temperature of the first AR stage; 0 is greedy."), type=float,
        lines=(), http=on("chat", "transcriptions", "translations", name="temperature"),
        limits={"ge": 0, "le": bounds.MAX_TEMPERATURE}, about="Default: 0, which is greedy.",
    ),
    RequestField(
        "raw", checks.check_flag, part="text", takers=("text",),
        option=Option("--raw", None, "Tokenize the prompt as it is, without the chat template."), type=bool,
    ),
    RequestField(
        "speak", checks.check_flag, part="speech", is_combined=True, takers=("audio",),
        option=Option("--speak", None, "Speak the prompt itself, word for word, instead of an answer to it."),
        type=bool,
    ),
    RequestField(
        "voice", checks.check_voices, part="speech", is_combined=True, takers=("audio",),
        option=Option(
            "--voice --speaker", "NAME|FILE",
            "Voice of the speech: a speaker of the model, or a recording to clone, which has a `.` or `/` in its name. "
            "Repeatable for recordings, one per speaker of the text.",
        ),
        type=list[str], http={"chat": "audio", "speech": "voice"},
    ),
    RequestField(
        "ref_text", checks.check_texts, part="speech", is_combined=True,
        option=Option(
            "--ref-text", "TEXT", "Words spoken in the recording of `--voice`. Repeatable, one per recording."
        ),
        type=list[str], http={"speech": "ref_text"},
    ),
    RequestField("speaker", checks.check_name, part="speech", is_combined=True, takers=("audio",)),
    RequestField(
        "instructions", checks.check_text, part="speech", is_combined=True,
        option=Option("--instructions", "TEXT", "How to speak, or the voice to speak with."),
        http={"speech": "instructions"},
    ),
    RequestField(
        "negative_prompt", checks.check_text, part="diffusion", takers=("image",), arguments=("negative_prompt",),
        option=Option("--negative-prompt", "TEXT", "Content to avoid in the image or video."),
        http=on("images", "edits", "videos", name="negative_prompt"),
    ),
    # Where a check has no bounds, the pipeline decides what a value means; strangers have less room.
    RequestField(
        "num_inference_steps", checks.check_whole_number, part="diffusion", takers=("diffusion",),
        arguments=("num_inference_steps",),
        option=Option("--num-inference-steps", "N", "Denoising steps of the diffusion stage."), type=int,
        http=on("images", "edits", "videos", name="num_inference_steps"),
        limits={"ge": 1, "le": bounds.MAX_NUM_INFERENCE_STEPS}, is_traced=True,
    ),
    RequestField(
        "guidance_scale", checks.check_number, part="diffusion", takers=("diffusion",), arguments=("guidance_scale",),
        option=Option("--guidance-scale", "G", "Guidance scale of the diffusion stage."), type=float,
        http=on("images", "edits", "videos", name="guidance_scale"),
    ),
    RequestField(
        "true_cfg_scale", checks.check_number, part="diffusion", type=float, lines=(),
        http=on("images", "edits", name="true_cfg_scale"),
    ),
    RequestField(
        "strength", checks.check_number, part="diffusion", arguments=("strength", "inpaint_strength"),
        option=Option("--strength", "S", "How far the input image is changed."), type=float,
        http=on("edits", "videos", name="strength"),
    ),
    RequestField(
        "duration", checks.check_number, part="diffusion",
        arguments=("audio_length_in_s", "audio_end_in_s", "audio_duration", "audio_duration_s", "duration"),
        option=Option("--duration", "SECONDS", "Length of the audio or video that a diffusers pipeline makes."),
        type=float, http={"videos": "seconds"}, limits={"gt": 0, "le": bounds.MAX_DURATION_S},
        about="Length, rounded to frames that the model can make. Default: the profile's.",
    ),
    RequestField(
        "num_frames", checks.check_whole_number, part="diffusion", takers=("video",),
        arguments=("num_frames", "video_length", "frames"),
        option=Option("--num-frames", "N", "Number of frames of the video."), type=int, http={"videos": "num_frames"},
        limits={"ge": 1, "le": bounds.MAX_FRAMES_MADE},
    ),
    RequestField(
        "fps", checks.check_frame_rate, part="diffusion", takers=("video",),
        arguments=("frame_rate", "fps", "conditioning_frame_rate"),
        option=Option(
            "--fps", "RATE", "Frames per second of the video, such as 24 or 24000/1001. Default: the pipeline's."
        ),
        http={"videos": "fps"},
    ),
    RequestField(
        "arg", checks.check_call_arguments, part="diffusion", is_combined=True,
        option=Option("--arg", "NAME=VALUE", "Any other argument of the diffusers pipeline's call. Repeatable."),
        type=list[str],
    ),
    RequestField(
        "height", checks.check_whole_number, part="diffusion", takers=("image", "video"), arguments=("height",),
        option=Option("--height", "PIXELS", "Height of the image or video."), type=int,
    ),
    RequestField(
        "width", checks.check_whole_number, part="diffusion", takers=("image", "video"), arguments=("width",),
        option=Option("--width", "PIXELS", "Width of the image or video."), type=int,
    ),
)  # fmt: skip
FIELDS: Mapping[str, RequestField] = {row.name: row for row in _ROWS}
"""The fields by name, in the order of the options."""
