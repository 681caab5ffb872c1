"""The routes of `omni serve`: those of OpenAI's API, of vLLM's server, and its own."""

from __future__ import annotations

from enum import StrEnum


class Route(StrEnum):
    """A path, which is also the label of its metrics; names in braces vary, with the kind of value after a colon."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    SPEECH = "/v1/audio/speech"
    VOICES = "/v1/audio/voices"
    VOICE = "/v1/audio/voices/{name}"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TRANSLATIONS = "/v1/audio/translations"
    IMAGES = "/v1/images/generations"
    IMAGE_EDITS = "/v1/images/edits"
    VIDEOS = "/v1/videos"
    VIDEO_SYNC = "/v1/videos/sync"
    VIDEO = "/v1/videos/{video_id:video}"
    VIDEO_CONTENT = "/v1/videos/{video_id:video}/content"
    MODELS = "/v1/models"
    MODEL = "/v1/models/{name:path}"
    EMBEDDINGS = "/v1/embeddings"
    MODERATIONS = "/v1/moderations"
    HEALTH = "/health"
    READY = "/ready"
    METRICS = "/metrics"
    SLEEP = "/sleep"
    WAKE_UP = "/wake_up"
    IS_SLEEPING = "/is_sleeping"


NAMED_ROUTES = {
    "chat": Route.CHAT,
    "completions": Route.COMPLETIONS,
    "speech": Route.SPEECH,
    "images": Route.IMAGES,
    "transcriptions": Route.TRANSCRIPTIONS,
}
"""By the names that options of `omni loadtest` and `omni verify` have for them."""
