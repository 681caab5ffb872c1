"""Limits of the server."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits on one request, on all of them together, and on time (seconds).

    `max_requests` bounds the requests in flight, running or waiting in the engine's own queues; `max_image_pixels`,
    `max_video_pixels` (of the frames that the model sees) and `max_audio_s` hold for all media of one request together,
    `max_decode_s`, processor time, for one video.
    `max_voices` bounds the saved voices, and `max_voice_bytes` the recording of each;
    `max_videos`, `max_videos_bytes` and `max_videos_age_s` bound the videos that the server keeps.
    """

    max_requests: int = 64
    max_body_bytes: int = 32 * MIB
    max_prompt_chars: int = 200_000
    max_image_pixels: int = 16 * MIB
    max_video_pixels: int = 256 * MIB
    max_audio_s: float = 300.0
    max_decode_s: int = 20
    max_n: int = 10
    max_voices: int = 1000
    max_voice_bytes: int = 10 * MIB
    max_videos: int = 100
    max_videos_bytes: int = 10 * 1024 * MIB
    max_videos_age_s: float = 24 * 3600.0
    timeout_s: float = 600.0
    body_timeout_s: float = 30.0
