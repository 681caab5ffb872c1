"""A field of a request is declared in one row: every door that the row claims has it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

# Each door derives its names when it is imported, so the rows come first, in a process of their own.
SCRIPT = """
import json, sys
from omni_cli.requests import checks
from omni_cli.requests.fields import FIELDS, Option, RequestField

FIELDS["sharpness"] = RequestField(
    "sharpness", checks.check_number, part="diffusion", takers=("image",), arguments=("sharpness", "sharpening"),
    option=Option("--sharpness", "S", "How sharp the image is."), type=float, lines=("generate", "loadtest"),
    http={"images": "sharpness", "videos": "crispness"}, limits={"ge": 0, "le": 2}, about="From 0 to 2.",
    is_traced=True,
)
FIELDS["top_k"] = RequestField(
    "top_k", checks.whole_number(0, 9), part="sampling", takers=("text",), lines=(), http={"transcriptions": "top_k"},
    type=int, option=Option("--top-k", "N", "Tokens to choose from."),
)

from pathlib import Path
from omni_cli.cli.app import run
from omni_cli.cli.generate.inputs import _call_rows
from omni_cli.cli.generate.inputs import read_specs
from omni_cli.cli.verify.run import _OF_TRANSCRIPTION
from omni_cli.config.loader import load_profile
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.pipeline_call import Argument, PipelineCall
from omni_cli.requests.value_types import ValueType
from omni_cli.measure.loadtest.dataset import _LineReader
from omni_cli.report.generate_results import _OPTIONAL_OF_TRACE
from omni_cli.serve.schemas.diffusion import ImageEditRequest, ImageRequest, VideoRequest
from omni_cli.serve.schemas.speech import TranscriptionRequest, TranslationRequest

number = (ValueType("float"),)
call = PipelineCall("Pipeline", {"prompt": Argument((ValueType("str"),)), "sharpening": Argument(number)}, ("images",))
pipeline = Capabilities.of(load_profile("tiny-image"), call)
lines = Path(sys.argv[1])
lines.write_text('{"prompt": "x", "sharpness": 1.5}\\n{"prompt": "x", "sharpness": "much"}')
good, bad = read_specs({}, lines, pipeline)
(option,) = read_specs({"prompt": "x", "sharpness": 0.5}, None, pipeline)
(sampled,) = read_specs({"prompt": "x", "top_k": 3}, None, Capabilities.of(load_profile("tiny-omni")))
properties = ImageRequest.model_json_schema()["properties"]["sharpness"]
found = {
    "capabilities": ["sharpness" in pipeline.fields, "top_k" in pipeline.fields],
    "chain": sorted({"sharpness", "top_k"} & Capabilities.of(load_profile("tiny-omni")).fields),
    "argument": call.own_names({"sharpness": 1.0}),
    "line": dict(good.request.diffusion),
    "bad line": str(bad.error),
    "option": dict(option.request.diffusion),
    "option of sampling": dict(sampled.request.sampling),
    "help of inputs": [row.option for row in _call_rows(pipeline.config, pipeline)],
    "loadtest": _LineReader(lines, None, "chat", None, print).request(1, b'{"prompt": "x", "sharpness": 1}').prompt,
    "echo": "sharpness" in _OPTIONAL_OF_TRACE,
    "verify": sorted({"sharpness", "top_k"} & _OF_TRANSCRIPTION),
    "document": properties,
    "image": ImageRequest.model_validate({"prompt": "x", "sharpness": 2}).diffusion(),
    "video": VideoRequest.model_validate({"prompt": "x", "crispness": "2"}).diffusion(),
    "edits": "sharpness" in ImageEditRequest.model_fields,
    "transcriptions": ["top_k" in model.model_fields for model in (TranscriptionRequest, TranslationRequest)],
}
print(json.dumps(found))
run(["generate", "--help"])
"""


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    lines = tmp_path_factory.mktemp("rows") / "lines.jsonl"
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(lines)], capture_output=True, text=True, check=True)
    found, _, shown = done.stdout.partition("\n")
    return json.loads(found), shown


def test_a_row_is_at_every_door_that_it_claims_and_at_no_other(doors: tuple[dict[str, Any], str]) -> None:
    found, shown = doors
    limits = [{"maximum": 2, "minimum": 0, "type": "number"}, {"type": "null"}]
    document = {"anyOf": limits, "default": None, "description": "From 0 to 2.", "title": "Sharpness"}
    assert found == {
        "capabilities": [True, False],
        "chain": ["top_k"],
        "argument": {"sharpening": 1.0},
        "line": {"sharpness": 1.5},
        "bad line": "`sharpness` must be a number, not text",
        "option": {"sharpness": 0.5},
        "option of sampling": {"top_k": 3},
        "help of inputs": ["[PROMPT]", "--sharpness S", "--seed N"],
        "loadtest": "x",
        "echo": True,
        "verify": ["top_k"],
        "document": document,
        "image": {"sharpness": 2},
        "video": {"sharpness": 2},
        "edits": False,
        "transcriptions": [True, False],
    }
    assert "--sharpness S" in shown and "How sharp the image is." in shown and "--top-k N" in shown
