"""Disturbances of a measurement in words: one sentence per kind, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.records.record import Record
from omni_cli.report.units import count, one_line, percent, quantity
from omni_cli.report.view import Note
from omni_cli.stats.comparable import Disturbance


def disturbance_warnings(disturbances: Sequence[Disturbance], record: Record) -> list[Note]:
    """Return warnings about the machine or the client during the measurement, with the action to take."""
    looked = record.utilisation
    notes = [disturbance_note(item, 0 if looked is None else looked.usable_cores) for item in disturbances]
    if looked is not None and looked.error is not None:
        notes.append(Note(f"only part of the machine's load was recorded: {one_line(looked.error)}"))
    return notes


def disturbance_note(item: Disturbance, cores: int) -> Note:
    causes = ", ".join(_CAUSES.get(cause, one_line(cause)) for cause in item.causes)
    kind = "thermal" if "thermal" in item.causes else item.kind
    message, hint = _DISTURBANCES.get(kind, _DISTURBANCES["slow device"])
    filled = message.format(
        variant=item.variant,
        other=item.other,
        theirs=item.share,
        requests=percent(item.share).lstrip("+"),
        lag=quantity("lag_s", item.amount),
        amount=item.amount,
        tokens=f"{item.amount:.4g} token" + ("" if item.amount == 1 else "s"),
        of_cores=count(cores, "core"),
        time=f"in {item.share:.0%} of the time",
        device=one_line(item.device),
        causes=causes,
        highest="the highest clock in this record" if item.is_of_record else "its highest clock",
    )
    return Note(filled, hint, label="Note" if kind in ("power limit", "unequal clocks", "one order") else "Warning")


_THROTTLING = "{device} was throttled {time}, by {causes}: {amount:.0%} of {highest}"
_DISTURBANCES = {
    "late client": (
        "{variant}: the client was late with {requests} of the requests, by up to {lag}, which is in their times",
        "lower the rate, or measure from an idle machine",
    ),
    "no usage": ("{variant}: the server reports no token counts: no tpot, no tokens per second", None),
    "bursts": (
        "{variant}: most text chunks arrived together: ttft and itl are those of bursts",
        "the server sends them together, or this machine was too busy to read them one by one",
    ),
    "short answers": (
        "{variant}: {requests} of the answers are shorter than asked: {tokens} on average",
        "set an `--output-len` that they reach: the server may not know `ignore_eos`, which asks for whole ones",
    ),
    "cut window": (
        "{variant}: its last window was interrupted: {theirs:.0f} of its requests had no answer yet, for up to {lag}, "
        "and are in no figure",
        None,
    ),
    "silent": (
        "{variant}: {theirs:.0f} of {amount:.0f} answers are silent: they have no audible sample, and miss a limit on "
        "`heard`",
        None,
    ),
    "assumed rate": (
        "{variant}: nothing states the sample rate of its speech: 24 kHz mono is assumed",
        "pass the rate with `--sample-rate`",
    ),
    "busy client": (
        "the client used a whole core {time}: the times may be its own",
        "send fewer requests at once, or measure from several machines",
    ),
    "neighbour": (
        "a noisy neighbour: other programs used {amount:.1f} of {of_cores} {time}",
        "stop them, or measure where nothing else runs: times are longer and intervals wider",
    ),
    "stolen": (
        "the machine's host gave {amount:.1f} of {of_cores} to others {time}",
        "measure on a machine with dedicated cores, or at another time",
    ),
    "quota": (
        "the container's processor quota ran out {time}, and stopped its threads",
        "raise the quota, or use fewer threads: `OMP_NUM_THREADS=N omni bench ...`",
    ),
    "slow processor": (
        "the processor was throttled {time}: {amount:.0%} of its fastest clock",
        "let it cool down, and set the performance governor: `cpupower frequency-set -g performance`",
    ),
    "thermal": (_THROTTLING, "let it cool down, then measure with a fixed clock: `nvidia-smi --lock-gpu-clocks=MHZ`"),
    "slow device": (_THROTTLING, "find out why, or measure with a fixed clock: `nvidia-smi --lock-gpu-clocks=MHZ`"),
    "power limit": (
        "{device} was at its power limit {time}, at {amount:.0%} of {highest}: its full speed for this work",
        None,
    ),
    "unequal clocks": (
        "{device} ran {variant} at {amount:,.0f} MHz and {other} at {theirs:,.0f} MHz: the ratio holds at these",
        "to compare the work alone, fix a clock that both can hold: `nvidia-smi --lock-gpu-clocks=MHZ`",
    ),
    "one order": (
        "{variant} was loaded first, which alone can make it 0.6 to 2 % slower on a CPU",
        "16 blocks or more are measured in both orders of loading: raise `--time-budget` or `--num-iters`",
    ),
    "repeated prompts": (
        "{variant}: {theirs:.0f} distinct requests were sent again and again, and it answers repeated prompts "
        "{amount:.3g} times as fast as new ones",
        "its times are those of a prefix cache: send a file with more requests than the test needs",
    ),
    "seen prompts": (
        "{variant}: it answers the prompts of this run {amount:.3g} times as fast as new ones: it has seen them before",
        "its times are those of a prefix cache: give each run another `--seed`, or restart the server",
    ),
    "warming up": (
        "{variant}: its first windows took {amount:.3g} times as long as the later ones: it was not warm at this load",
        "all times can be too long: raise `--num-iters-warmup`",
    ),
    "estimated tpot": (
        "{variant}: a chunk has {tokens}, and nothing tells how many the first one has",
        "tpot counts them by their characters; a server with `continuous_usage_stats` tells them",
    ),
    "prompt tokens": (
        "{variant} counts {tokens} per prompt, {other} {theirs:.5g}: another chat template or tokenizer, or "
        "prompts are cut",
        "it can change every time, ttft most: give both the same template and context length",
    ),
    "answer tokens": (
        "{variant} answers with {tokens}, {other} with {theirs:.5g}",
        "it changes e2e and rates; tpot and ttft are comparable: ask both for answers of the same length",
    ),
    "bundled": (
        "{variant} sends {tokens} per chunk, {other} {theirs:.3g}",
        "it changes itl, and ttft by the time of a chunk's tokens; tpot and e2e are comparable",
    ),
    "parallel limit": (
        "unequal limits of requests that are served at once, in which 0 is none: {amount:.0f} of {variant}, "
        "{theirs:.0f} of {other}",
        "it changes ttft, e2e and rates at this load: give both the same limit, or compare at a lower load",
    ),
}
_CAUSES = {
    "power_cap": "its power limit",
    "thermal": "its temperature",
    "power_brake": "the power supply's brake",
    "hw_slowdown": "a slowdown by the hardware",
}
