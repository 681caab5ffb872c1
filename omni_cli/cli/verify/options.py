"""The options of `omni verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omni_cli.cli.loadtest.options import ApiKeyOption
from omni_cli.cli.options import LoraOption, ProfileOptions, TimeoutOption, WaitOption, option

Route = Literal["chat", "completions", "speech", "images", "transcriptions"]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ProfileOptions):
    """A profile, a model or a server, and how to verify it."""

    url: str | None = option(
        "--url URL", "Verify a running OpenAI-compatible server. `--model DIR` adds the comparison with transformers."
    )
    route: Route = option("--route", "The server's route to call.", default="chat")
    served_model_name: str | None = option(
        "--served-model-name NAME", "The model to request. Default: the first one of the server."
    )
    api_key: ApiKeyOption = None
    wait: WaitOption = None
    lora: LoraOption = None
    requests: Path | None = option(
        "--requests FILE.jsonl", "Requests, one JSON object per line. Default: a few of each modality."
    )
    vary: list[str] | None = option(
        "--vary KEY=A,B", "Compare the outputs of several values of a key with those of the first."
    )
    strict: bool = option("--strict", "Exit with 5 for near ties, too.", default=False)
    logprobs: bool = option(
        "--logprobs",
        "Print each token's log-probability by the engine and by the reference, and their ratio.",
        default=False,
    )
    low_memory: bool = option(
        "--low-memory", "Read weights of the reference that do not fit when they are used.", default=False
    )
    reference_python: Path | None = option(
        "--reference-python PATH", "Python with the publisher's package, for a reference that needs one."
    )
    output_json: Path | None = option("--output-json FILE", "Save the record.")
    markdown: Path | None = option("--markdown FILE", "Also write the result as Markdown.")
    junit: Path | None = option("--junit FILE", "Also write the rows as JUnit XML.")
    timeout: TimeoutOption = None
