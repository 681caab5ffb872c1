"""An autoregressive stage whose input embeddings come from its input stage, such as a talker."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import AutoWeightsLoader, PPMissingLayer, WeightsMapper
from vllm.sequence import IntermediateTensors

from omni_cli.backends.vllm.schedulers import get_scheduler
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.checkpoints.shards import open_tensor
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AppendInput, Report
from omni_cli.stage.payloads import PayloadError
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import MORE_EMBEDS_FOLLOW, EmbeddedPrompt, payload_arguments


class InputEmbedsModel(nn.Module):
    """Buffers that our runner fills before each forward pass, with `fill_input_embeds`.

    `model` is vLLM's decoder, which runs on the sums.
    """

    hf_to_vllm_mapper: ClassVar[WeightsMapper]
    model: nn.Module
    input_embeds: torch.Tensor
    without_embedding: torch.Tensor
    inputs: torch.Tensor

    def make_input_buffers(self, num_rows: int, embedding_size: int, hidden_size: int) -> None:
        # Allocated once, because a CUDA graph reads the addresses that it was captured with.
        self.register_buffer("input_embeds", torch.zeros(num_rows, embedding_size), persistent=False)
        self.register_buffer("without_embedding", torch.zeros(num_rows, 1, dtype=torch.bool), persistent=False)
        self.register_buffer("inputs", torch.zeros(num_rows, hidden_size), persistent=False)
        self._any_without_embedding = False

    def make_ends(
        self, config: VllmConfig, vocab_size: int, hidden_size: int, head: str, *, embedding_size: int | None = None
    ) -> None:
        """Make what the first pipeline rank has before the decoder, and the last one behind it: `head` is a name."""
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        self.logits_processor = LogitsProcessor(vocab_size)
        self.lm_head: nn.Module = PPMissingLayer()
        if get_pp_group().is_first_rank:
            num_rows = config.scheduler_config.max_num_batched_tokens
            self.make_input_buffers(num_rows, embedding_size or hidden_size, hidden_size)
        if get_pp_group().is_last_rank:
            self.lm_head = ParallelLMHead(vocab_size, hidden_size, prefix=head)

    def fill_input_embeds(self, rows: Sequence[torch.Tensor | None], tokens_without_embedding: Sequence[int]) -> None:
        """Set the input embeddings of the next forward pass, one item per request, in batch order.

        `rows` (num_rows, embedding_size) are on the device, in the model's dtype; None raises `ValueError`. To the
        first `tokens_without_embedding` rows, the embedding of their token is not added. Rows past the last request
        keep their values: a graph captured for a larger batch computes them, and the results are ignored.
        """
        parts = [part for part in rows if part is not None]
        if len(parts) < len(rows):
            raise ValueError("a talker request needs prompt_embeds: the thinker's rows for its prompt")
        size = self.input_embeds.shape[1]
        for part in parts:
            if part.shape[1] != size:
                raise ValueError(f"the talker is conditioned on rows of {size}, got {part.shape[1]}")
        ends = list(itertools.accumulate(part.shape[0] for part in parts))
        torch.cat(parts, out=self.input_embeds[: ends[-1]])
        if self._any_without_embedding:
            self.without_embedding.zero_()
        self._any_without_embedding = any(tokens_without_embedding)
        for part, end, count in zip(parts, ends, tokens_without_embedding, strict=True):
            if count:
                first = end - part.shape[0]
                self.without_embedding[first : first + count] = True

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (num_tokens, embedding_size) of codec ids; zeros where all inputs come as rows."""
        return self.input_embeds.new_zeros((len(input_ids), self.input_embeds.shape[1]))

    def add_rows(self, rows: torch.Tensor) -> None:
        """Add rows (num_tokens, embedding_size) to the input embeddings of the next forward pass."""
        self.input_embeds[: len(rows)].add_(rows)  # `+=` would also copy it to itself

    def project_input(self, rows: torch.Tensor) -> torch.Tensor:
        """Project summed embeddings (num_tokens, embedding_size) to the decoder's (num_tokens, hidden_size)."""
        return rows

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """Return hidden states (num_tokens, hidden_size) of codec ids (num_tokens,).

        `positions` are (num_tokens,), or (3, num_tokens) with M-RoPE.
        """
        if get_pp_group().is_first_rank and inputs_embeds is None:
            assert input_ids is not None
            embeds = self.embed_input_ids(input_ids)
            embeds.masked_fill_(self.without_embedding[: len(embeds)], 0)
            embeds += self.input_embeds[: len(embeds)]
            rows = self.project_input(embeds)
            # Into the buffer that a captured graph reads.
            inputs_embeds = self.inputs[: rows.shape[0]].copy_(rows)
        hidden: torch.Tensor | IntermediateTensors = self.model(None, positions, intermediate_tensors, inputs_embeds)
        return hidden

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the model, whose decoder has vLLM's names; return the names of the used weights."""
        mapper = self.hf_to_vllm_mapper | self.model.hf_to_vllm_mapper
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=mapper)
        return loaded

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[object]) -> tuple[torch.Tensor, int]:
        """Return M-RoPE positions (3, num_tokens) of plain text; a request with media brings its own."""
        return torch.arange(len(input_tokens)).expand(3, -1), 0


