"""VibeVoice on vLLM: text and voices in, control tokens from the backbone, and sound as it is made.

The sound of a step comes from the diffusion at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import diffusers
import torch
from transformers import AutoProcessor, GenerationConfig
from transformers.models.vibevoice.modeling_vibevoice import VibeVoiceModel
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2 import Qwen2Model
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.outputs import RequestOutput

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.cuda_graphs import RowGraphs
from omni_cli.backends.execution.graphs import GraphBackend, batch_sizes
from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable, InputEmbedsModel
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.checkpoints.shards import lacking
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.codec.frame_stage import FRAMES_PER_PART, StepStage
from omni_cli.models.codec.settings import growing_chunks
from omni_cli.models.vibevoice.branches import BranchCache, ConvolutionCache
from omni_cli.models.vibevoice.family import SPEAKERS
from omni_cli.models.vibevoice.prompts import make_inputs
from omni_cli.models.vibevoice.settings import SpeakerConfig
from omni_cli.models.vibevoice.speech_frames import LAST_TOKEN, NOISE, SpeechStore
from omni_cli.models.voices import note_on_voice, speaker_for
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.voices import rate_notes
from omni_cli.stage.messages import Report, RequestDone
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import EmbeddedPrompt


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
        self.make_ends(vllm_config, text.vocab_size, text.hidden_size, maybe_prefix(prefix, "lm_head"))
        self.speech = VibeVoiceModel._from_config(config, dtype=torch.get_default_dtype()).eval()
        self.speech.language_model = None
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

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def rows_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Return rows as they are: a frame is kept as its input row."""
        return codes

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
            velocity = plain + self.guidance_scale * (guided - plain)
            latents = self._scheduler.step(velocity, timestep, latents).prev_sample
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
        return super().load_weights(backbone) | {f"speech.{name}" for name in speech}


# A stage that kept all the sound of an hour until its end would hold it three times there.
_FRAMES_PER_WHOLE_PART = 256


class SpeakerStage(StepStage):
    """Speaks a text: tokens control the speech, and a token that means sound comes with its samples."""

    voices = SPEAKERS

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, SpeakerConfig)
        self.stage = spec.stage
        if spec.stage.has_ranks_elsewhere:
            raise StageError("VibeVoice runs on one rank", stage=spec.stage.name, hint="`--replicas N` starts several")
        super().__init__(spec, emit)
        (self.model,) = self.engine.collective_rpc("get_model")
        self.num_codebooks = self.model.samples_per_frame
        self._processor: Any = AutoProcessor.from_pretrained(spec.model)
        self._sample_rate: int = self._processor.feature_extractor.sampling_rate
        self._embed = EmbeddingTable(spec.model, "model.language_model.embed_tokens.weight", self.dtype)

    def engine_args(self) -> dict[str, object]:
        own = {"num_diffusion_steps": self.stage.num_diffusion_steps, "cfg_scale": self.stage.cfg_scale}
        overrides = {"architectures": [self.role.architecture], **own}
        return {**super().engine_args(), "hf_overrides": overrides}

    @property
    def settings(self) -> dict[str, object]:
        steps, guidance = self.model.num_steps, self.model.guidance_scale
        return {**super().settings, "num_diffusion_steps": steps, "cfg_scale": guidance}

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, "stream": self.stage.streams}

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        request = active.request
        noise = torch.Generator().manual_seed(request.seed)
        inputs = make_inputs(self._processor, request)
        token_ids: list[int] = inputs["input_ids"][0].tolist()
        if not token_ids:
            raise InputError("the prompt is empty")
        rows = self._embed(token_ids)
        if "input_values" in inputs:
            hop_length = self.config.audio_config.hop_length
            num_frames = [-(-count // hop_length) for count in inputs["padding_mask"].sum(dim=-1).tolist()]
            voices = self.model.voice_rows(inputs["input_values"], num_frames, noise)
            rows[inputs["input_ids"][0] == self.config.audio_token_id] = voices.to(rows)
        speaker = request.speech.speaker
        named = () if speaker is None else note_on_voice(speaker, speaker_for(speaker, SPEAKERS))
        active.context["notes"] = (*named, *rate_notes(request.speech.voices, self._sample_rate))
        sampling = {**self.spec.ar.sampling.set_values(), **request.sampling}
        if sampling.get("temperature"):
            raise InputError("control tokens are not sampled: this model has no `temperature`")
        ends = [] if sampling.get("ignore_eos") else [self.config.eos_token_id]
        more = {NOISE: noise.get_state(), LAST_TOKEN: token_ids[-1:]}
        return EmbeddedPrompt(token_ids, rows, more=more), {"stop_token_ids": ends, "temperature": 0.0}

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
        sounds: list[torch.Tensor] = active.context.setdefault("sounds", [])
        rows = self.take_rows(active)
        if rows is not None:
            tokens = output.outputs[0].token_ids
            if len(rows) != len(tokens):
                message = f"{len(rows)} rows of samples do not fit {len(tokens)} tokens"
                raise StageError(message, stage=self.spec.stage.name)
            made = [row for row, token in zip(rows, tokens, strict=True) if token == self.config.audio_token_id]
            self.check_numbers(torch.stack(made) if made else None, "samples")
            sounds += made
        chunks: list[Report] = []
        num_chunks = active.context.setdefault("num_chunks", 0)
        streamed = growing_chunks(1, FRAMES_PER_PART)[: num_chunks + 1][-1]
        needed = streamed if active.request.speech.stream_audio else _FRAMES_PER_WHOLE_PART
        if len(sounds) >= needed or (sounds and output.finished):
            active.context["num_chunks"] += 1
            active.context["sounds"] = []
            chunks.append(AudioChunk(active.request.request_id, torch.cat(sounds).numpy(), self._sample_rate))
        return [*chunks, *super().output(active, output)]

    def finish(self, active: ActiveRequest, output: RequestOutput) -> RequestDone:
        report = super().finish(active, output)
        num_chunks = active.context["num_chunks"]
        if not num_chunks:
            raise InputError("the model said nothing: it ended at once")
        if active.request.speech.stream_audio:
            report.trace["num_chunks"] = num_chunks
        return report
