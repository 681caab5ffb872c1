"""diffusers' GLM-Image as the family's reference: the prior by transformers, and the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import GlmImagePipeline
from PIL import Image

from omni_cli.config.schema import EngineConfig
from omni_cli.models.diffusers_pipeline.reference import get_diffusion_stage, is_set
from omni_cli.models.forcing import ForcedTokens, led_by
from omni_cli.models.glm_image.family import get_size
from omni_cli.models.glm_image.settings import PriorConfig
from omni_cli.models.reference import check_whole, get_device, noise_in
from omni_cli.models.scores import EngineOutput, Expected, Way
from omni_cli.requests.outputs import GenerateRequest

_ROUNDING_KEYS = ("execution", "precision", "attention_backend", "channels_last", "context_parallel")


class GlmImageReference:
    """diffusers' pipeline, whose prior follows an engine's tokens."""

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        check_whole(way)
        prior = config.stages[0]
        assert isinstance(prior, PriorConfig)
        self._prior, self._decoder = prior, get_diffusion_stage(config)
        self._noise_dtype = getattr(torch, way.noise_dtype)
        self.pipeline: Any = GlmImagePipeline.from_pretrained(folder, dtype=getattr(torch, way.dtype))
        self.pipeline.to(get_device())
        self.pipeline.set_progress_bar_config(disable=True)
        self.token_ids: tuple[int, ...] = ()
        encoder = self.pipeline.vision_language_encoder
        encoder.set_attn_implementation(way.attention)
        generate, self._get_image_features = encoder.generate, encoder.get_image_features

        def record_output(**inputs: Any) -> torch.Tensor:
            # Threads cost more than they save there; the image depends on their number, and gets the stage's.
            num_threads = torch.get_num_threads()
            torch.set_num_threads(1)
            output: torch.Tensor = generate(**inputs)
            torch.set_num_threads(num_threads)
            self.token_ids = tuple(output[0, inputs["input_ids"].shape[1] :].tolist())
            return output

        encoder.generate, encoder.get_image_features = record_output, self._features

    def expected(self, output: EngineOutput) -> Expected:
        tokens = ForcedTokens.of(output.tokens[self._prior.name])
        image = self.run(output.request, tokens)
        is_exact = not any(is_set(self._decoder, key) for key in _ROUNDING_KEYS)
        arrays = {name: image for name in output.arrays}
        return Expected({self._prior.name: tokens.scores}, arrays, self._decoder.name, is_exact)

    def run(self, request: GenerateRequest, tokens: ForcedTokens | None = None, *, greedy: bool = False) -> np.ndarray:
        """Return the image, uint8 RGB (height, width, 3); `token_ids` are then those of the prior."""
        height, width = get_size(request.diffusion, self._prior, [image.shape for image in request.media.images])
        steps = request.diffusion.get("num_inference_steps", self._decoder.num_inference_steps)
        guidance = request.diffusion.get("guidance_scale", self._decoder.guidance_scale)
        chosen = {"num_inference_steps": steps, "guidance_scale": guidance}
        encoder = self.pipeline.vision_language_encoder
        # The pipeline always samples; from a single token it is greedy.
        encoder.generation_config.top_k = 1 if greedy else None
        with led_by(encoder, tokens), noise_in(self._noise_dtype):
            (image,) = self.pipeline(
                request.prompt,
                image=[Image.fromarray(image) for image in request.media.images] or None,
                height=height,
                width=width,
                generator=torch.Generator().manual_seed(request.seed),
                **{name: value for name, value in chosen.items() if value is not None},
            ).images
        return np.asarray(image)

    def _features(self, *args: Any, **kwargs: Any) -> Any:
        """Work around a bug of diffusers 0.42.1, which `test_the_pipeline_cannot_edit_without_a_workaround` shows.

        `GlmImagePipeline.generate_prior_tokens` joins the features of its images along their first dimension, as if
        that were the batch. transformers 5.19 returns them as (channels, rows, columns) each, so that
        `get_image_tokens`, which goes through the first dimension, takes each channel for an image. Here they get a
        batch dimension. Only the pipeline's call is positional. Images of unequal sizes still cannot be joined.
        """
        output = self._get_image_features(*args, **kwargs)
        if args:
            features: Sequence[torch.Tensor] = output.pooler_output
            output.pooler_output = [each[None] for each in features]
        return output
