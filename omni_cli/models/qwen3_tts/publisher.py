"""The publisher's package in a Python of its own: `python publisher.py FOLDER DTYPE ATTENTION IS_ROUGH`.

Requests come on stdin, and answers go to stdout, by pickle: the arguments of the package's call, the recording to clone
and the engine's tokens; the fields of a `SpokenText`, and what was noted of the tokens.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers  # noqa: F401 - it looks for the packages below while it is imported

SAMPLES_PER_FRAME = 1920


def load(folder: str, dtype: str, attention: str) -> Any:
    """Load a checkpoint without the packages that only the 25 Hz tokenizer needs."""
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime"):
        module = sys.modules[name] = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    kind: Any = import_module("qwen_tts").Qwen3TTSModel
    return kind.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation=attention)


def speak(model: Any, call: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Call the package, led through the tokens and codes of `given` if it has any; greedy."""
    from omni_cli.models.forcing import ForcedCodes, ForcedTokens, led_by, record_calls

    core = model.model
    kinds = {"custom_voice": "generate_custom_voice", "voice_design": "generate_voice_design"}
    speaking = getattr(model, kinds.get(core.tts_model_type, "generate_voice_clone"))
    tokens = ForcedTokens(given["tokens"], given["candidates"]) if "tokens" in given else None
    codes = ForcedCodes(given.get("codes", ()))
    leading = codes.leading(core.talker.code_predictor), led_by(core.talker, tokens)
    with leading[0], leading[1], record_calls(core) as calls, record_calls(core.talker) as talker_calls:
        (waveform,), _ = speaking(**call, do_sample=False, subtalker_dosample=False)
    ((_, ((frames,), *_)),), ((prompt, _),) = calls, talker_calls
    spoken = {
        # Behind the recording's, whose end the package finds to a sample only.
        "waveform": waveform[len(waveform) - len(frames) * SAMPLES_PER_FRAME :],
        "num_input_tokens": prompt["inputs_embeds"].shape[1],
        "codes": tuple(map(tuple, frames.tolist())),
    }
    return spoken, {**(tokens.notes if tokens else {}), **codes.notes}


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the package prints
    sys.path.insert(0, str(Path(__file__).parents[3]))
    folder, dtype, attention, is_rough = sys.argv[1:]
    model = load(folder, dtype, attention)
    with contextlib.ExitStack() as stack:
        if is_rough == "rough":
            from omni_cli.models.rough_sums import RoughSums

            stack.enter_context(RoughSums())
        questions: Any = sys.stdin.buffer
        while questions.peek(1):
            pickle.dump(speak(model, *pickle.load(questions)), answers)
            answers.flush()


if __name__ == "__main__":
    main()
