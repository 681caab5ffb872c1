"""GLM-Image's autoregressive model for vLLM: GLM-4 with M-RoPE, and the encoder that tokenizes images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers.models.glm_image.modeling_glm_image import GlmImageVisionModel, GlmImageVQVAE
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.glm4 import Glm4DecoderLayer, Glm4ForCausalLM
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import PPMissingLayer, WeightsMapper, maybe_prefix

if TYPE_CHECKING:
    from transformers import GlmImageTextConfig


class GlmImageDecoderLayer(Glm4DecoderLayer):
    """GLM-4's layer with GLM-Image's rotary embedding, which pairs the halves of a head rather than neighbours."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "", config: GlmImageTextConfig | None = None) -> None:
        config = config or vllm_config.model_config.hf_config
        config.rope_parameters.setdefault("partial_rotary_factor", 1.0)  # GLM-4's default is another
        super().__init__(vllm_config, prefix, config)
        self.self_attn.rotary_emb = get_rope(
            self.self_attn.head_dim,
            max_position=config.max_position_embeddings,
            rope_parameters=config.rope_parameters,
            is_neox_style=True,
        )


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class GlmImageTextModel(LlamaModel):
    """The decoder without its head."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        # `LlamaModel` reads this key, which the configuration lacks because the head has another vocabulary.
        vllm_config.model_config.hf_config.tie_word_embeddings = False
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=GlmImageDecoderLayer)


class GlmImageForConditionalGeneration(Glm4ForCausalLM, SupportsMRoPE):
    """Generates image tokens from text and image tokens; the head has no text tokens.

    For vLLM this is a language model: images are tokenized before, with `image_tokens`.
    """

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.language_model.": "model.",
            "model.visual.": "visual.",
            "model.vqmodel.": "vqmodel.",
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        nn.Module.__init__(self)  # GLM-4's would build a head for the whole vocabulary
        config = vllm_config.model_config.hf_config
        text_config = config.text_config
        self.config = config
        self.quant_config = vllm_config.quant_config
        self.model = GlmImageTextModel(
            vllm_config=vllm_config.with_hf_config(text_config, architectures=["Glm4ForCausalLM"]),
            prefix=maybe_prefix(prefix, "model"),
        )
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.lm_head: nn.Module = PPMissingLayer()
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(
                text_config.vision_vocab_size,
                text_config.hidden_size,
                quant_config=self.quant_config,
                prefix=maybe_prefix(prefix, "lm_head"),
            )
        self.logits_processor = LogitsProcessor(text_config.vision_vocab_size)
        self.visual: nn.Module = PPMissingLayer()
        self.vqmodel: nn.Module = PPMissingLayer()
        if get_pp_group().is_first_rank:
            dtype = vllm_config.model_config.dtype
            self.visual = GlmImageVisionModel._from_config(config.vision_config, dtype=dtype)
            self.vqmodel = GlmImageVQVAE._from_config(config.vq_config, dtype=dtype)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[object]) -> tuple[torch.Tensor, int]:
        """Return positions of plain text, for a request without its own."""
        return torch.arange(len(input_tokens)).expand(3, -1), 0

    @torch.inference_mode()
    def image_tokens(self, pixel_values: torch.Tensor, grids: torch.Tensor) -> list[torch.Tensor]:
        """Return the token ids (rows, columns) of each image, on the host.

        `pixel_values` (num_patches, values per patch) are the patches of all images, `grids` (num_images, 3) their
        numbers of frames, rows and columns.
        """
        weight = self.visual.patch_embed.proj.weight
        pixels = pixel_values.to(weight.device, weight.dtype)
        features = self.visual(pixels, grid_thw=grids.to(weight.device), return_dict=True).last_hidden_state
        tokens = []
        for part, (_, rows, columns) in zip(features.split(grids.prod(-1).tolist()), grids.tolist(), strict=True):
            grid = part.view(1, rows, columns, -1).permute(0, 3, 1, 2).contiguous()
            tokens.append(self.vqmodel.encode(grid).image_tokens.view(rows, columns).cpu())
        return tokens


class ImageTokens:
    """Extends our workers, through vLLM's `worker_extension_cls`, by a method that the stage calls on each."""

    def image_tokens(self, pixel_values: torch.Tensor, grids: torch.Tensor) -> list[torch.Tensor] | None:
        """Return the token ids of images; None on ranks without the encoder."""
        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # the worker's
        return None if isinstance(model.visual, PPMissingLayer) else model.image_tokens(pixel_values, grids)
