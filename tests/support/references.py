"""The references of `omni verify`, run freely: what transformers makes of requests, greedy and in float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from omni_cli.checkpoints.files import read_family
from omni_cli.config.families import builtins, load
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import EngineConfig
from omni_cli.models.language_model.reference import LanguageModelReference
from omni_cli.models.qwen2_5_omni.reference import Qwen2_5OmniReference
from omni_cli.models.reference import SpokenText
from omni_cli.models.scores import Way
from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, RequestResult, TextOutput
from support.media_samples import clip, image_of, tone
from support.omni_requests import FEW_STEPS
from support.transcriptions import stage_request

WAY = Way("float32")
MAX_TOKENS = 24
# transformers cannot speak an answer of one token: it has no reply row to put after the prompt.
MIN_TOKENS = 2


def limits(codec_max_tokens: int) -> tuple[str, ...]:
    """The limits of the references, as settings of a profile."""
    return (
        f"thinker.sampling.min_tokens={MIN_TOKENS}",
        f"thinker.sampling.max_tokens={MAX_TOKENS}",
        f"talker.sampling.min_tokens={MIN_TOKENS}",
        f"talker.sampling.max_tokens={codec_max_tokens}",
    )


def omni_reference(profile: str, folder: str | Path, codec_max_tokens: int, *settings: str) -> Qwen2_5OmniReference:
    """The reference of a Qwen-Omni checkpoint, with a profile's settings."""
    few_steps = (FEW_STEPS,) if profile == "tiny-omni" else ()
    reference: Qwen2_5OmniReference = family_reference(
        profile, folder, *limits(codec_max_tokens), *few_steps, *settings
    )
    return reference


def spoken_by(reference: Qwen2_5OmniReference, requests: Iterable[GenerateRequest]) -> dict[str, SpokenText]:
    """The spoken answers by request."""
    return {request.request_id: reference.speak(request) for request in requests}


def family_reference(profile: str, folder: str | Path, *settings: str) -> Any:
    """The reference of a family, which a profile of one of its built-in checkpoints names."""
    config = load_profile(profile, overrides=settings)
    return load(str(builtins()[profile].reference))(Path(folder), config, WAY)


def reference_config(folder: Path, stages: dict[str, Any]) -> EngineConfig:
    fields: dict[str, Any] = {"version": 1, "name": "reference", "dtype": "float32", "stages": stages}
    return EngineConfig(model=str(folder), **fields)


class LanguageReference:
    """A language model in transformers."""

    def __init__(self, folder: Path) -> None:
        stages = {"model": {"kind": "ar"}}
        config = reference_config(folder, stages)
        self._reference = LanguageModelReference(folder, config, WAY)

    def tokens(self, prompt: str, max_tokens: int, *, samples: bool = False, **media: Sequence[int]) -> list[int]:
        """The answer's token ids; `media` are seeds of samples, by kind. `samples`: transformers chooses frames."""
        request = GenerateRequest(
            "0",
            prompt,
            media=Media(
                images=tuple(map(image_of, media.get("image", ()))),
                audio=tuple(map(tone, media.get("audio", ()))),
                videos=tuple(replace(clip(seed), do_sample_frames=samples) for seed in media.get("video", ())),
            ),
        )
        return self._reference.generate(request, max_tokens)


class TranscriptionReferenceAlone:
    """A speech recognition model in transformers."""

    def __init__(self, folder: Path, **limits: int) -> None:
        family = read_family(folder)
        config = reference_config(folder, {family.roles[0].name: {"kind": "ar", "sampling": limits}})
        self._reference = load(str(family.reference))(folder, config, WAY)

    def tokens(self, **fields: Any) -> tuple[list[int], int]:
        """Return the transcript's token ids, and the number of those of the prompt."""
        request = stage_request("0", **fields)
        if isinstance(self._reference, Qwen2_5OmniReference):  # by the limits
            return list(self._reference.answer(request)), self._reference.num_input_tokens
        token_ids = self._reference.generate(request, request.sampling["max_tokens"])
        return token_ids, self._reference.num_input_tokens

    def tokens_of(self, text: str | None, **fields: Any) -> tuple[list[int], str]:
        """Return the token ids of a text that a server gave for a sound, of its own without one, and what they say."""
        request = stage_request("0", **fields)
        reference = self._reference
        token_ids = reference.generate(request) if text is None else reference.tokens_of(request, text)
        return token_ids, self.read(reference.said)

    def read(self, token_ids: list[int]) -> str:
        text: str = self._reference.read(token_ids)
        return text

    @property
    def ends(self) -> list[int]:
        ends: list[int] = self._reference.ends
        return ends


def assert_spoken(result: RequestResult, reference: SpokenText, *, atol: float) -> None:
    """The same tokens, the same codes, and samples within `atol`."""
    assert result.error is None, result.error
    text = next(output for output in result.outputs if isinstance(output, TextOutput))
    audio = next(output for output in result.outputs if isinstance(output, AudioOutput))
    talker = next(trace for trace in result.stages if trace.name == "talker")
    assert text.token_ids == reference.answer
    assert talker.output_token_ids == reference.tokens
    codes = None if talker.output_codes is None else tuple(map(tuple, talker.output_codes))
    assert codes == reference.codes
    assert audio.samples.shape == reference.waveform.shape
    assert np.abs(reference.waveform).max() > 0.01
    np.testing.assert_allclose(audio.samples, reference.waveform, atol=atol, rtol=0)
