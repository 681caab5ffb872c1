"""Qwen3-Omni's code2wav as a vLLM diffusion model: frames of codes to a waveform, whole or part by part.

The modules are transformers' own. A request of the engine is one part of the codes of a stream; what the next part
depends on is kept between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from transformers import Qwen3OmniMoeCode2Wav
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import DispatchPooler, IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_cli.checkpoints.shards import shards_with_prefix
from omni_cli.models.codec.streaming import DecoderState, Piece, StreamingCodecDecoder
from omni_cli.vllm_integration.diffusion_entry import DiffusionInput


class Qwen3OmniMoeCode2WavForDiffusion(nn.Module, IsAttentionFree):
    """Loads the weights called `code2wav.` of a Qwen3-Omni checkpoint."""

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"thinker.": None, "talker.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        self.allow_patterns_overrides = shards_with_prefix(model_config.model, "code2wav.")
        self.code2wav = Qwen3OmniMoeCode2Wav._from_config(
            model_config.hf_config.code2wav_config, dtype=torch.get_default_dtype()
        )
        self.pooler = DispatchPooler({"plugin": IdentityPooler()})
        # Not a module's attribute: vLLM would look for its weights.
        self._decoders = (StreamingCodecDecoder(self.code2wav),)
        self._states: dict[str, DecoderState] = {}

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Required by vLLM of every model; codes are embedded inside, so here they become (num_tokens, 1)."""
        return input_ids.unsqueeze(-1).float()

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Serve vLLM's profiling run only: a codec has no token-wise pass. Returns (num_tokens, 1)."""
        assert input_ids is not None
        return self.embed_input_ids(input_ids)

    @torch.inference_mode()
    def sample(self, inputs: Sequence[DiffusionInput]) -> list[torch.Tensor]:
        """Return the waveform (num_samples,) float32 in [-1, 1] of each part; parts of one stream are in order."""
        made: dict[str, torch.Tensor] = {}
        waiting = list(inputs)
        while waiting:
            first: dict[str, DiffusionInput] = {}
            for each in waiting:
                first.setdefault(each.information["stream"][0], each)
            together = list(first.values())
            for each, waveform in zip(together, self._decoders[0].decode(self._pieces(together)), strict=True):
                made[each.request_id] = waveform.float()
            for stream, each in first.items():
                if each.information["is_last"][0]:
                    self.forget(stream)
            waiting = [each for each in waiting if each.request_id not in made]
        return [made[each.request_id] for each in inputs]

    def _pieces(self, inputs: Sequence[DiffusionInput]) -> list[Piece]:
        return [
            Piece(
                each.information["codes"].to(each.token_ids.device).T,
                self._states.setdefault(each.information["stream"][0], self._decoders[0].start()),
            )
            for each in inputs
        ]

    def forget(self, stream: str) -> None:
        """Drop what is kept of a stream whose next part never comes."""
        self._states.pop(stream, None)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
