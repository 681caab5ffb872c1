"""Mistakes on the command line of `omni bench` are reported before anything starts, and without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from omni_cli.cli.app import _Commands, run
from omni_cli.cli.lazy import LazyGroup


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["--stage", "thinkr"], 2, ["unknown stage `thinkr`", "did you mean `thinker`"]),
        (["--stage", "ar", "--profile", "tiny-image"], 2, ["has no ar stage"]),
        (["--vary", "thinker.max_num_seq=1,8"], 2, ["max_num_seq", "did you mean `max_num_seqs`"]),
        (["--vary", "thinker.max_num_seqs=1,x"], 2, ["max_num_seqs"]),
        (["--vary", "max_num_seq=1,8"], 2, ["--vary max_num_seq=1: unknown key", "did you mean `max_num_seqs`"]),
        (["--vary", "image.max_num_seqs=1,8"], 2, ["--vary image.max_num_seqs=1: unknown stage `image`"]),
        (["--vary", "seed=1,2", "--set", "seeds=3"], 2, ["--set seeds=3: unknown key"]),
        (["--vary", "thinker.max_num_seqs=1"], 2, ["nothing to compare"]),
        (["--vary", "seed=1,2", "--seed", "3"], 2, ["are the same configuration"]),
        (["--vary", "a=1,2", "--against", "HEAD"], 2, ["cannot be combined"]),
        (["--max-regression", "5%"], 2, ["a limit needs a baseline"]),
        (["--vary", "env.A=1,2", "--max-regression", "0"], 2, ["a limit of 0 cannot be judged"]),
        (["--vary", "env.A=1,2", "--max-regression", "five"], 2, ["invalid value for `--max-regression`"]),
        (["--margin", "1%"], 2, ["unknown option `--margin`", "`omni compare RECORD --margin PERCENT`"]),
        (["--time-budget", "0"], 2, ["invalid value for `--time-budget`"]),
        (["--time-budget", "nan"], 2, ["invalid value for `--time-budget`"]),
        (["--num-iters", "0"], 2, ["--num-iters"]),
        (["--batch-size", "0"], 2, ["--batch-size"]),
        (["requests.jsonl"], 2, ["requests.jsonl"]),
        (["requests.jsonl", "--batch-size", "2"], 2, ["`--batch-size` and a file of requests exclude each other"]),
        (["--baseline", "missing.json"], 2, ["cannot read the record `missing.json`"]),
        (["--gate", "missing.yaml", "--against", "HEAD"], 2, ["missing.yaml"]),
        (["--self-check"], 2, ["unknown option `--self-check`", "`omni compare RECORD --self-check`"]),
        (["--model", "no/such/folder/here"], 2, ["no such model folder"]),
        (["--output-json", "no/such/folder/r.json"], 2, ["cannot write `no/such/folder/r.json`"]),
        (["--vary", "seed=1,2", "--quality", "lpips<=0.1"], 2, ["`lpips` needs a model", "--quality lpips=FOLDER"]),
        (["--quality", "lpip=."], 2, ["no measure `lpip` with weights", "did you mean `lpips`"]),
        (["--quality", "clip_score=."], 2, ["no checkpoint in `.`: cannot read its config.json"]),
        (["--quality", "wer"], 2, ["expected a limit such as psnr_db>=40"]),
        (["--against", "no-such-ref"], 2, ["no-such-ref"]),
        (["--profile", "nothing"], 2, ["no profile named `nothing`"]),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, parts: list[str], capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asyncio.create_subprocess_exec", _nothing_starts)
    assert run(["bench", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    for part in parts:
        assert part in err


def test_there_are_at_most_28_options_beside_help() -> None:
    """Those of the contract and a few more: further ones belong to the commands that read records."""
    command = LazyGroup.get_command(_Commands(name="omni"), None, "bench")
    context = typer.Context(command, info_name="bench")
    options = [param.name for param in command.get_params(context) if param.param_type_name == "option"]
    assert 20 < len(set(options) - {"help"}) <= 28


def _nothing_starts(*_: object, **__: object) -> None:
    raise AssertionError("a process was about to be started")


@pytest.mark.slow
def test_the_command_and_all_that_it_measures_with_need_no_torch() -> None:
    code = (
        "import sys; import omni_cli.cli.bench.run, omni_cli.cli.bench.command, omni_cli.measure.bench.local;"
        "print([name for name in ('torch', 'vllm', 'diffusers', 'transformers') if name in sys.modules])"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_variants_process_imports_no_torch_itself() -> None:
    code = (
        "import sys; import omni_cli.measure.bench.variant_worker;"
        "print([name for name in ('torch', 'vllm', 'diffusers', 'transformers') if name in sys.modules])"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"
