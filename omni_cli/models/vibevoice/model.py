"""VibeVoice as a vLLM model: control tokens from the backbone, and sound from the diffusion at the end of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import diffusers
import torch
from transformers import GenerationConfig
from transformers.models.vibevoice.modeling_vibevoice import VibeVoiceModel
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.cuda_graphs import RowGraphs
from omni_cli.backends.execution.graphs import GraphBackend, batch_sizes
from omni_cli.backends.vllm.input_embeds_stage import InputEmbedsModel
from omni_cli.checkpoints.shards import lacking
from omni_cli.models.vibevoice.branches import BranchCache, ConvolutionCache
from omni_cli.models.vibevoice.speech_frames import SpeechStore


class VibeVoiceSpeaker(InputEmbedsModel):
    """vLLM's Qwen2 samples control tokens; `speak` turns the hidden states of sound tokens into samples.

    Steps and guidance are those of the stage, which come as `num_diffusion_steps` and `cfg_scale` of the config, else
    those of the generation config.
    """

    frame_store = SpeechStore
    num_branches = 2
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"model.language_model.": "model."})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        text = config.text_config
        self.config = config
        self._folder = vllm_config.model_config.model
        self.model = Qwen2Model(
            vllm_config=vllm_config.with_hf_config(text, architectures=["Qwen2ForCausalLM"]),
            prefix=maybe_prefix(prefix, "model"),
        )
        self.lm_head = ParallelLMHead(text.vocab_size, text.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        self.logits_processor = LogitsProcessor(text.vocab_size)
        self.speech = VibeVoiceModel._from_config(config, dtype=torch.get_default_dtype()).eval()
        self.speech.language_model = None
        self.make_input_buffers(vllm_config.scheduler_config.max_num_batched_tokens, text.hidden_size, text.hidden_size)
        self.samples_per_frame = config.audio_config.hop_length
        self.num_slots: int = vllm_config.scheduler_config.max_num_seqs
        self._graphs = RowGraphs()
        self._make_scheduler(getattr(config, "num_diffusion_steps", None), getattr(config, "cfg_scale", None))
        # The diffusion's of each slot, then the control tokens'.
        num_branches = self.num_branches * self.num_slots
        self.branches = BranchCache(self.model, num_branches, vllm_config.model_config.max_model_len, self._graphs)
        # A graph's rows without a request use a slot that no request has.
        self._acoustic, self._semantic = (ConvolutionCache(self.num_slots + 1) for _ in range(2))

    def _make_scheduler(self, num_steps: int | None, guidance_scale: float | None) -> None:
        generation = GenerationConfig.from_pretrained(self._folder)
        self.num_steps: int = num_steps or getattr(generation, "num_diffusion_steps", None) or 10
        own = 1.0 if generation.guidance_scale is None else generation.guidance_scale
        self.guidance_scale: float = own if guidance_scale is None else guidance_scale
        name = getattr(generation, "noise_scheduler_class", "DPMSolverMultistepScheduler")
        default = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"}
        with torch.device("cpu"):  # it computes its numbers on the host, and multiplies tensors of any device by them
            self._scheduler: Any = getattr(diffusers, name)(**getattr(generation, "noise_scheduler_config", default))
            self._scheduler.set_timesteps(num_inference_steps=self.num_steps)
        self.register_buffer("timesteps", self._scheduler.timesteps.to(self.inputs.device), persistent=False)

    @property
    def predictor_counters(self) -> ExecutionCounters:
        """Counters of the calls of `speak` and of the branches."""
        return self._graphs.counters

    def allocate_branches(self, num_tokens: int) -> None:
        """Make room for the branches of as many tokens as vLLM's KV cache holds."""
        self.branches.allocate(self.num_branches * num_tokens, self.lm_head.weight)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return zeros (num_tokens, hidden_size): all inputs come as rows."""
        return self.inputs.new_zeros((len(input_ids), self.inputs.shape[1]))

    def embed_tokens(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (num_tokens, hidden_size) of token ids."""
        rows: torch.Tensor = self.model.embed_tokens(token_ids)
        return rows

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def rows_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Return rows as they are: a frame is kept as its input row."""
        return codes

    def add_rows(self, rows: torch.Tensor) -> None:
        """Add rows (num_tokens, hidden_size) to the input embeddings of the next forward pass."""
        self.input_embeds[: rows.shape[0]] += rows

    def capture_predictor(self, backend: GraphBackend, *, compiles: bool) -> None:
        """Capture the branches' steps and `speak`, as plain PyTorch."""
        weight = self.lm_head.weight
        self.branches.capture(backend, weight[0])
        for size in batch_sizes(self.num_slots):
            slots = torch.full((size,), self.num_slots, device=weight.device)
            states = [weight.new_zeros((size, weight.shape[1])) for _ in range(2)]
            noise = weight.new_zeros((size, self.config.audio_config.hidden_size))
            self._graphs.capture(backend, "speak", self._speak, [slots, *states, noise])

    def clear_slot(self, slot: int) -> None:
        """Forget the request that had a slot."""
        for cache in (self._acoustic, self._semantic):
            cache.clear(slot)
        for branch in (slot, slot + self.num_slots):
            self.branches.clear(branch)

    @torch.inference_mode()
    def voice_rows(self, waveforms: torch.Tensor, num_frames: Sequence[int], noise: torch.Generator) -> torch.Tensor:
        """Return input rows (sum of num_frames, hidden_size) of voices (num_voices, 1, num_samples)."""
        speech, weight = self.speech, self.lm_head.weight
        latents = speech.audio_tower.encoder(waveforms.to(weight)).latents
        # In the order, and in the memory layout, in which the reference draws.
        spread = speech.config.audio_config.vae_std * torch.randn(len(latents), generator=noise).to(latents)
        drawn = torch.empty_like(latents, device="cpu", dtype=torch.float32).normal_(generator=noise)
        latents = latents + spread[:, None, None] * drawn.to(latents)
        latents = (latents + speech.latent_bias_factor) * speech.latent_scaling_factor
        rows = speech.multi_modal_projector(latents)
        return torch.cat([row[:count] for row, count in zip(rows, num_frames, strict=True)])

    def speak(
        self, slots: Sequence[int], conditions: torch.Tensor, negatives: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 samples (num_requests, samples_per_frame), and input rows (num_requests, hidden_size).

        `conditions` and `negatives` are hidden states (num_requests, hidden_size), `noise` (num_requests, latent_size).
        """
        count = len(slots)
        idle = self._graphs.size("speak", count) - count
        values = [torch.tensor([*slots, *[self.num_slots] * idle]), conditions, negatives, noise]
        sounds, rows = self._graphs.run("speak", self._speak, count, values)
        return sounds, rows

    def _speak(
        self, slots: torch.Tensor, conditions: torch.Tensor, negatives: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        speech = self.speech
        slots = slots.to(conditions.device, non_blocking=True)
        latents = self._denoise(torch.cat([conditions, negatives]), noise.to(conditions))[:, None]
        scaled = latents / speech.latent_scaling_factor - speech.latent_bias_factor
        acoustic, semantic = self._acoustic.use(slots), self._semantic.use(slots)
        sound = speech.audio_tower.decoder(scaled.transpose(1, 2), padding_cache=acoustic).audio
        heard = speech.semantic_tokenizer_encoder(sound, padding_cache=semantic).latents
        rows = speech.multi_modal_projector(latents) + speech.semantic_connector(heard)
        return sound[:, 0].float(), rows[:, 0]

    def _denoise(self, conditions: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        self._scheduler.set_timesteps(num_inference_steps=self.num_steps)
        for timestep, on_device in zip(self._scheduler.timesteps, self.timesteps, strict=True):
            both = torch.cat([latents, latents])
            times = on_device.expand(len(both)).to(both)
            guided, plain = self.speech.diffusion_head(both, times, condition=conditions).chunk(2)
            latents = self._scheduler.step(
                plain + self.guidance_scale * (guided - plain), timestep, latents
            ).prev_sample
        return latents

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the backbone by vLLM's means, and the rest by transformers' names for it."""
        speech: dict[str, torch.Tensor] = {}
        backbone: list[tuple[str, torch.Tensor]] = []
        for name, weight in weights:
            inner = name.removeprefix("model.")
            if name.startswith("lm_head.") or inner.startswith("language_model."):
                backbone.append((name, weight))
            else:
                speech[inner] = weight
        if not any(name.startswith("lm_head.") for name, _ in backbone):
            tied = "model.language_model.embed_tokens.weight"
            backbone += [("lm_head.weight", weight) for name, weight in backbone if name == tied]
        missing = self.speech.load_state_dict(speech, strict=False).missing_keys
        if missing:
            raise lacking(self._folder, [f"model.{name}" for name in missing])
        mapper = self.hf_to_vllm_mapper | self.model.hf_to_vllm_mapper
        loaded: set[str] = AutoWeightsLoader(self).load_weights(iter(backbone), mapper=mapper)
        return loaded | {f"speech.{name}" for name in speech}
