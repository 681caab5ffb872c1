"""`omni serve` names the parsers before anything is loaded."""

from __future__ import annotations

import pytest

from omni_cli.cli import serve
from omni_cli.cli.app import run


def test_a_parser_that_vllm_lacks_is_refused_with_the_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "_TOOL_PARSERS", ["hermes", "mistral"])
    assert run(["serve", "--profile", "tiny-omni", "--port", "0", "--tool-call-parser", "hermse"]) == 2
    error = capsys.readouterr().err
    assert "`--tool-call-parser hermse`: vLLM has no such parser" in error and "one of hermes, mistral" in error
