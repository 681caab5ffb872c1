"""Every kind of mistake in a profile: its exact position, message, hint and caret."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.profile_text import GOOD, mistakes

from omni_cli.config.families import builtins
from omni_cli.config.loader import check_profile


def test_a_good_profile_has_none(tmp_path: Path) -> None:
    assert mistakes(tmp_path, GOOD) == []


SINGLE = {
    "unknown key": (
        ("    kind: ar\n", "    kind: ar\n    gpu_memory_utilisation: 0.8\n"),
        "8:5 'gpu_memory_utilisation': unknown key `gpu_memory_utilisation` in stage `thinker`"
        " (did you mean `gpu_memory_utilization`?)",
    ),
    "unknown key at the top": (
        ("dtype:", "sed: 3\ndtype:"),
        "4:1 'sed': unknown key `sed` (did you mean `seed`?)",
    ),
    "misspelt required key": (
        ("dtype:", "dtypes:"),
        "4:1 'dtypes': unknown key `dtypes` (did you mean `dtype`?)",
    ),
    "unknown key in sampling": (
        ("temperature", "temprature"),
        "8:16 'temprature': unknown key `temprature` in `sampling` of stage `thinker` (did you mean `temperature`?)",
    ),
    "sampling key in the stage": (
        ("    kind: ar\n", "    kind: ar\n    top_k: 3\n"),
        "8:5 'top_k': unknown key `top_k` in stage `thinker` (`top_k` belongs in this stage's `sampling`)",
    ),
    "profile key in the stage": (
        ("    kind: ar\n", "    kind: ar\n    dtype: float32\n"),
        "8:5 'dtype': unknown key `dtype` in stage `thinker` (`dtype` is a key of the whole profile, not of a stage)",
    ),
    "stage key at the top": (
        ("dtype:", "max_num_seqs: 3\ndtype:"),
        "4:1 'max_num_seqs': unknown key `max_num_seqs` "
        "(`max_num_seqs` belongs in a stage: `thinker.max_num_seqs` or `vocoder.max_num_seqs`)",
    ),
    "sampling key at the top": (
        ("dtype:", "top_k: 3\ndtype:"),
        "4:1 'top_k': unknown key `top_k` (`top_k` belongs in a stage's `sampling`: `thinker.sampling.top_k`)",
    ),
    "key of the other kind": (
        ("    kind: ar\n", "    kind: ar\n    height: 64\n"),
        "8:5 'height': unknown key `height` in stage `thinker` (`height` is a key of stages of kind `diffusion`)",
    ),
    "trust_remote_code": (
        ("dtype:", "trust_remote_code: true\ndtype:"),
        "4:1 'trust_remote_code': `trust_remote_code` cannot be set in a profile"
        " (code of a checkpoint runs only with the command-line flag `--trust-remote-code`)",
    ),
    "trust_remote_code in a stage": (
        ("    kind: ar\n", "    kind: ar\n    trust_remote_code: true\n"),
        "8:5 'trust_remote_code': `trust_remote_code` cannot be set in a profile"
        " (code of a checkpoint runs only with the command-line flag `--trust-remote-code`)",
    ),
    "class path": (
        ("    kind: ar\n", "    kind: ar\n    worker_cls: a.b.C\n"),
        "8:5 'worker_cls': unknown key `worker_cls` in stage `thinker`",
    ),
    "quoted number": (
        ("0.0", "'0.5'"),
        "8:29 ''0.5'': invalid type for `temperature`: expected a number, got the string \"0.5\" (remove the quotes)",
    ),
    "integer with a fraction": (
        ("    kind: ar\n", "    kind: ar\n    block_size: 16.0\n"),
        "8:17 '16.0': invalid type for `block_size`: expected an integer, got the number 16.0 (write `16`)",
    ),
    "true for a number": (
        ("    kind: ar\n", "    kind: ar\n    block_size: true\n"),
        "8:17 'true': invalid type for `block_size`: expected an integer, got true",
    ),
    "yes for true": (
        ("    kind: ar\n", "    kind: ar\n    enable_prefix_caching: yes\n"),
        "8:28 'yes': invalid type for `enable_prefix_caching`: expected true or false, got the string \"yes\""
        " (write `true`)",
    ),
    "number for a text": (
        ("    kind: ar\n", "    kind: ar\n    devices: 0\n"),
        "8:14 '0': invalid type for `devices`: expected a string, got the number 0 (put it in quotes)",
    ),
    "stop that is not a text": (
        ("temperature: 0.0", "stop: [a, 1]"),
        "8:26 '1': invalid type for item 2 of `stop`: expected a string, got the number 1 (put it in quotes)",
    ),
    "stop that is a number": (
        ("temperature: 0.0", "stop: 1"),
        "8:22 '1': invalid type for `stop`: expected a string or a list of strings, got the number 1",
    ),
    "list for a number": (
        ("0.0", "[1]"),
        "8:29 '[': invalid type for `temperature`: expected a number, got a list",
    ),
    "too small": (("0.0", "-1"), "8:29 '-1': invalid value for `temperature`: must be at least 0"),
    "not above": (
        ("temperature: 0.0", "top_p: 0"),
        "8:23 '0': invalid value for `top_p`: must be greater than 0",
    ),
    "too large": (
        ("temperature: 0.0", "top_p: 1.5"),
        "8:23 '1.5': invalid value for `top_p`: must be at most 1",
    ),
    "infinite": (("0.0", ".inf"), "8:29 '.inf': invalid value for `temperature`: expected a finite number"),
    "overflowing": (
        ("0.0", "1e999"),
        "8:29 '1e999': invalid value for `temperature`: expected a finite number",
    ),
    "unknown word": (
        ("    kind: ar\n", "    kind: ar\n    cudagraph_mode: ful\n"),
        "8:21 'ful': invalid value for `cudagraph_mode`: expected one of none, piecewise, full,"
        " full_decode_only, full_and_piecewise (did you mean `full`?)",
    ),
    "neither a word nor a switch": (
        ("name: good\n", "name: good\nmps: tru\n"),
        "3:6 'tru': invalid value for `mps`: expected one of auto, true, false (did you mean `true`?)",
    ),
    "bad version": (("version: 1", "version: 2"), "1:10 '2': invalid value for `version`: expected 1"),
    "bad name": (
        ("name: good", "name: a b"),
        "2:7 'a b': invalid value for `name`: must be letters, digits, `.`, `_` and `-`, at most 100",
    ),
    "empty model": (("builtin:tiny-omni", "''"), "3:8 '''': invalid value for `model`: must not be empty"),
    "unknown builtin": (
        ("builtin:tiny-omni", "builtin:tiny-onmi"),
        "3:8 'builtin:tiny-onmi': unknown builtin model `tiny-onmi`: expected one of "
        + ", ".join(builtins())
        + " (did you mean `tiny-omni`?)",
    ),
    "no value": (
        ("0.0", ""),
        "8:16 'temperature': `temperature` has no value (give it a value, or omit the key for the default)",
    ),
    "missing key": (
        ("model: builtin:tiny-omni\n", ""),
        "1:1 'v': missing key `model` (add `model: DIR` or a Hugging Face repo id)",
    ),
    "missing kind": (
        ("    kind: ar\n", ""),
        "6:3 'thinker': missing key `kind` in stage `thinker`"
        " (add `kind: ar` (makes tokens) or `kind: diffusion` (denoises))",
    ),
    "unknown kind": (
        ("kind: ar\n", "kind: arr\n"),
        "7:11 'arr': invalid value for `kind`: expected one of ar, diffusion (did you mean `ar`?)",
    ),
    "kind that is a list": (
        ("kind: ar\n", "kind: [ar]\n"),
        "7:11 '[': invalid value for `kind`: expected one of ar, diffusion",
    ),
    "backend of the wrong kind": (
        ("    kind: ar\n", "    kind: ar\n    backend: diffusers\n"),
        "8:14 'diffusers': backend `diffusers` cannot run a stage of kind `ar` (write `backend: vllm`)",
    ),
    "unknown backend": (
        ("backend: vllm", "backend: difusers"),
        "11:14 'difusers': invalid value for `backend`: expected one of vllm, diffusers (did you mean `diffusers`?)",
    ),
    "key that the backend lacks": (
        ("backend: vllm\n", "backend: diffusers\n    max_payload_items: 1\n"),
        "12:5 'max_payload_items': `max_payload_items` has no effect with `backend: diffusers`",
    ),
    "key with the name of a kind": (
        ("backend: vllm\n", "backend: vllm\n    ar: 64\n"),
        "12:5 'ar': unknown key `ar` in stage `vocoder` (further arguments of a diffusers pipeline belong in `call`)",
    ),
    "key of the other backend": (
        ("backend: vllm\n", "backend: vllm\n    call: {max_sequence_length: 64}\n"),
        "12:5 'call': `call` has no effect with `backend: vllm`",
    ),
    "value of the other backend": (
        ("backend: vllm\n", "backend: vllm\n    batching: stacked\n"),
        "12:15 'stacked': `batching: stacked` has no effect with `backend: vllm` (expected one of exact, padded)",
    ),
    "key of another stage of the family": (
        ("backend: vllm\n", "backend: vllm\n    sway_coefficient: -1\n"),
        "12:5 'sway_coefficient': unknown key `sway_coefficient` in stage `vocoder` "
        "(`sway_coefficient` is a key of Qwen2.5-Omni's stage `token2wav`)",
    ),
    "key of stages of two families": (
        ("backend: vllm\n", "backend: vllm\n    early_start: true\n"),
        "12:5 'early_start': unknown key `early_start` in stage `vocoder` "
        "(`early_start` is a key of Qwen2.5-Omni's stage `talker` and Qwen3-Omni's stage `talker`)",
    ),
    "key of a family with another backend": (
        ("vocoder:\n    kind: diffusion\n    backend: vllm\n", "token2wav:\n    kind: diffusion\n    stream: true\n"),
        "11:5 'stream': `stream` has no effect with `backend: diffusers`",
    ),
    "misspelt key of a family": (
        ("vocoder:\n    kind: diffusion\n", "token2wav:\n    kind: diffusion\n    sway_coeficient: -1\n"),
        "11:5 'sway_coeficient': unknown key `sway_coeficient` in stage `token2wav` (did you mean `sway_coefficient`?)",
    ),
    "wrong value of a family's key": (
        ("vocoder:\n    kind: diffusion\n", "token2wav:\n    kind: diffusion\n    stream_chunk_codes: none\n"),
        "11:25 'none': invalid type for `stream_chunk_codes`: expected an integer, got the string \"none\"",
    ),
    "call on vllm": (
        ("backend: vllm\n", "backend: vllm\n    call: {x: 1}\n"),
        "12:5 'call': `call` has no effect with `backend: vllm`",
    ),
    "stage key in call": (
        ("backend: vllm\n", "backend: diffusers\n    call: {height: 1}\n"),
        "12:12 'height': `height` is a key of the stage itself, not of `call` (move it out of `call`)",
    ),
    "call with lists too deep": (
        ("backend: vllm\n", "backend: diffusers\n    call: {x: [[[1]]]}\n"),
        "12:15 '[': invalid type for `x`: expected a number, a string, true or false, null, or lists of them,"
        " got a list",
    ),
    "call with a bad name": (
        ("backend: vllm\n", "backend: diffusers\n    call: {X: 1}\n"),
        "12:12 'X': invalid argument name `X` in `call` of stage `vocoder`",
    ),
    "dangling input": (
        ("input: thinker", "input: thinkr"),
        "12:12 'thinkr': `input` of stage `vocoder` names no stage: `thinkr` (did you mean `thinker`?)",
    ),
    "own input": (
        ("input: thinker", "input: vocoder"),
        "12:12 'vocoder': stage `vocoder` takes its own output as its input",
    ),
    "cycle": (
        ("    kind: ar\n", "    kind: ar\n    input: vocoder\n"),
        "8:12 'vocoder': stage `thinker` takes its input from a later stage, `vocoder`"
        " (write stage `vocoder` before stage `thinker`)",
    ),
    "second stage without input": (
        ("    input: thinker\n", ""),
        "9:3 'vocoder': stage `vocoder` has no `input`, and is not the first stage (add `input: thinker`)",
    ),
    "reserved stage name": (
        ("  vocoder:", "  all:"),
        "9:3 'all': a stage cannot be named `all` (`--stage` and `--vary` reserve this word)",
    ),
    "bad stage name": (
        ("  vocoder:", "  Voc.oder:"),
        "9:3 'Voc.oder': invalid stage name `Voc.oder` (a stage's name is lower-case letters, digits, `_` and"
        " `-`, at most 64, a letter first)",
    ),
    "stage that is not a mapping": (
        ("    kind: ar\n    sampling: {temperature: 0.0}\n", "    3\n"),
        "7:5 '3': invalid type for `thinker`: expected a mapping, got the number 3",
    ),
    "min above max": (
        ("temperature: 0.0", "min_tokens: 9, max_tokens: 4"),
        "8:28 '9': `min_tokens` is above `max_tokens` (4)",
    ),
    "share of memory beside the cache's size": (
        ("    kind: ar\n", "    kind: ar\n    kv_cache_memory_bytes: 67108864\n    gpu_memory_utilization: 0.5\n"),
        "9:5 'gpu_memory_utilization': `gpu_memory_utilization` has no effect with `kv_cache_memory_bytes`"
        " (remove it, or write `kv_cache_memory_bytes: null`)",
    ),
    "too few batched tokens": (
        ("    kind: ar\n", "    kind: ar\n    max_num_seqs: 8\n    max_num_batched_tokens: 4\n"),
        "9:29 '4': `max_num_batched_tokens` is below `max_num_seqs` (8)",
    ),
    "devices and ranks": (
        ("    kind: ar\n", "    kind: ar\n    tensor_parallel_size: 4\n    devices: '0,1'\n"),
        "9:14 ''0,1'': `devices` names 2, but the stage has 4 ranks"
        " (ranks are tensor_parallel_size times pipeline_parallel_size)",
    ),
    "a launcher that omni is not": (
        ("    kind: ar\n", "    kind: ar\n    distributed_executor_backend: external_launcher\n"),
        "8:35 'external_launcher': invalid value for `distributed_executor_backend`: expected one of mp, ray"
        " (it is for programs that start each rank themselves, as torchrun does; omni starts the ranks: write `mp`)",
    ),
    "ranks of a pipeline": (
        ("    backend: vllm\n", "    tensor_parallel_size: 2\n"),
        "11:5 'tensor_parallel_size': `tensor_parallel_size` has no effect with `backend: diffusers`: a"
        " pipeline's layers stay whole (write `context_parallel: {ulysses_degree: 2}`; for several devices start the"
        " whole model several times: `--replicas N`)",
    ),
    "pipeline ranks of a pipeline": (
        ("    backend: vllm\n", "    pipeline_parallel_size: 2\n"),
        "11:5 'pipeline_parallel_size': `pipeline_parallel_size` has no effect with `backend: diffusers`: a"
        " pipeline's layers stay whole (write `context_parallel: {ulysses_degree: 2}`; for several devices start the"
        " whole model several times: `--replicas N`)",
    ),
    "ranks of a diffusion": (
        ("    backend: vllm\n", "    backend: vllm\n    tensor_parallel_size: 2\n"),
        "12:27 '2': `tensor_parallel_size` cannot be 2: a diffusion stage on vLLM runs on one device"
        " (for several devices start the whole model several times: `--replicas N`)",
    ),
    "a degree of one": (
        ("    backend: vllm\n", "    context_parallel: {ulysses_degree: 1}\n"),
        "11:5 'context_parallel': `context_parallel` has no effect without a degree above 1"
        " (write `ulysses_degree: 2` or `ring_degree: 2` in it)",
    ),
    "a typo in context_parallel": (
        ("    backend: vllm\n", "    context_parallel: {ulyses_degree: 2, ring_degree: 2}\n"),
        "11:24 'ulyses_degree': unknown key `ulyses_degree` in `context_parallel` of stage `vocoder`"
        " (did you mean `ulysses_degree`?)",
    ),
    "anything for one of both degrees": (
        ("    backend: vllm\n", "    context_parallel: {ulysses_degree: 2, ring_degree: 2, ring_anything: true}\n"),
        "11:74 'true': `ring_anything` needs `ring_degree` above 1 and `ulysses_degree` 1",
    ),
    "sums of no ring": (
        ("    backend: vllm\n", "    context_parallel: {ulysses_degree: 2, convert_to_fp32: true}\n"),
        "11:43 'convert_to_fp32': `convert_to_fp32` has no effect without `ring_degree` above 1",
    ),
    "a device too many": (
        ("    backend: vllm\n", "    devices: '0,1,2'\n    context_parallel: {ulysses_degree: 2}\n"),
        "11:14 ''0,1,2'': `devices` names 3, but the stage has 2 ranks (ranks are ulysses_degree times ring_degree)",
    ),
    "ranks and offload": (
        ("    backend: vllm\n", "    offload: model\n    context_parallel: {ulysses_degree: 2}\n"),
        "11:14 'model': `offload: model` cannot be used with `context_parallel`"
        " (write `offload: none`, or remove `context_parallel`)",
    ),
    "ranks and compilation": (
        ("    backend: vllm\n", "    execution: compile\n    context_parallel: {ulysses_degree: 2}\n"),
        "11:16 'compile': `execution: compile` cannot be used with `context_parallel`"
        " (write `execution: eager`, or remove `context_parallel`)",
    ),
    "a threshold without a cache": (
        ("    backend: vllm\n", "    cache: {threshold: 0.1}\n"),
        "11:13 'threshold': `threshold` has no effect with `method: none`"
        " (it belongs to `first_block`, `mag`, `cache_dit`)",
    ),
    "a cache without its ratios": (
        ("    backend: vllm\n", "    cache: {method: mag}\n"),
        "11:21 'mag': `method: mag` needs `mag_ratios`, which differ between checkpoints"
        " (diffusers' `MagCacheConfig(calibrate=True)` prints them)",
    ),
    "an unknown quantization": (
        ("    backend: vllm\n", "    quantization: int7\n"),
        "11:19 'int7': invalid value for `quantization`: expected one of none, int8_weight_only, int8_dynamic, "
        "float8_weight_only, float8_dynamic, bitsandbytes_8bit, bitsandbytes_nf4"
        " (or write the path of a GGUF file: `PATH.gguf`)",
    ),
    "a cache in a graph": (
        ("    backend: vllm\n", "    cache: {method: first_block}\n    execution: compile_cudagraph\n"),
        "12:16 'compile_cudagraph': `execution: compile_cudagraph` cannot be used with the cache `first_block`, which"
        " decides in each step (write `execution: eager`, or remove `cache`)",
    ),
    "a cache within compiled blocks": (
        ("    backend: vllm\n", "    cache: {method: taylorseer}\n    execution: compile\n"),
        "12:16 'compile': `execution: compile` cannot be used with the cache `taylorseer`, which decides in each step"
        " (write `execution: eager`, or remove `cache`)",
    ),
    "a cache on several devices": (
        ("    backend: vllm\n", "    cache: {method: first_block}\n    context_parallel: {ulysses_degree: 2}\n"),
        "11:5 'cache': `cache` cannot be used with `context_parallel`: ranks would decide differently"
        " (remove one of them)",
    ),
    "a cache for several requests": (
        ("    backend: vllm\n", "    cache: {method: first_block}\n    batching: stacked\n"),
        "12:15 'stacked': `batching: stacked` cannot be used with `cache`: requests would decide for each other"
        " (write `batching: exact`, or remove `cache`)",
    ),
    "duplicate key": (
        ("dtype: float32\n", "dtype: float32\ndtype: float16\n"),
        "5:1 'dtype': duplicate key `dtype` (the first one is on line 4)",
    ),
    "duplicate stage": (
        ("  vocoder:", "  thinker: {kind: ar}\n  vocoder:"),
        "9:3 'thinker': duplicate stage `thinker` (the first one is on line 6)",
    ),
    "anchor": (
        ("0.0", "&t 0.0"),
        "8:29 '&t': an anchor (`&t`) is not allowed in a profile (write the value out where it is needed)",
    ),
    "tag": (
        ("name: good", "name: !!python/name:os.system good"),
        "2:7 '!!python/name:os.system': a tag (`!!python/name:os.system`) is not allowed in a profile"
        " (a profile holds plain values only)",
    ),
    "merge key": (
        ("    kind: ar\n", "    kind: ar\n    <<: {x: 1}\n"),
        "8:5 '<<': a merge key (`<<`) is not allowed in a profile (write the keys out)",
    ),
    "list as a key": (
        ("    kind: ar\n", "    kind: ar\n    ? [a]\n    : 1\n"),
        "8:7 '[': a key must be a word, not an alias, a list or a mapping",
    ),
    "second document": (
        ("    input: thinker\n", "    input: thinker\n---\na: 1\n"),
        "13:1 '---': a profile is one YAML document; a second one starts here",
    ),
    "tab": (("    kind: ar\n", "\tkind: ar\n"), "7:1 ' ': a tab cannot indent YAML (use spaces)"),
    "colon in a text": (
        ("name: good", "name: a: b"),
        "2:8 ':': not valid YAML: mapping values are not allowed here"
        " (quote a string that contains `: `, and check the indentation)",
    ),
    "unclosed bracket": (
        (
            "{temperature: 0.0}\n  vocoder:\n    kind: diffusion\n    backend: vllm\n    input: thinker\n",
            "[1, 2\n",
        ),
        "8:20 '': not valid YAML: expected ',' or ']', but got '<stream end>' while parsing a flow sequence",
    ),
    "impossible escape": (
        ("name: good", r'name: "\UFFFFFFFF"'),
        "2:10 'F': not valid YAML: an escape or a number is out of range",
    ),
    "half a character": (
        ("good", r'"\ud800"'),
        '2:7 \'"\\ud800"\': a lone surrogate (`"\\ud800"`) is not allowed in a profile (write the character itself)',
    ),
    "half a character in a key": (
        ("dtype:", '"\\ud800": 1\ndtype:'),
        '4:1 \'"\\ud800":\': a lone surrogate (`"\\ud800":`) is not allowed in a profile (write the character itself)',
    ),
    "hundreds of stages": (
        ("stages:\n", "stages:\n" + "".join(f"  s{n}: {{kind: ar, input: s{n + 1}}}\n" for n in range(99))),
        "5:1 'stages': 101 stages; the maximum is 64",
    ),
    "a limit on payloads where none arrive": (
        ("    backend: vllm\n", "    max_payload_items: 3\n"),
        "11:5 'max_payload_items': `max_payload_items` has no effect with `backend: diffusers`",
    ),
}


@pytest.mark.parametrize(("change", "expected"), SINGLE.values(), ids=SINGLE)
def test_one_mistake(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    assert change[0] in GOOD
    assert mistakes(tmp_path, GOOD.replace(change[0], change[1], 1)) == [expected]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0: 1\n", "unknown key `0`"),
        ("0:\n", "`0` has no value"),
        ("stages: {1: {kind: ar}}\n", "invalid stage name `1`"),
        ("stages: {a: {kind: ar, 1: 2}}\n", "unknown key `1` in stage `a`"),
        ("stages: {a: {kind: ar, sampling: {1: 2}}}\n", "unknown key `1` in `sampling` of stage `a`"),
    ],
)
def test_a_number_as_a_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    assert message in [diagnostic.message for diagnostic in check_profile(path)]


def test_an_argument_of_the_pipeline_call_at_the_top(tmp_path: Path) -> None:
    text = GOOD.replace("backend: vllm\n", "backend: diffusers\n").replace("dtype:", "true_cfg_scale: 4\ndtype:")
    assert mistakes(tmp_path, text) == [
        "4:1 'true_cfg_scale': unknown key `true_cfg_scale` "
        "(further arguments of a diffusers pipeline belong in `call`: `vocoder.call.true_cfg_scale`)"
    ]
