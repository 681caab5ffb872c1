"""Checkpoints with random weights: models by their configurations, and whatever else their folder contains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from omni_cli.checkpoints.weights import Draw, normal_tensor, random_state_dict

State = dict[str, torch.Tensor]
ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0}


class DecoderSizes(NamedTuple):
    """A decoder, by the keys of its configuration.

    vLLM's CPU attention supports head sizes of 32, 64, 128 and a few more, not 16.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int

    @property
    def config_of_whole_heads(self) -> dict[str, int]:
        """The keys of a configuration without `head_dim`, whose heads share `hidden_size` evenly."""
        return {name: size for name, size in self._asdict().items() if name != "head_dim"}

    @property
    def mrope_section(self) -> list[int]:
        """Rotary pairs for time, height and width, in Qwen's proportions 2 : 3 : 3."""
        return [self.head_dim // 8, self.head_dim * 3 // 16, self.head_dim * 3 // 16]

    @property
    def mrope(self) -> dict[str, object]:
        return {**ROPE, "mrope_section": self.mrope_section}


@dataclass
class RandomModel:
    """A model to build: its class in transformers or diffusers, and the keys of its configuration.

    `gains` are those of `random_state_dict`. `adjust` then changes the weights in place: a function of the state dict,
    the configuration, and a function that draws a standard normal tensor by name and shape.
    """

    kind: Any
    config: dict[str, Any]
    gains: Mapping[str, float]
    stream: str = ""
    adjust: Callable[[State, Any, Callable[[str, tuple[int, ...]], torch.Tensor]], None] | None = None
    generation: Mapping[str, Any] | None = None

    def build(self, stream: str, seed: int, draw: Draw) -> nn.Module:
        """Return the model with random weights; `stream` begins the names by which they are drawn."""
        in_transformers = issubclass(self.kind, PreTrainedModel)
        with torch.device("meta"):
            if in_transformers:
                model = self.kind(self.kind.config_class(**{"dtype": "float32", **self.config}))
            else:
                model = self.kind(**self.config)
        state = random_state_dict(model, seed, prefix=stream, gains=self.gains, draw=draw)
        if "shared.weight" in state:
            state["encoder.embed_tokens.weight"] = state["shared.weight"]  # T5's embeddings under their second name
        if self.adjust is not None:
            self.adjust(state, model.config, lambda name, shape: draw(name, shape, 0.0, 1.0, seed))
        model.load_state_dict(state, assign=True)
        if self.generation is not None:
            # vLLM and `generate` stop at the end token that is named here.
            model.generation_config = GenerationConfig(**self.generation)
            for part in model.children():
                if getattr(part, "generation_config", None) is not None:
                    part.generation_config = GenerationConfig()
        return model.eval()


@dataclass
class Checkpoint:
    """The content of a folder: models by subfolder, "" for the folder itself, and a processor, or only a tokenizer.

    `finish` writes what else belongs there: a function of the folder and the seed. With `pipeline`, a class of
    diffusers, `models`, the tokenizer and `others` are its components.
    """

    models: dict[str, RandomModel]
    processor: Any
    finish: Callable[[Path, int], None] | None = None
    pipeline: Any = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, seed: int, draw: Draw = normal_tensor) -> None:
        """Write all files; the same seed gives the same bytes. `draw` draws the weights."""
        with quiet_transformers():
            if self.pipeline is not None:
                models = {name: model.build(f"{name}.", seed, draw) for name, model in self.models.items()}
                self.pipeline(**models, tokenizer=self.processor, **self.others).save_pretrained(folder)
            else:
                for name, model in self.models.items():
                    model.build(model.stream, seed, draw).save_pretrained(folder / name)
                self.processor.save_pretrained(folder)
        if self.finish is not None:
            self.finish(folder, seed)
        # By the umask, because safetensors makes its own files readable to the owner only.
        umask = os.umask(0)
        os.umask(umask)
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(0o666 & ~umask)


def builder(recipe: Callable[..., Checkpoint], *sizes: Any) -> Callable[[Path, int], None]:
    """Return a function of a folder and a seed that writes a recipe's checkpoint, as families name it in `builtins`."""

    def build(output_dir: Path, seed: int) -> None:
        recipe(*sizes).write(output_dir, seed)

    return build


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Disable progress bars and warnings of transformers.

    They would report the talker's text ids outside its own vocabulary, which are intended.
    """
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()
