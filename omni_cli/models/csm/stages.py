"""CSM on vLLM: backbone and depth decoder make frames of codes from text, and Mimi makes samples of these.

vLLM's Llama samples the first code of each frame as its token; the depth decoder draws the others within the step. The
input of a text position is its embedding, which comes with the request; that of a frame is the sum of its codes'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AutoProcessor, CsmDepthDecoderForCausalLM, MimiModel
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import PPMissingLayer, WeightsMapper, maybe_prefix

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.core.errors import CheckpointError
from omni_cli.models.codec.code_predictor import CodeNetwork, CodeSampling, stack_projections
from omni_cli.models.codec.decoder_stage import CodecForDiffusion
from omni_cli.models.codec.frame_model import FrameModel
from omni_cli.models.codec.frame_stage import FrameStage
from omni_cli.models.csm.family import SPEAKERS, make_inputs, pick_speaker
from omni_cli.models.voices import note_on_voice
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import EmbeddedPrompt


class CsmBackbone(FrameModel, SupportsPP):
    """Loads the weights of a CSM checkpoint, except the text embeddings and Mimi."""

    predictor_name = "depth_decoder"
    # Of a sampling depth decoder, from the released checkpoint's generation_config.json.
    sampling = CodeSampling(top_k=50, top_p=1.0, temperature=0.9)
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "backbone_model.embed_tokens.embed_audio_tokens.": "model.embed_tokens.",
            # The same table under both names.
            "depth_decoder.model.embed_tokens.": "model.embed_tokens.",
            "backbone_model.": "model.",
            "embed_text_tokens.": None,
            "codec_model.": None,
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        if not config.tie_codebooks_embeddings:
            raise CheckpointError(
                f"{vllm_config.model_config.model} has separate code embeddings for backbone and depth decoder "
                "(`tie_codebooks_embeddings: false`), which this version cannot run"
            )
        self.config = config
        self.num_codebooks: int = config.num_codebooks
        self.max_num_seqs: int = vllm_config.scheduler_config.max_num_seqs
        self.model = LlamaModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        # Of all codebooks, because the depth decoder reads them too. A copy per rank costs less than exchanging rows.
        self.model.embed_tokens = nn.Embedding(config.num_codebooks * config.vocab_size, config.hidden_size)
        self.make_ends(vllm_config, config.vocab_size, config.hidden_size, maybe_prefix(prefix, "lm_head"))
        self.depth_decoder: nn.Module = PPMissingLayer()
        if get_pp_group().is_last_rank:
            self.depth_decoder = CsmDepthDecoderForCausalLM._from_config(
                config.depth_decoder_config, dtype=torch.get_default_dtype()
            )
            del self.depth_decoder.model.embed_tokens
            stack_projections(self.depth_decoder.model.layers)

    def code_network(self) -> CodeNetwork:
        depth = self.depth_decoder
        return CodeNetwork(
            layers=depth.model.layers,
            norm=depth.model.norm,
            rotary_emb=depth.model.rotary_emb,
            embed=self.embed_codes,
            head=lambda index, hidden: self._only_codes(hidden @ depth.codebooks_head.weight[index - 1]),
            project=depth.model.inputs_embeds_projector,
        )

    def embed_codes(self, index: int, codes: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.model.embed_tokens(codes + index * self.config.vocab_size)
        return rows

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return None if logits is None else self._only_codes(logits)

    def _only_codes(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the ids after the codes in logits (batch, vocab_size), because Mimi cannot decode them."""
        logits[:, self.config.codec_config.codebook_size :] = float("-inf")
        return logits


class CsmCodec(CodecForDiffusion):
    """Loads the weights called `codec_model.`, except the encoder's."""

    weights_prefix = "codec_model."

    def make_codec(self, config: Any) -> nn.Module:
        mimi = config.codec_config
        self.sample_rate, self.codebook_size = mimi.sampling_rate, mimi.codebook_size
        self.num_codebooks = config.num_codebooks
        codec: nn.Module = MimiModel._from_config(mimi, dtype=torch.get_default_dtype())
        codec.encoder = codec.encoder_transformer = codec.downsample = None
        return codec


class BackboneStage(FrameStage):
    """Generates frames of codes from a text; vLLM samples the first codes as tokens."""

    voices = SPEAKERS

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        self.num_codebooks = self.config.num_codebooks
        self._processor: Any = AutoProcessor.from_pretrained(spec.model)
        self._embed = EmbeddingTable(spec.model, "embed_text_tokens.weight", self.dtype)

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        speaker = active.request.speech.speaker
        active.context["notes"] = note_on_voice(speaker, pick_speaker(speaker))
        rows = self._embed(make_inputs(self._processor, active.request)["input_ids"][0].tolist())
        # Of a text, to whose rows no embeddings of codes are added.
        return EmbeddedPrompt([0] * len(rows), rows, tokens_without_embedding=len(rows)), {}

    def is_end(self, active: ActiveRequest) -> bool:
        """As in the reference, a frame of end ids ends the speech, with any last code."""
        sampling = {**self.spec.ar.sampling.set_values(), **active.request.sampling}
        frames = active.context["codes"]
        if sampling.get("ignore_eos") or len(frames) < int(sampling.get("min_tokens", 0)):
            return False
        return bool((frames[-1][:-1] == self.config.codebook_eos_token_id).all())

    def num_spoken(self, active: ActiveRequest) -> int:
        frames = active.context.get("codes", [])
        # As in the reference, a frame of end ids is silent, but not one with another last code.
        is_silent = "ended" in active.context and bool((frames[-1] == self.config.codebook_eos_token_id).all())
        return len(frames) - is_silent

    def num_reported(self, active: ActiveRequest) -> int:
        return len(active.token_ids)
