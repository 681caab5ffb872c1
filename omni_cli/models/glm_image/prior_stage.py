"""GLM-Image's autoregressive stage on a vLLM engine: image tokens from a prompt.

Its model is GLM-4 with M-RoPE, and the encoder that tokenizes images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.models.glm_image.modeling_glm_image import GlmImageVisionModel, GlmImageVQVAE
from vllm import SamplingParams
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
from vllm.outputs import RequestOutput

from omni_cli.backends.vllm.input_embeds_stage import InputEmbedsModel
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.glm_image.family import check_arguments, check_sampling, get_size
from omni_cli.models.glm_image.prompts import PriorOutput, PriorProcessor, PriorPrompt, mrope_positions
from omni_cli.models.glm_image.settings import PriorConfig
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Report
from omni_cli.stage.payloads import encode_additional_information
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION

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

    get_mrope_input_positions = InputEmbedsModel.get_mrope_input_positions

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


class PriorStage(TextStage):
    """Image tokens from a prompt and images; the size of the image determines their number."""

    makes_text = False

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, PriorConfig)
        check_sampling(spec.stage.sampling.set_values(), f"stage `{spec.stage.name}`: ")
        self._prior = spec.stage
        self._processor = PriorProcessor(Path(spec.model, "processor"))
        # For vLLM, this component of the pipeline is the checkpoint.
        super().__init__(replace(spec, model=str(Path(spec.model, "vision_language_encoder"))), emit)
        config = self.engine.vllm_config.model_config
        self._start_token_id: int = config.hf_config.image_start_token_id
        self._end_token_id: int = config.hf_config.image_end_token_id
        self._image_token_id: int = config.hf_config.image_token_id
        self._num_logits: int = config.hf_config.text_config.vision_vocab_size
        self._max_model_len: int = config.max_model_len

    def engine_args(self) -> dict[str, object]:
        return {
            **super().engine_args(),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # the profile has the checkpoint's settings
            "worker_extension_cls": "omni_cli.models.glm_image.prior_stage.ImageTokens",
        }

    def warm_up_request(self) -> GenerateRequest | None:
        return None  # the shortest image takes as many steps as it has tokens

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        request = active.request
        check_arguments(request.diffusion)
        check_sampling(request.sampling)
        if request.messages or request.media.audio or request.media.videos:
            raise InputError("this model takes a prompt and images")
        height, width = get_size(request.diffusion, self._prior, [image.shape for image in request.media.images])
        prompt = self._processor.make(request.prompt or "", request.media.images, height, width, raw=request.text.raw)
        self._check_length(prompt, height, width)
        image_token_ids: tuple[torch.Tensor, ...] = ()
        if prompt.pixel_values is not None:
            by_rank = self.engine.collective_rpc("image_tokens", args=(prompt.pixel_values, prompt.image_grids))
            image_token_ids = tuple(next(tokens for tokens in by_rank if tokens is not None))
        active.context.update(prompt=prompt, image_token_ids=image_token_ids)
        # The placeholders of images become their tokens.
        image_tokens = iter([token_id for image in image_token_ids for token_id in image.flatten().tolist()])
        token_ids = [next(image_tokens) if own == self._image_token_id else own for own in prompt.token_ids]
        positions = mrope_positions(prompt.token_ids, self._start_token_id, prompt.images, prompt.targets)
        information = encode_additional_information({"mrope_positions": positions}, self.payload_limits)
        params = self.sampling_params(
            request,
            detokenize=False,
            max_tokens=prompt.num_new_tokens,
            stop_token_ids=[self._end_token_id],
            extra_args={ADDITIONAL_INFORMATION: information},
        )
        # The same tokens in another grid have other positions, which vLLM's block hashes do not cover.
        salt = f"{prompt.images}{request.cache_salt or ''}"
        return {"prompt_token_ids": token_ids, "cache_salt": salt}, params

    def _check_length(self, prompt: PriorPrompt, height: int, width: int) -> None:
        length = len(prompt.token_ids) + prompt.num_new_tokens
        if length > self._max_model_len:
            name = self.spec.stage.name
            raise InputError(
                f"an image of {width}x{height} pixels takes {prompt.num_new_tokens} tokens after a prompt of "
                f"{len(prompt.token_ids)}; stage `{name}` takes {self._max_model_len} in all",
                hint=f"make it smaller, or allow more with `--set {name}.max_model_len={length}`",
            )

    def sampling_params(self, request: GenerateRequest, **extra: object) -> SamplingParams:
        # For "all", and for greedy requests, vLLM uses the size of the vocabulary, and there are fewer logits.
        sampling = {"top_k": 0, **self.spec.ar.sampling.set_values(), **request.sampling}
        top_k = sampling["top_k"]
        if sampling.get("temperature") == 0:
            extra |= {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0}
        elif top_k in (-1, 0) or (isinstance(top_k, int) and top_k > self._num_logits):
            extra["top_k"] = self._num_logits
        return super().sampling_params(request, **extra)

    def max_tokens(self, request: GenerateRequest) -> int | None:
        active = self.active.get(request.request_id)
        return None if active is None else active.context["prompt"].num_new_tokens

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        prompt: PriorPrompt = active.context["prompt"]
        num_tokens = prompt.num_new_tokens
        if len(active.token_ids) < num_tokens or self._end_token_id in active.token_ids:
            raise StageError(
                f"the model ended the image after {len(active.token_ids)} of {num_tokens} tokens",
                stage=self.spec.stage.name,
                hint="try another seed",
            )
        rows, columns = prompt.targets[-1]
        token_ids = torch.tensor(active.token_ids[num_tokens - rows * columns :]).view(rows, columns)
        images = tuple(torch.from_numpy(array.copy()) for array in active.request.media.images)
        image_token_ids = active.context["image_token_ids"]
        stage_output = PriorOutput(active.request.prompt or "", token_ids, images, image_token_ids)
        return encode_additional_information(stage_output.information())
