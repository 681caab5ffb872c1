"""The options of `omni chat`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from omni_cli.cli.loadtest.options import ApiKeyOption
from omni_cli.cli.options import LoraOption, OutputDirOption, ProfileOptions, option


@dataclass(frozen=True, kw_only=True)
class ChatOptions(ProfileOptions):
    """A profile, a model or a server to talk to."""

    url: Annotated[
        str | None,
        option("--url", "URL", "Talk to a running OpenAI-compatible server instead; `--model` is then its model."),
    ] = None
    api_key: ApiKeyOption = None
    lora: LoraOption = None
    system: Annotated[str | None, option("--system", "TEXT", "The system message.")] = None
    output_dir: OutputDirOption = Path("out/chat")
