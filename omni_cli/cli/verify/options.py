"""The options of `omni verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from omni_cli.cli.loadtest.options import ApiKeyOption
from omni_cli.cli.options import LoraOption, ProfileOptions, TimeoutOption, WaitOption, option

Route = Literal["chat", "completions", "speech", "images", "transcriptions"]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ProfileOptions):
    """A profile, a model or a server, and how to verify it."""

    url: Annotated[
        str | None,
        option(
            "--url",
            "URL",
            "Verify a running OpenAI-compatible server. `--model DIR` adds the comparison with transformers.",
        ),
    ] = None
    route: Annotated[Route, option("--route", None, "The server's route to call.")] = "chat"
    served_model_name: Annotated[
        str | None,
        option("--served-model-name", "NAME", "The model to request. Default: the first one of the server."),
    ] = None
    api_key: ApiKeyOption = None
    wait: WaitOption = None
    lora: LoraOption = None
    requests: Annotated[
        Path | None,
        option("--requests", "FILE.jsonl", "Requests, one JSON object per line. Default: a few of each modality."),
    ] = None
    vary: Annotated[
        list[str] | None,
        option("--vary", "KEY=A,B", "Compare the outputs of several values of a key with those of the first."),
    ] = None
    strict: Annotated[bool, option("--strict", None, "Exit with 5 for near ties, too.")] = False
    logprobs: Annotated[
        bool,
        option(
            "--logprobs",
            None,
            "Print each token's log-probability by the engine and by the reference, and their ratio.",
        ),
    ] = False
    low_memory: Annotated[
        bool, option("--low-memory", None, "Read weights of the reference that do not fit when they are used.")
    ] = False
    reference_python: Annotated[
        Path | None,
        option(
            "--reference-python",
            "PATH",
            "Python with the publisher's package, for a reference that needs one.",
        ),
    ] = None
    output_json: Annotated[Path | None, option("--output-json", "FILE", "Save the record.")] = None
    markdown: Annotated[Path | None, option("--markdown", "FILE", "Also write the result as Markdown.")] = None
    junit: Annotated[Path | None, option("--junit", "FILE", "Also write the rows as JUnit XML.")] = None
    timeout: TimeoutOption = None
