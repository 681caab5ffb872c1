"""The interleaved sides: the plain library call, and the project's own code in each of its modes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from models import PipelineModel, Token2WavModel, twin, twin_pipeline

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest
from omni_cli.backends.execution.ranges import clock_for
from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig, Execution

PLAIN = "plain"
_OUTPUT_FIELDS = {"image": "images", "video": "frames", "sound": "audios"}  # of the outputs of diffusers' pipelines
PROMPT = "an image"
EXECUTIONS = tuple({"execution": mode} for mode in ("eager", "compile", "cudagraph"))
ACCELERATIONS = (
    {"execution": "compile_cudagraph"},
    *({"cache": {"method": "first_block", "threshold": threshold}} for threshold in (0.0, 0.2, 0.4)),
)
# Measured after the others: its first call takes long.
FLOAT8 = {"quantization": "float8_dynamic", "execution": "compile"}


@dataclass(frozen=True)
class Call:
    """One call: wall seconds until its output was on the host, and the device's seconds of its parts.

    `output` is what the mode is responsible for: pixels, samples (num_samples, channels), or the mel spectrogram, from
    which `waveform` is made.
    """

    output: np.ndarray
    e2e_s: float
    metrics: Mapping[str, float]
    waveform: np.ndarray | None = None


class Side(Protocol):
    name: str
    denoiser: torch.nn.Module

    def run(self, seed: int) -> Call: ...

    def denoise(self, seed: int) -> None:
        """Run a call up to its last step."""

    def counters(self) -> dict[str, float]:
        """Counters since the side was made; empty for the plain library."""

    def effective(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class PlainPipeline:
    """The fastest way of diffusers to an output on the host: `output_type="pt"`, pixels as uint8 on the device."""

    def __init__(self, model: PipelineModel, pipeline: Any) -> None:
        self.name = PLAIN
        self.denoiser = pipeline.transformer
        self._model = model
        self._pipeline = pipeline

    def run(self, seed: int) -> Call:
        start = time.perf_counter()
        output = on_host(self._model, call_pipeline(self._model, self._pipeline, [PROMPT], [seed], "pt")[0])
        return Call(output, time.perf_counter() - start, {})

    def denoise(self, seed: int) -> None:
        call_pipeline(self._model, self._pipeline, [PROMPT], [seed], "latent")

    def counters(self) -> dict[str, float]:
        return {}

    def effective(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Do nothing: nothing was changed."""


def call_pipeline(
    model: PipelineModel, pipeline: Any, prompts: Sequence[str], seeds: Sequence[int], output_type: str
) -> Any:
    """Return what the pipeline makes of the prompts as one batch."""
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    call = dict(model.call)
    if len(prompts) > 1 and "negative_prompt" in call:
        call["negative_prompt"] = [call["negative_prompt"]] * len(prompts)
    made = pipeline(
        prompt=list(prompts) if len(prompts) > 1 else prompts[0],
        generator=generators if len(prompts) > 1 else generators[0],
        num_inference_steps=model.num_inference_steps, output_type=output_type, **model.shape, **model.given, **call,
    )  # fmt: skip
    return getattr(made, _OUTPUT_FIELDS[model.makes])


def on_host(model: PipelineModel, made: torch.Tensor) -> np.ndarray:
    """Samples of one sound (num_samples, channels), or pixels of images or of videos' frames as uint8."""
    if model.makes == "sound":
        return made.T.float().cpu().numpy()
    return made.movedim(-3, -1).float().mul(255).round().to(torch.uint8).cpu().numpy()


class ExecutorPipeline:
    """`DiffusersPipelineExecutor` over a pipeline with the same weights."""

    def __init__(
        self,
        model: PipelineModel,
        pipeline: Any,
        device: str,
        keys: Mapping[str, Any],
        *,
        batch_size: int = 1,
    ) -> None:
        """`keys` are those of the stage."""
        self.name = name_of(keys)
        self._model = model
        self._batch_size = batch_size
        self._pipeline = own = twin_pipeline(pipeline)
        self.denoiser = own.transformer
        stage = stage_of(model, **{"output_copy": "sync", **keys})
        self._executor = DiffusersPipelineExecutor(
            stage, model.name, model.dtype, device, prompt_cache_bytes=0, make_pipeline=lambda: own
        )

    def run(self, seed: int) -> Call:
        """Run `batch_size` requests at once; outputs are stacked, and the times are those of the last request."""
        start = time.perf_counter()
        seeds = range(seed, seed + self._batch_size)
        given = self._model.given
        requests = [
            self._executor.resolve(DiffusionRequest(str(seed), PROMPT, seed=seed, conditions=given)) for seed in seeds
        ]
        outputs = self._executor.execute_model(tuple(requests), on_step=_no_progress)
        made = [made_by(output) for output in outputs]
        seconds = time.perf_counter() - start
        made = [np.stack(frames) if isinstance(frames, list) else frames for frames in made]
        times = outputs[-1].times
        steps = times.denoise_step_s
        metrics = {"denoise_step_s": float(np.median(steps)), "denoise_loop_s": float(sum(steps))}
        return Call(
            made[0] if len(made) == 1 else np.stack(made), seconds, {**metrics, "vae_decode_s": times.vae_decode_s}
        )

    def denoise(self, seed: int) -> None:
        call_pipeline(self._model, self._pipeline, [PROMPT], [seed], "latent")

    def counters(self) -> dict[str, float]:
        return dict(self._executor.execution_counters)

    def effective(self) -> dict[str, Any]:
        return dict(self._executor.effective)

    def close(self) -> None:
        self._executor.shutdown()


