"""The options of `omni serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from omni_cli.cli.options import LoraOption, ProfileOptions, option, positive_seconds
from omni_cli.serve.limits import Limits

_DEFAULT = Limits()
DEFAULT_VIDEOS = Path("out/videos")


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ProfileOptions):
    """The address, the limits and the engines."""

    host: Annotated[str, option("--host", "ADDRESS", "Address to listen on. Default: loopback only.")] = "127.0.0.1"
    port: Annotated[int, option("--port", "N", "Port to listen on; 0 picks a free one.", min=0, max=65535)] = 8000
    seed: Annotated[
        int | None,
        option("--seed", "N", "Seed of requests without one. Default: a random one for each."),
    ] = None
    lora: LoraOption = None
    served_model_name: Annotated[
        list[str] | None,
        option(
            "--served-model-name",
            "NAME",
            "Further name of the model in requests; `*` accepts any. Repeatable.",
        ),
    ] = None
    tool_call_parser: Annotated[
        str | None,
        option(
            "--tool-call-parser",
            "NAME",
            "vLLM's parser of calls of tools, for the stage that answers. Default: the one for the checkpoint's chat "
            "template.",
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        option(
            "--reasoning-parser",
            "NAME",
            "vLLM's parser that separates reasoning from the answer, such as `qwen3`. Default: none.",
        ),
    ] = None
    api_key: Annotated[
        str | None,
        option(
            "--api-key",
            "KEY",
            "Require `Authorization: Bearer KEY`. Other users of this machine can read command lines, but not the "
            "environment.",
            envvar="OMNI_API_KEY",
            show_envvar=True,
        ),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        option(
            "--allow-origin",
            "ORIGIN",
            "Answer pages of this site, such as `https://app.example`, in browsers; `*` is any site. Repeatable.",
        ),
    ] = None
    allow_media_url: Annotated[
        list[str] | None,
        option(
            "--allow-media-url",
            "PREFIX",
            "Fetch images, audio and video of requests whose URL begins with this, such as `https://media.example/`. "
            "Default: no URL is fetched. Repeatable.",
        ),
    ] = None
    no_ui: Annotated[bool, option("--no-ui", None, "Serve no page for people at `/`.")] = False
    timeout: Annotated[float, option("--timeout", "SECONDS", "Time limit per request.", callback=positive_seconds)] = (
        _DEFAULT.timeout_s
    )
    drain_timeout: Annotated[
        float,
        option(
            "--drain-timeout", "SECONDS", "Time for requests to finish after a stop signal.", callback=positive_seconds
        ),
    ] = 30.0
    hang_timeout: Annotated[
        float | None,
        option(
            "--hang-timeout",
            "SECONDS",
            "Restart a stage that makes no progress on its requests for this long; sets every stage's "
            "`step_timeout_s`.",
            callback=positive_seconds,
        ),
    ] = None
    replicas: Annotated[
        int | None,
        option(
            "--replicas",
            "N",
            "Run N engines through Ray Serve: on the cluster of RAY_ADDRESS, else on this machine.",
            min=1,
        ),
    ] = None
    max_requests: Annotated[
        int, option("--max-requests", "N", "Limit of requests in flight; further ones get status 429.", min=1)
    ] = _DEFAULT.max_requests
    max_body_bytes: Annotated[int, option("--max-body-bytes", "N", "Size limit of a request's body.", min=1024)] = (
        _DEFAULT.max_body_bytes
    )
    max_prompt_chars: Annotated[
        int, option("--max-prompt-chars", "N", "Length limit of a prompt, in characters.", min=1)
    ] = _DEFAULT.max_prompt_chars
    max_image_pixels: Annotated[
        int, option("--max-image-pixels", "N", "Limit of pixels of all images in one request.", min=1)
    ] = _DEFAULT.max_image_pixels
    max_video_pixels: Annotated[
        int, option("--max-video-pixels", "N", "Limit of pixels of all video frames in one request.", min=1)
    ] = _DEFAULT.max_video_pixels
    max_audio_seconds: Annotated[
        float,
        option(
            "--max-audio-seconds", "SECONDS", "Length limit of all audio in one request.", callback=positive_seconds
        ),
    ] = _DEFAULT.max_audio_s
    output_dir: Annotated[
        Path | None,
        option("--output-dir", "DIR", f"Folder for videos; a restart finds them again. Default: {DEFAULT_VIDEOS}."),
    ] = None
    voices_dir: Annotated[
        Path | None,
        option(
            "--voices-dir",
            "DIR",
            "Folder for the voices of `POST /v1/audio/voices`; a restart finds them again. Default: none are saved.",
        ),
    ] = None
    max_videos: Annotated[
        int, option("--max-videos", "N", "Limit of videos kept; the oldest ones make room for new ones.", min=1)
    ] = _DEFAULT.max_videos
    max_videos_bytes: Annotated[int, option("--max-videos-bytes", "N", "Size limit of all videos kept.", min=1)] = (
        _DEFAULT.max_videos_bytes
    )
    max_videos_age: Annotated[
        float,
        option("--max-videos-age", "SECONDS", "Time after which a video is removed.", callback=positive_seconds),
    ] = _DEFAULT.max_videos_age_s
    max_n: Annotated[int, option("--max-n", "N", "Limit of images per request.", min=1)] = _DEFAULT.max_n

    def limits(self) -> Limits:
        return Limits(
            max_requests=self.max_requests,
            max_body_bytes=self.max_body_bytes,
            max_prompt_chars=self.max_prompt_chars,
            max_image_pixels=self.max_image_pixels,
            max_video_pixels=self.max_video_pixels,
            max_audio_s=self.max_audio_seconds,
            max_n=self.max_n,
            max_videos=self.max_videos,
            max_videos_bytes=self.max_videos_bytes,
            max_videos_age_s=self.max_videos_age,
            timeout_s=self.timeout,
        )
