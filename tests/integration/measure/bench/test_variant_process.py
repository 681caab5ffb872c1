"""A variant's process alone: its environment, its failures, and a record if only one fits into memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.families import builtins
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import ExitCode
from omni_cli.measure.bench.checks import Free
from omni_cli.measure.bench.harness import Harness
from omni_cli.measure.bench.prompts import Prompts
from omni_cli.measure.bench.protocol import Load, Ran
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.bench.variant_process import VariantError, VariantProcess
from omni_cli.measure.bench.workload import Workload
from omni_cli.requests.encoding import encode_png

pytestmark = pytest.mark.slow


def load_request(folder: Path, profile: str = "tiny-image", **changes: Any) -> Load:
    fields = {
        "profile": profile, "overrides": (), "model": None, "seed": None, "trust_remote_code": False, "stage": "all",
        "batch_size": 1, "input_len": 8, "output_len": 4, "given_lengths": (), "inputs": str(folder / "inputs"),
        "records_inputs": True,
    }  # fmt: skip
    return Load(**{**fields, **changes})


def with_process(launch: VariantConfig, load: Load, use: Callable[[VariantProcess], Coroutine]) -> Any:
    async def run() -> Any:
        process = VariantProcess(launch, load)
        try:
            await process.start()
            return await use(process)
        finally:
            await process.close()

    return asyncio.run(run())


def test_a_process_gets_its_variables_repeats_its_outputs_and_is_named_when_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables are set before Python starts, and empty ones are unset; each number has its own outputs."""
    monkeypatch.setenv("OMNI_TEST_GONE", "here")
    launch = VariantConfig("slow", environment={"OMP_NUM_THREADS": "1", "OMNI_TEST_GONE": ""})

    async def use(process: VariantProcess) -> None:
        environment = psutil.Process(process.pid).environ()
        assert environment["OMP_NUM_THREADS"] == "1" and "OMNI_TEST_GONE" not in environment
        loaded = await process.load(lambda event: None)
        assert loaded.stages[0].settings["num_threads"] == 1, "it reaches the engine, too"
        first, second, again = [(await process.run(number, when="test")).output_sha256 for number in (0, 1, 0)]
        assert first == again != second
        os.kill(process.pid, signal.SIGSTOP)
        await process.run(0, when="block 3", timeout_s=1)

    with pytest.raises(VariantError, match=r"variant `slow` is considered hung \(block 3\): no answer within 1 s"):
        with_process(launch, load_request(tmp_path, "tiny-omni", stage="thinker"), use)


def test_requests_of_a_file_are_sent_in_every_iteration(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(encode_png(np.zeros((256, 256, 3), np.uint8)))
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "What is this?", "image": "image.png"}\n{"prompt": "And that?"}\n')

    request = load_request(tmp_path, "tiny-qwen3-omni", stage="thinker", batch_size=2, requests=str(path))

    async def use(process: VariantProcess) -> list[Ran]:
        await process.load(lambda event: None)
        return [await process.run(number, when="test") for number in (0, 1)]

    first, second = with_process(VariantConfig("a"), request, use)
    assert first.output_sha256 == second.output_sha256, "greedy answers to the same requests"
    assert first.work == {"requests": 2, "input_tokens": first.work["input_tokens"], "output_tokens": 8}
    assert first.work["input_tokens"] > 80, "with the image's"


@pytest.mark.nightly
def test_a_prompt_that_is_too_long_is_the_users_mistake(tmp_path: Path) -> None:
    async def use(process: VariantProcess) -> None:
        await process.load(lambda event: None)
        await process.run(0, when="warming up")

    with pytest.raises(VariantError, match="the prompt is longer than stage `thinker` takes") as raised:
        with_process(VariantConfig("a"), load_request(tmp_path, "tiny-omni", stage="thinker", input_len=3000), use)
    assert raised.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("name", "length"), [("tiny-omni", 1), ("tiny-omni", 2), ("tiny-omni", 31), ("tiny-omni", 128),
                         ("tiny-qwen3-omni", 31), ("tiny-csm", 31)],
)  # fmt: skip
def test_prompts_have_exactly_as_many_tokens(name: str, length: int) -> None:
    from tokenizers import Tokenizer

    folder, frame = resolve_model(f"builtin:{name}"), builtins()[name].prompt_frame
    prompts = Prompts(folder, length, frame=frame)
    drawn = [prompts.draw(number, index) for number in range(3) for index in range(2)]
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    assert {len(tokenizer.encode(text).ids) for text in drawn} == {length}
    again = Prompts(folder, length, frame=frame)
    assert drawn == [again.draw(number, index) for number in range(3) for index in range(2)]
    assert length < 3 or len(set(drawn)) == 6


class Notes:
    """Records the harness's events."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.warmed: list[str] = []

    def loading(self, variant: str, event: Any) -> None:
        pass

    def warming_up(self, variant: str) -> None:
        self.warmed.append(variant)

    def falling_back(self, reason: str) -> None:
        self.reasons.append(reason)

    def block_done(self, state: Any) -> None:
        pass


@pytest.mark.nightly
def test_variants_that_do_not_fit_together_are_loaded_alternately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_cli.measure.bench.schedule.MAX_PER_LOAD", 2)
    config = load_profile("tiny-image")
    session = RecordBuilder(
        [VariantConfig("a"), VariantConfig("b")],
        command=(),
        environment={},
        workload=Workload().describe(config),
        folder=tmp_path,
    )
    notes = Notes()
    harness = Harness(
        session,
        launch=lambda index: VariantProcess(VariantConfig("ab"[index]), load_request(tmp_path)),
        limits=RunLimits(num_iters=4, num_iters_warmup=1, time_budget_s=None),
        decided=lambda record: False,
        watcher=notes,
        # The machine has next to nothing left, whatever is loaded.
        read_free=lambda: Free(host=2**20),
    )
    asyncio.run(harness.run())
    record = session.record()
    assert record.environment["conditions"]["interleaving"] == "loads"
    assert len(notes.reasons) == 1 and "for 1 more" in notes.reasons[0]
    assert [len(variant.samples) for variant in record.variants] == [4, 4]
    a, b = ({s.position for s in variant.samples if s.block == 1} for variant in record.variants)
    assert max(b) < min(a), "the second block begins with the variant that is loaded"
    # Loaded once at each change: a and b in the first block, a in the second.
    assert notes.warmed == ["a", "b", "a"]
