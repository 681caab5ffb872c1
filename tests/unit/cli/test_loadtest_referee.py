"""The referee of `omni loadtest`: conditions that make servers unequal are named, and fair pairs raise nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.planned_server import Plan, PlannedServer

from omni_cli.cli.app import run
from omni_cli.records.record import load_record
from omni_cli.stats.referee import get_observed

pytestmark = pytest.mark.slow

FAIR = Plan(first_s=0.04, gap_s=0.004, tokens=12)
LOAD = ("--concurrency", "4", "--num-requests", "8")
OPTIONS = ("--output-len", "12", "--num-iters-warmup", "1", "--num-iters")

Measure = Callable[..., tuple[int, str]]


@pytest.fixture
def measure(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measure:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def call(servers: list[PlannedServer], *arguments: str, windows: str = "4") -> tuple[int, str]:
        """(exit code, stderr)"""
        with ExitStack() as stack:
            for server in servers:
                stack.enter_context(server)
            load = () if "--request-rate" in arguments else LOAD
            code = run(["loadtest", *(server.url for server in servers), *load, *OPTIONS, windows, *arguments])
        return code, capsys.readouterr().err

    return call


def fixed(plan: Plan = FAIR, **options: Any) -> PlannedServer:
    return PlannedServer(lambda _: plan, **options)


def changed(**changes: Any) -> Plan:
    return Plan(**{**vars(FAIR), **changes})


def cold(number: int) -> Plan:
    """Slow for the canaries, the warm-up and about the first two windows."""
    return changed(first_s=0.2 if number < 19 + 40 else 0.04)


CHEATS: dict[str, tuple[Callable[[], PlannedServer], str, str]] = {
    "a longer template": (lambda: fixed(changed(prompt_tokens=12)), "counts 12 tokens per prompt", "prompt tokens"),
    "prompts that are cut": (lambda: fixed(changed(prompt_tokens=5)), "counts 5 tokens per prompt", "prompt tokens"),
    "shorter answers": (lambda: fixed(changed(tokens=8)), "answers with 8 tokens", "answer tokens"),
    "longer answers": (lambda: fixed(changed(tokens=14)), "answers with 14 tokens", "answer tokens"),
    "bundles that are counted": (
        lambda: fixed(changed(per_chunk=4, counts_chunks=True)), "sends 4 tokens per chunk", "bundled",
    ),
    "bundles": (lambda: fixed(changed(per_chunk=6)), "sends 6 tokens per chunk", "bundled"),
    "a limit of two": (lambda: fixed(parallel=2), "at once, in which 0 is none: 2 of", "parallel limit"),
    "one at a time": (lambda: fixed(parallel=1), "at once, in which 0 is none: 1 of", "parallel limit"),
    "not warm": (lambda: PlannedServer(cold), "it was not warm at this load", "warming up"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_named(measure: Measure, name: str) -> None:
    make, message, condition = CHEATS[name]
    code, err = measure(
        [fixed(), make()], "--strict", "--output-json", "r.json", windows="8" if condition == "warming up" else "4"
    )
    assert message in err
    assert code == 4 and f"conditions.{condition}" in err
    (first, *_) = load_record(Path("r.json")).comparisons
    named = [item.field for item in first.conditions or ()]
    assert (f"conditions.{condition}" in named) == (condition != "warming up"), "that of one server is no difference"


def test_a_cache_of_prompts_that_are_sent_again_is_named(measure: Measure) -> None:
    Path("twelve.jsonl").write_text("".join(json.dumps({"prompt": f"prompt number {n}"}) + "\n" for n in range(12)))
    cached = fixed(changed(first_s=0.1, repeated_s=0.02))
    code, err = measure([fixed(), cached], "--requests", "twelve.jsonl", "--strict", "--no-ignore-eos")
    assert "12 distinct requests were sent again and again" in err and "times as fast as new ones" in err
    assert code == 4 and "conditions.repeated prompts" in err


def test_prompts_that_an_earlier_run_has_sent_are_named(measure: Measure) -> None:
    cached = fixed(changed(first_s=0.1, repeated_s=0.02))
    code, err = measure([cached], "--output-json", "first.json")
    assert code == 0 and "as fast as new ones" not in err
    again = fixed(changed(first_s=0.1, repeated_s=0.02))
    again._seen = cached._seen
    code, err = measure([again], "--baseline", "first.json", "--strict")
    assert "it has seen them before" in err and code == 4


def rate_for(places: int) -> tuple[Plan, tuple[str, ...]]:
    """A plan, and twice the load that a server with so many places can serve of it."""
    plan = changed(gap_s=0.01 * places)
    rate = 2 * places / (plan.first_s + 11 * plan.gap_s)
    return plan, ("--request-rate", f"{rate:.4g}", "--num-requests", str(8 + 4 * places), "--strict")


@pytest.mark.parametrize("places", [1, 2, 4])
def test_a_limit_is_named_in_an_open_loop(measure: Measure, places: int) -> None:
    plan, load = rate_for(places)
    named = f"at once, in which 0 is none: {places} of"
    code, err = measure([fixed(plan), fixed(plan, parallel=places)], *load)
    for _ in range(2):
        if named not in err and "conditions.late client" in err:  # not valid, as `--strict` says: measured again
            code, err = measure([fixed(plan), fixed(plan, parallel=places)], *load)
    assert named in err
    assert code == 4 and "conditions.parallel limit" in err


@pytest.mark.parametrize(("places", "slower"), [(2, 1.0), (4096, 3.0)])
def test_fair_pairs_in_an_open_loop_raise_nothing(measure: Measure, places: int, slower: float) -> None:
    """The same limit for both, and a slow server without one."""
    plan, load = rate_for(2)
    servers = [fixed(plan, parallel=places), fixed(changed(gap_s=plan.gap_s * slower), parallel=places)]
    code, err = measure(servers, *load[:-1])  # not `--strict`: the client may be late, as well
    assert code in (0, 3) and "at once" not in err


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))])
def test_fair_pairs_raise_nothing(measure: Measure, seed: int) -> None:
    """Also servers of other speeds, which are what is measured, and the same bundles."""
    bundled = changed(per_chunk=3, counts_chunks=True)
    pairs = [
        (FAIR, FAIR),
        (FAIR, changed(first_s=0.08)),
        (FAIR, changed(gap_s=0.008)),
        (bundled, bundled),
        (changed(repeated_s=0.01), FAIR),  # a cache without repeated prompts
    ]
    for pair in pairs:
        words = ("--seed", str(seed), "--strict", "--output-json", "r.json")
        code, err = measure([fixed(plan) for plan in pair], *words, windows="8" if seed else "4")
        assert code in (0, 3), err
        assert " tokens per " not in err and "as fast as new" not in err and "at once" not in err, err
        assert "not warm" not in err
        for variant in load_record(Path("r.json")).variants:
            observed = get_observed(variant)
            assert observed["parallel_limit"] is None and observed["extra_requests"] >= 4
