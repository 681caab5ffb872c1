"""vllm-omni as one of the interleaved sides, in a process of its own with its own versions of vLLM and diffusers.

It gets no checkpoint: a folder of configurations is written, weights are those of `random_weights` by the same names,
and the prompt's embeddings are sent, as text encoders run before what is measured here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from models import PipelineModel
from random_weights import fill

PROMPT = "an image"
_OF_SAMPLING = ("true_cfg_scale", "guidance_scale")


class VllmOmni:
    """A resident engine of vllm-omni."""

    def __init__(
        self,
        model: PipelineModel,
        pipeline: Any,
        python_path: str,
        *,
        device: str,
        batch_size: int,
        gain: float,
        num_tokens_vary: bool,
    ) -> None:
        """`pipeline` gives configurations, names and embeddings; `python_path` finds vllm-omni."""
        self._model = model
        self._exit = ExitStack()
        folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory()))
        parts = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
        _write_configurations(pipeline, parts, folder)
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], stdout=sys.stderr, pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": python_path},
            )  # fmt: skip
        shapes = {
            name: {key: tuple(values.shape) for key, values in part.named_parameters()} for name, part in parts.items()
        }
        # Without a wait, the first of several requests starts alone.
        keys = {"max_num_seqs": batch_size, "request_batch_max_wait_ms": 5.0 if batch_size > 1 else 0.0}
        keys |= {"boundary_ratio": pipeline.config["boundary_ratio"]} if "boundary_ratio" in pipeline.config else {}
        torch.save(pipeline.encode_prompt(PROMPT), folder / "embeddings.pt")
        self._ask(folder=str(folder), shapes=shapes, keys=keys, device=device, gain=gain, vary=num_tokens_vary)

    def run(self, prompts: Sequence[str]) -> tuple[float, list[float], np.ndarray]:
        """Return the seconds until all outputs were on the host, those of each, and the first output's pixels."""
        model = self._model
        sampling = {
            "num_inference_steps": model.num_inference_steps,
            **model.shape,
            **{name: model.call[name] for name in _OF_SAMPLING if name in model.call},
        }
        if model.makes == "video":
            sampling.setdefault("guidance_scale", 5.0)  # the default of diffusers' pipelines
        negative = model.call.get("negative_prompt")
        answer = self._ask(prompts=list(prompts), sampling=sampling, negative=negative, image=model.given.get("image"))
        return answer["seconds"], answer["completions"], answer["output"]

    def memory(self) -> float:
        """Return the GiB that torch has held at most since the last call of this."""
        return float(self._ask(memory=True)["gib"])

    def close(self) -> None:
        self._connection.close()
        self._process.wait()
        self._exit.close()

    def _ask(self, **question: Any) -> dict[str, Any]:
        self._connection.send(question)
        return self._connection.recv()  # type: ignore[no-any-return]


def _write_configurations(pipeline: Any, parts: dict[str, torch.nn.Module], folder: Path) -> None:
    index = {"_class_name": type(pipeline).__mro__[1].__name__, "_diffusers_version": "0.40.0"}
    index |= {name: ["diffusers", type(part).__name__] for name, part in parts.items()}
    index |= {"scheduler": ["diffusers", type(pipeline.scheduler).__name__]}
    (folder / "model_index.json").write_text(json.dumps(index))
    pipeline.scheduler.save_pretrained(folder / "scheduler")
    for name, part in parts.items():
        part.save_config(folder / name)  # type: ignore[operator]
    (folder / "text_encoder").mkdir()
    encoder = {"model_type": "qwen3", "tie_word_embeddings": False}
    (folder / "text_encoder" / "config.json").write_text(json.dumps(encoder))


def _serve(connection: Connection) -> None:
    """The other process: answer the questions of a `VllmOmni` until it is closed."""
    setup = connection.recv()
    embeddings = torch.load(f"{setup['folder']}/embeddings.pt", map_location=setup["device"])
    stage = SimpleNamespace(**setup, embeddings=embeddings)
    engine = _engine(stage)
    connection.send({})
    while True:
        try:
            question = connection.recv()
        except EOFError:
            break
        if "memory" in question:
            on_device = stage.device == "cuda"
            connection.send({"gib": torch.cuda.max_memory_reserved() / 2**30 if on_device else 0.0})
            if on_device:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
        else:
            connection.send(_generate(engine, **question))
    engine.close()


