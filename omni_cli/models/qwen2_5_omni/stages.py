"""Qwen2.5-Omni's thinker and talker on vLLM engines; the talker makes codec tokens from the thinker's hidden states.

Every position of the talker is conditioned on one row of the thinker (`fill_input_embeds`): prompt positions on the
thinker's prompt, decoded ones on its reply, one row per step. Prompt tokens are codec ids too (the mask id means "no
codec token"), so vLLM sees ordinary token ids and batches, splits and preempts the request like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsPP
from vllm.model_executor.models.llama import LlamaDecoderLayer
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import PPMissingLayer, WeightsMapper, maybe_prefix
from vllm.outputs import RequestOutput

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable, InputEmbedsModel, InputEmbedsStage
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.checkpoints.shards import shards_with_prefix
from omni_cli.models.qwen2_5_omni.connectors import PartialOutput, load_speakers, more_embeds, thinker_to_talker
from omni_cli.models.qwen2_5_omni.settings import TalkerConfig
from omni_cli.models.qwen_omni.media import ThinkerOutput
from omni_cli.models.qwen_omni.thinker_stage import OmniThinkerStage
from omni_cli.models.voices import note_on_voice, pick_speaker
from omni_cli.requests.contents import StageIO
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AppendInput, Report
from omni_cli.stage.payloads import encode_additional_information
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import EmbeddedPrompt


def _decoder_layer(config: Any, cache_config: Any = None, quant_config: Any = None, prefix: str = "") -> nn.Module:
    """A Qwen2 layer whose head size comes from the config.

    The talker's `head_dim` is not hidden_size / num_attention_heads, which vLLM's Qwen2 layer assumes. vLLM's Llama
    layer has the same arithmetic; its head size, and a bias on q, k and v only, come from the config.
    """
    config.qkv_bias = True
    return LlamaDecoderLayer(vllm_config=get_current_vllm_config(), prefix=prefix, config=config)


class Qwen2_5OmniTalkerForConditionalGeneration(InputEmbedsModel, SupportsPP, SupportsMRoPE):
    """The talker; loads the weights called `talker.` of a whole Qwen2.5-Omni checkpoint."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "talker.codec_head.": "lm_head.",
            "talker.model.": "model.",
            "talker.thinker_to_talker_proj.": "thinker_to_talker_proj.",
            "thinker.": None,
            "token2wav.": None,
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self.allow_patterns_overrides = shards_with_prefix(vllm_config.model_config.model, "talker.")
        self.model = Qwen2Model(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), decoder_layer_type=_decoder_layer
        )
        sizes = {"hidden_size": config.hidden_size, "embedding_size": config.embedding_size}
        self.make_ends(vllm_config, config.vocab_size, head=maybe_prefix(prefix, "codec_head"), **sizes)
        self.thinker_to_talker_proj: nn.Module = PPMissingLayer()
        if get_pp_group().is_first_rank:
            # Codec embeddings are as wide as the thinker's rows and are projected together with them.
            self.model.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.embedding_size)
            self.thinker_to_talker_proj = ReplicatedLinear(
                config.embedding_size,
                config.hidden_size,
                prefix=maybe_prefix(prefix, "thinker_to_talker_proj"),
            )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return codec embeddings (num_tokens, embedding_size); zero for the mask id."""
        embeds = self.model.embed_tokens(input_ids)
        return embeds.masked_fill_((input_ids == self.config.tts_codec_mask_token_id).unsqueeze(-1), 0)

    def project_input(self, rows: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.thinker_to_talker_proj(rows)[0]
        return projected

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = self.logits_processor(self.lm_head, hidden_states)
        if logits is not None:
            # The reference suppresses the start token in every step.
            logits[:, self.config.tts_codec_start_token_id] = float("-inf")
        return logits


# Codes are sent to token2wav in blocks of its attention, which are also the units of its chunks.
CODES_PER_PART = 12


class ThinkerStage(OmniThinkerStage):
    """Passes all hidden states to the talker."""

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        rows, heard = self.new_rows(active), self.heard_ids(active, output)
        stage_output = ThinkerOutput(output.prompt_token_ids, heard, rows, active.context["media"])
        return encode_additional_information(stage_output.information())

    def partial_output(self, active: ActiveRequest, output: RequestOutput) -> bytes | None:
        partial: PartialOutput = active.context.setdefault("partial", PartialOutput())
        partial.add_rows(self.new_rows(active))
        heard, media = self.heard_ids(active, output), active.context["media"]
        part = partial.take(output.prompt_token_ids, heard, media, is_last=output.finished)
        return None if part is None else encode_additional_information(part)


class TalkerStage(InputEmbedsStage):
    """Generates codec tokens from the thinker's output."""

    makes_text = False

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        assert isinstance(spec.stage, TalkerConfig)
        self._talker_prompt = spec.stage.talker_prompt
        self.speakers = load_speakers(spec.model)
        self.voices = tuple(self.speakers)
        self._embed = EmbeddingTable(spec.model, "thinker.model.embed_tokens.weight", self.dtype)

    def warm_up_request(self) -> GenerateRequest | None:
        stage_output = ThinkerOutput([0] * 7, [0] * 2, self._embed([0] * 8), {})
        return GenerateRequest("", stage=StageIO(input=encode_additional_information(stage_output.information())))

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        request = active.request
        name = pick_speaker(self.voices, request.speech.speaker, default=None)
        active.context["notes"] = note_on_voice(request.speech.speaker, name)
        speaker = self.speakers[name]
        prompt = thinker_to_talker(
            ThinkerOutput.from_information(self.decode_input(request.stage.input)),
            config=self.config,
            embed=self._embed,
            text_bos_token_id=int(speaker["bos_token"]),
            talker_prompt=self._talker_prompt,
            is_whole=not request.stage.more_follows,
        )
        ends = [self.config.tts_codec_end_token_id, self.config.tts_codec_pad_token_id]
        return prompt, {"stop_token_ids": ends}

    def more_rows(self, command: AppendInput) -> torch.Tensor:
        reply = self.decode_input(command.stage_output)
        return more_embeds(reply, config=self.config, embed=self._embed, is_last=command.is_last)

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        return encode_additional_information({"codec_token_ids": active.token_ids})

    def partial_output(self, active: ActiveRequest, output: RequestOutput) -> bytes | None:
        new = active.token_ids[active.context.get("num_sent", 0) :]
        if len(new) < CODES_PER_PART and not output.finished:
            return None
        active.context["num_sent"] = len(active.token_ids)
        return encode_additional_information({"codec_token_ids": new})
