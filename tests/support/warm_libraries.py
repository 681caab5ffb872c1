"""The last import of the process that the engines of tests are forked from: what each of them would do again.

A command that is not warm, and one of a user, starts without it.
"""

import gc

import compressed_tensors.logger  # noqa: F401 - with a hundred modules, by vLLM while it reads a checkpoint
import transformers.models.qwen2_5_omni.modeling_qwen2_5_omni  # noqa: F401
from transformers import PreTrainedConfig


def short_repr(config: PreTrainedConfig) -> str:
    return f"{type(config).__name__}()"


# transformers checks each field of a config against a union of types, and words an error, which nobody sees, for each
# type that it is not; the usual representation compares a config with a new one. A fifth of the start of an engine.
PreTrainedConfig.__repr__ = short_repr
gc.freeze()