def _engine(stage: SimpleNamespace) -> Any:
    """An engine as vllm-omni makes it by default."""
    from vllm_omni.diffusion.model_loader.diffusers_loader import DiffusersPipelineLoader
    from vllm_omni.diffusion.registry import DiffusionModelRegistry
    from vllm_omni.entrypoints.omni import Omni

    def load_weights(_loader: Any, pipeline: torch.nn.Module, **_: Any) -> None:
        read = {source.subfolder for source in pipeline.weights_sources} - {"text_encoder"}
        pipeline.load_weights(_filled(stage, read))

    def encode_prompt(_pipeline: Any, prompt: str | list[str], *_: Any, **__: Any) -> Any:
        if not stage.vary:
            return stage.embeddings
        prompts = [prompt] if isinstance(prompt, str) else prompt
        rows = stage.embeddings[0][:, : max(1, len(prompts[0].split()))].expand(len(prompts), -1, -1)
        return rows, torch.ones(rows.shape[:2], dtype=torch.long, device=rows.device)

    name = json.loads((Path(stage.folder) / "model_index.json").read_text())["_class_name"]
    kind = DiffusionModelRegistry._try_load_model_cls(name)
    assert kind is not None
    _leave_out_encoders(sys.modules[kind.__module__], stage)
    kind.encode_prompt = encode_prompt
    DiffusersPipelineLoader.load_weights = load_weights
    return Omni(model=stage.folder, **stage.keys)


def _leave_out_encoders(module: Any, stage: SimpleNamespace) -> None:
    """Replace what the pipelines of `module` read from a checkpoint: encoders and tokenizers by nothing."""
    from diffusers import ModelMixin

    class Nothing(torch.nn.Module):
        config = SimpleNamespace()

    def from_pretrained_with_prefetch(load: Any, folder: str, *, subfolder: str, **_: Any) -> Any:
        return load(folder, subfolder=subfolder) if subfolder == "vae" else Nothing()

    def from_pretrained(kind: type[Any], folder: str, *, subfolder: str) -> Any:
        with torch.device(stage.device):
            model = kind.from_config(kind.load_config(folder, subfolder=subfolder)).eval()
        for name, values in _filled(stage, {subfolder}):
            model.get_parameter(name.removeprefix(f"{subfolder}.")).data = values
        return model

    ModelMixin.from_pretrained = classmethod(from_pretrained)
    module.from_pretrained_with_prefetch = from_pretrained_with_prefetch
    module.create_transformers_model = lambda *_args, **_named: Nothing()
    for name in ("Qwen2Tokenizer", "Qwen2TokenizerFast", "AutoTokenizer"):
        if hasattr(module, name):
            setattr(module, name, SimpleNamespace(from_pretrained=lambda *_args, **_named: None))


def _filled(stage: SimpleNamespace, parts: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for part in sorted(parts):
        for name, shape in stage.shapes[part].items():
            values = torch.empty(shape, dtype=torch.bfloat16, device=stage.device)
            fill(f"{part}.{name}", values, stage.gain)
            yield f"{part}.{name}", values


def _generate(
    engine: Any, prompts: Sequence[str], sampling: dict[str, Any], negative: str | None, image: Any
) -> dict[str, Any]:
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    asked = [
        {
            "prompt": prompt,
            **({} if negative is None else {"negative_prompt": negative}),
            **({} if image is None else {"multi_modal_data": {"image": image}}),
        }
        for prompt in prompts
    ]
    start = time.perf_counter()
    completions, outputs = [], []
    params = OmniDiffusionSamplingParams(seed=0, generator_device="cpu", **sampling)
    for output in engine.generate(asked, [params], py_generator=True, use_tqdm=False):
        completions.append(time.perf_counter() - start)
        outputs.append(output)
    seconds = time.perf_counter() - start
    made = np.asarray(outputs[0].images[0])
    if made.ndim == 5:  # a video, floats of a batch of one
        made = (made[0] * 255).round().astype(np.uint8)
    return {"seconds": seconds, "completions": completions, "output": made}


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as served:
        _serve(served)
