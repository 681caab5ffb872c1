"""Limits and settings of the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_cli.serve.sites import MediaPrefix

MIB = 2**20
MAX_SPEECH_S = 7200.0
MAX_AUDIO_S = 300.0
DEFAULT_VIDEOS = Path("out/videos")


@dataclass(frozen=True)
class Limits:
    """Limits on one request, on all of them together, and on time (seconds).

    `max_requests` bounds the requests in flight, running or waiting in the engine's own queues; `max_image_pixels`,
    `max_video_pixels` (of the frames that the model sees) and `max_audio_s` hold for all media of one request together,
    `max_decode_s`, processor time, for one video. `max_audio_s` None is `MAX_SPEECH_S` for a recording to transcribe,
    and `MAX_AUDIO_S` for other audio.
    `max_voices` bounds the saved voices, and `max_voice_bytes` the recording of each;
    `max_videos`, `max_videos_bytes` and `max_videos_age_s` bound the videos that the server keeps.
    """

    max_requests: int = 64
    max_body_bytes: int = 64 * MIB  # an hour of MP3 at 128 kbit/s is 55
    max_prompt_chars: int = 200_000
    max_image_pixels: int = 16 * MIB
    max_video_pixels: int = 256 * MIB
    max_audio_s: float | None = None
    max_decode_s: int = 20
    max_n: int = 10
    max_voices: int = 1000
    max_voice_bytes: int = 10 * MIB
    max_videos: int = 100
    max_videos_bytes: int = 10 * 1024 * MIB
    max_videos_age_s: float = 24 * 3600.0
    timeout_s: float = 600.0
    body_timeout_s: float = 30.0


@dataclass(frozen=True)
class ServerSettings:
    """The limits, and what a server does beside them.

    With an `api_key` it serves only requests that send the key. `is_loopback` is for an address that only this machine
    can connect to, `allowed_origins`: see `SiteRule`. `drain_timeout_s` is the time for requests to end after a stop
    signal, `output_dir` the folder for videos, `voices_dir` that for saved voices. `served_model_names` are further
    names of the model; `*` is any name. `seed` is that of requests without one; None draws one for each. Media are
    fetched below `media_prefixes` only. `has_page` adds the page for people.
    """

    limits: Limits = Limits()
    output_dir: Path = DEFAULT_VIDEOS
    voices_dir: Path | None = None
    api_key: str | None = None
    is_loopback: bool = True
    drain_timeout_s: float = 30.0
    served_model_names: tuple[str, ...] = ()
    seed: int | None = None
    allowed_origins: tuple[str, ...] = ()
    media_prefixes: tuple[MediaPrefix, ...] = ()
    has_page: bool = False