def made_by(output: DiffusionOutput) -> np.ndarray | list[np.ndarray]:
    """Return what a request made; a video's frames are on the host then, one by one, as an encoder takes them."""
    if output.error is not None:
        raise output.error
    if output.videos:
        return [*chain.from_iterable(output.videos[0].pieces())]
    return (*output.images, *output.sounds)[0]


def name_of(keys: Mapping[str, Any]) -> str:
    """A side's name, from which `settings_of` reads its settings: `execution=eager`, `cache.threshold=0.1`."""
    given = {key: value if isinstance(value, dict) else {"": value} for key, value in keys.items()}
    return " ".join(
        f"{key}.{field}={value}".replace(".=", "=") for key, fields in given.items() for field, value in fields.items()
    )


def settings_of(name: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in name.split() if "=" in part)


def stage_of(model: PipelineModel, **keys: Any) -> DiffusionStageConfig:
    """A stage for the model's call with these keys."""
    return DiffusionStageConfig.create(
        name=model.name, num_inference_steps=model.num_inference_steps, **keys,
        **_of_stage({**model.shape, **model.call}),
    )  # fmt: skip


def _of_stage(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a stage for arguments of a call; those that are no keys of their own belong in `call`."""
    own = {name: value for name, value in arguments.items() if name in PIPELINE_ARGUMENTS}
    return {**own, "call": {name: value for name, value in arguments.items() if name not in own}}


def _no_progress(_request_id: str, _done: int, _total: int) -> None:
    pass


class Token2Wav:
    """transformers' token2wav: its sampler, then its vocoder. `execution` None is the plain model."""

    def __init__(self, model: Token2WavModel, module: Any, device: str, execution: Execution | None) -> None:
        self.name = PLAIN if execution is None else f"execution={execution}"
        self._model = model
        self._device = torch.device(device)
        self._clock = clock_for(device)
        self._module = module if execution is None else twin(module)
        self.denoiser = self._module.code2wav_dit_model
        self._prepared = None
        if execution is not None:
            from omni_cli.backends.execution.modes import make_execution_mode

            self._prepared = make_execution_mode(self.denoiser, execution, stage=model.name, device=device)
        config = module.config.dit_config
        draw = torch.Generator("cpu").manual_seed(0)
        self._speaker = torch.randn(1, config.enc_emb_dim, generator=draw).to(self._device)
        self._reference = torch.randn(1, 300, config.mel_dim, generator=draw).to(self._device)
        self._codes = torch.randint(0, config.num_embeds, (1, model.num_codes), generator=draw).to(self._device)

    def run(self, seed: int) -> Call:
        clock, begin = self._clock, time.perf_counter()
        with torch.no_grad():
            start = clock.mark()
            mel = self._sample(seed)
            sampled = clock.mark()
            waveform = self._module.code2wav_bigvgan_model(mel).float().cpu()
            end = clock.mark()
        e2e_s = time.perf_counter() - begin
        loop_s = clock.seconds(start, sampled)
        # The solver makes one step less than it has points in time.
        step_s = loop_s / (self._model.num_inference_steps - 1)
        metrics = {"denoise_step_s": step_s, "denoise_loop_s": loop_s, "vocoder_s": clock.seconds(sampled, end)}
        return Call(mel.cpu().numpy(), e2e_s, metrics, waveform.numpy())

    def denoise(self, seed: int) -> None:
        with torch.no_grad():
            self._sample(seed)

    def _sample(self, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return self.denoiser.sample(
            self._speaker, self._reference, self._codes, num_steps=self._model.num_inference_steps
        )

    def counters(self) -> dict[str, float]:
        return {} if self._prepared is None else self._prepared.counters.as_dict()

    def effective(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self._prepared is not None:
            self._prepared.close()
