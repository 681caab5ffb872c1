"""The process that runs a reference: `python -m omni_cli.measure.verify.reference_worker WORK ANSWER`, two files.

It prints a line of progress per request, and ends with the command that started it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from omni_cli.config.families import load
from omni_cli.config.roles import for_family
from omni_cli.core.compat.libraries import prepare_libraries
from omni_cli.core.errors import OmniError
from omni_cli.measure.verify.reference import ReferenceAnswer, Results, Work
from omni_cli.models.scores import EngineTokens, Expected, NoReferenceError
from omni_cli.stage.messages import decoder, pack


def run(work: Work, say: Callable[[str], None]) -> ReferenceAnswer:
    """Load the reference in one way after another, and run all requests in each."""
    task = work.reference
    assert task.family.reference is not None  # it is asked to run one
    reference_class = load(task.family.reference)
    from omni_cli.models.rough_sums import RoughSums  # which imports torch

    config = for_family(task.config, task.family)
    results: Results = []
    outputs, token_ids = list(work.outputs), dict[str, tuple[int, ...]]()
    if config.adapters and not getattr(reference_class, "takes_adapters", False):
        return ReferenceAnswer(why="the reference of this model family takes no LoRA adapters")
    for number, way in enumerate(work.ways):
        name = f"reference in {way.dtype}, {way.attention} attention ({number + 1} of {len(work.ways)})"
        say(f"{name}: loading")
        try:
            reference = reference_class(Path(task.folder), config, way, *filter(None, (task.python,)))
        except NoReferenceError as error:
            return ReferenceAnswer(why=str(error))
        found: list[Expected | str] = []
        for count, output in enumerate(outputs):
            say(f"{name}: request {count + 1} of {len(outputs)}")
            try:
                if output.text is not None:
                    ids = reference.tokens_of(output.request, output.text)
                    token_ids[output.request.request_id] = tuple(ids)
                    tokens = {config.stages[0].name: EngineTokens.without_logprobs(ids)}
                    outputs[count] = output = replace(output, tokens=tokens, text=None)
                is_rough = way.rough_sums and not getattr(reference, "has_kernels_of_stage", False)
                with RoughSums() if is_rough else contextlib.nullcontext():
                    found.append(reference.expected(output))
            except (NoReferenceError, OmniError) as error:
                found.append(str(error))
            except Exception as error:  # noqa: BLE001 - transformers raises anything, and the row reports it
                traceback.print_exc()
                found.append(f"the reference failed: {type(error).__name__}: {error}")
        results.append(found)
        del reference
        gc.collect()
    return ReferenceAnswer(results, token_ids)


def main() -> None:
    # Libraries print; the progress must be the only thing on stdout.
    progress = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task, answer = map(Path, sys.argv[1:3])
    # Which the command removes.
    os.environ["TMPDIR"] = str(task.parent)
    prepare_libraries()
    _quieten()
    work = decoder(Work).decode(task.read_bytes())
    answer.write_bytes(pack(run(work, lambda text: print(text, file=progress))))


def _quieten() -> None:
    import diffusers
    import transformers

    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.disable_progress_bar()
        library.set_verbosity_error()


def _end_with_parent() -> None:
    """Wait until the command closes the pipe, which it does when it ends, and end."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
