"""Imported once by the fork server, so that every stage process starts with the slow imports done.

Importing starts no thread pool and touches no device: processes are forked from here.
"""

# First: the imports below take seconds, in which the command may end.
from omni_cli.engine.orphan_watch import OrphanWatch

_watch = OrphanWatch()

from omni_cli.compat.torchvision import ensure_torchvision_importable  # noqa: E402
from omni_cli.engine.host_allocator import keep_freed_memory  # noqa: E402

keep_freed_memory()
ensure_torchvision_importable()

import transformers  # noqa: E402, F401

try:
    import vllm.engine.arg_utils
    import vllm.v1.engine.llm_engine  # noqa: F401

    import omni_cli.models.vllm_registry  # noqa: F401
except ImportError:
    # Without vLLM the diffusers stages still run; a stage that needs vLLM says so itself.
    pass

_watch.stop()
