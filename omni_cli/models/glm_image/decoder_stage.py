"""GLM-Image's diffusion stage on a diffusers pipeline. Never imports vLLM."""

from __future__ import annotations

from collections.abc import Callable

import torch
from PIL import Image

from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.diffusers.stage import DiffusersStage
from omni_cli.config.schema import DiffusionStageConfig, StageConfig
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.glm_image.family import FACTOR
from omni_cli.models.glm_image.prompts import PriorOutput, upsample
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Report
from omni_cli.stage.payloads import PayloadLimits, decode_additional_information
from omni_cli.stage.protocol import StageSpec


class DecoderStage(DiffusersStage):
    """Images from the prior's tokens."""

    unused_parts = ("vision_language_encoder", "processor")

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        _check_settings(spec.stage)
        self._payload_limits = PayloadLimits.of(spec.stage)
        super().__init__(spec, emit)
        self._num_image_tokens = self.executor.pipeline.transformer.config.prior_vq_quantizer_codebook_size

    def diffusion_request(self, request: GenerateRequest) -> DiffusionRequest:
        assert request.stage.input is not None  # the decoder is never the first stage
        stage_output = PriorOutput.from_information(
            decode_additional_information(request.stage.input, self._payload_limits)
        )
        if (largest := int(stage_output.token_ids.max())) >= self._num_image_tokens:
            message = f"the model made token {largest}, which is not an image token"
            raise StageError(message, stage="prior", hint="try another seed")
        rows, columns = stage_output.token_ids.shape
        arguments = {**request.diffusion, "height": FACTOR * rows, "width": FACTOR * columns}
        return DiffusionRequest.from_arguments(
            request.request_id, stage_output.prompt, request.seed, arguments, self._call_arguments(stage_output)
        )

    def _call_arguments(self, stage_output: PriorOutput) -> dict[str, object]:
        """Return the arguments of the pipeline's call that hold tokens and images."""
        device = self.executor.device
        arguments: dict[str, object] = {"prior_token_ids": upsample(stage_output.token_ids)[None].to(device)}
        if stage_output.images:
            grids = [
                [1, 2 * rows, 2 * columns] for rows, columns in (ids.shape for ids in stage_output.image_token_ids)
            ]
            token_ids = torch.cat([upsample(ids) for ids in stage_output.image_token_ids])
            arguments |= {
                "image": [Image.fromarray(image.numpy()) for image in stage_output.images],
                "prior_token_image_ids": [token_ids.to(device)],
                "source_image_grid_thw": [torch.tensor(grids, device=device)],
            }
        return arguments


def _check_settings(stage: StageConfig) -> None:
    assert isinstance(stage, DiffusionStageConfig)
    if stage.height is not None or stage.width is not None:
        raise InputError(
            f"stage `{stage.name}`: its `height` and `width` have no effect: the prior's tokens determine the size",
            hint="set `prior.height` and `prior.width`",
        )
    if stage.batching != "exact":
        raise InputError(
            f"stage `{stage.name}`: this model has no `batching: {stage.batching}`",
            hint=f"--set {stage.name}.batching=exact",
        )