def talker_part(architecture: str, config: Any) -> Any:
    """vLLM's `hf_overrides`: the talker's part of an omni model's config, as a model of this architecture.

    vLLM also calls it with an empty config, to check whether it changes the model type; that one is left unchanged.
    """
    if not hasattr(config, "talker_config"):
        return config
    talker = config.talker_config
    talker.architectures = [architecture]
    return talker


class EmbeddingTable:
    """Rows of another stage's embedding table, read from the checkpoint as they are needed."""

    def __init__(self, model: str, name: str, dtype: torch.dtype) -> None:
        self._table = open_tensor(model, name)
        self._dtype = dtype

    def __call__(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the rows (num_tokens, embedding_size) on the host."""
        if max(token_ids, default=0) >= self._table.shape[0]:
            raise PayloadError(f"token id {max(token_ids)} exceeds the thinker's {self._table.shape[0]} embeddings")
        return self._table.index_select(0, torch.tensor(token_ids, dtype=torch.long)).to(self._dtype)


class InputEmbedsStage(TextStage):
    """A stage that takes its input embeddings at once or as they arrive; a request that lacks one skips steps."""

    _num_early = 0

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        self.scheduler = get_scheduler(self.engine)
        self.config: Any = self.engine.vllm_config.model_config.hf_config
        self.dtype: torch.dtype = self.engine.vllm_config.model_config.dtype
        # The checkpoint's generation_config.json is the thinker's; its end tokens are not codec ids.
        self.engine.input_processor.generation_config_fields = {}
        # True while all requests wait for input, so that no step runs until a command arrives.
        self._is_stalled = False

    def engine_args(self) -> dict[str, object]:
        arguments, role = super().engine_args(), self.role
        if role.decoder == "talker_config":
            arguments["hf_overrides"] = functools.partial(talker_part, role.architecture)
        return {
            **arguments,
            "skip_tokenizer_init": True,
            # The sampling settings of the checkpoint's generation_config.json are the thinker's.
            "generation_config": "vllm",
            # Prompts differ in their input embeddings, which vLLM's block hashes do not cover, and not in their ids.
            "enable_prefix_caching": False,
            "scheduler_cls": "omni_cli.backends.vllm.schedulers.make_scheduler",
        }

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, **({"early_start": True} if self.spec.stage.starts_early else {})}

    @property
    def execution_counters(self) -> dict[str, float]:
        early = {} if self.spec.stage.input is None else {"early_requests": self._num_early}
        return {**super().execution_counters, **early}

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        """Return a request's prompt and the sampling parameters that the model needs."""
        raise NotImplementedError

    def more_rows(self, command: AppendInput) -> torch.Tensor:
        """Build the input embeddings (num_rows, embedding_size) that a command brings."""
        raise NotImplementedError

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        request = active.request
        prompt, sampling = self.begin(active)
        information = {**prompt.information(), MORE_EMBEDS_FOLLOW: [int(request.stage.more_follows)]}
        extra = payload_arguments(prompt.prompt_embeds, information, self.payload_limits)
        params = self.sampling_params(request, detokenize=False, extra_args=extra, **sampling)
        active.context["num_embeds"] = len(prompt.prompt_embeds) + len(prompt.decode_embeds)
        return {"prompt_token_ids": prompt.prompt_token_ids}, params

    def add(self, request: GenerateRequest) -> None:
        super().add(request)
        self._is_stalled = False
        if request.stage.more_follows:
            self._num_early += 1
            active = self.active[request.request_id]
            self.scheduler.expect_embeds(active.engine_id, active.context["num_embeds"])

    def append(self, command: AppendInput) -> None:
        self._is_stalled = False
        active = self.active.get(command.request_id)
        if active is None:
            return  # the request may end before its input does
        self.scheduler.append_embeds(active.engine_id, self.more_rows(command), is_last=command.is_last)

    def abort(self, request_id: str) -> None:
        self._is_stalled = False
        super().abort(request_id)

    def has_work(self) -> bool:
        return super().has_work() and not self._is_stalled

    def step(self) -> list[Report]:
        reports = super().step()
        self._is_stalled = self.scheduler.is_stalled
        return reports
