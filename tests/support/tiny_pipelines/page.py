"""The page of pipeline classes, written and read without importing diffusers."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

_LEGEND = """\
# Pipeline classes

Every callable pipeline class of diffusers {diffusers}, outside its `deprecated` folder. Each has a tiny checkpoint with
random weights (`tests/support/tiny_pipelines`) and is called twice in one process, on a CPU in float32 (Z-Image Omni in
bfloat16): by diffusers itself, and by the stage of `omni` that runs any diffusers pipeline, with the same inputs and
seed.

- *identical*: both return the same numbers, compared before anything is encoded: pixels as uint8, samples as float32,
  tensors as they are.
- *runs*: `omni` runs it, with the difference that is given.
- *refused*: `omni` does not run it, for the reason that is given.
- *not run by diffusers*: the plain call of this checkpoint fails, as given.
- *no tiny model*: there is none, for the reason that is given.

A request that the pipeline itself accepts is accepted. Before weights are loaded, `omni` checks names, types and files
against the signature of the call, and types only as far as annotations can be trusted: null, several files instead of
one, or 1.5 for a whole number pass. What values mean, the pipeline decides: if it rejects a request, before its first
step or by an exception of its own, its words are the error, with exit code 2. What it does with a request is said, in a
warning on stderr, in `notes` of the JSON and in the log of `omni serve`: what diffusers logs about the arguments that
are set, such as a size that it rounds; a prompt of which the text encoder reads a part; images, videos and sounds whose
size, number of frames or length is not the requested one.

`python scripts/pipeline_table.py --write` makes this page; a nightly test compares it. Made with diffusers {diffusers},
transformers {transformers} and torch {torch}.
"""
_RUN = ("identical", "runs")

_MODULAR = """\
## Modular pipelines

Compared in the same way, each with inputs of one of its workflows: `ModularPipeline.from_pretrained`, `load_components`
and a call, beside the stage of `omni` over the same folder with a `modular_model_index.json`. The kind is that of
these inputs; most take further ones, which `omni generate --model DIR --help-inputs` lists.
"""


Verdict = Literal["identical", "runs", "refused", "not run by diffusers", "no tiny model"]


@dataclass(frozen=True)
class Checked:
    """A row of the table; `reason` is for a person."""

    name: str
    kind: str
    verdict: Verdict
    reason: str = ""


def classes() -> tuple[str, ...]:
    """The names of the pipeline classes, by their source, modular ones last."""
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for package in ("pipelines", "modular_pipelines"):
        for file in _folder(package).rglob("*.py"):
            if "deprecated" not in file.parts:
                for node in ast.parse(file.read_bytes()).body:
                    if isinstance(node, ast.ClassDef) and _is_pipeline(node, package):
                        found[is_modular(node.name)].add(node.name)
    return (*sorted(found[False]), *sorted(found[True]))


def is_modular(name: str) -> bool:
    return name.endswith("ModularPipeline")


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec("diffusers")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / package


def _is_pipeline(node: ast.ClassDef, package: str) -> bool:
    if package == "modular_pipelines":
        return is_modular(node.name) and node.name != "ModularPipeline"
    is_called = any(isinstance(item, ast.FunctionDef) and item.name == "__call__" for item in node.body)
    return is_called and any(ast.unparse(base).endswith("Pipeline") for base in node.bases)


def page(rows: Collection[Checked]) -> str:
    """The Markdown page of the table."""
    numbers = {name: version(name).partition("+")[0] for name in ("diffusers", "transformers", "torch")}
    ordered = sorted(rows, key=lambda row: row.name.lower())
    classes = [row for row in ordered if not is_modular(row.name)]
    modular = [row for row in ordered if is_modular(row.name)]
    run, others = ([row for row in classes if (row.verdict in _RUN) == is_run] for is_run in (True, False))
    parts = (_LEGEND.format(**numbers), *_counted(classes), "", "## Not run", "", *_table(others))
    parts = (*parts, "", "## Run", "", *_table(run), "", _MODULAR, *_counted(modular), "", *_table(modular))
    return "\n".join(parts) + "\n"


def _counted(rows: Collection[Checked]) -> list[str]:
    counts = Counter(row.verdict for row in rows)
    ran = sum(counts[verdict] for verdict in ("identical", "runs", "refused"))
    return textwrap.wrap(
        f"Of {len(rows)} classes, diffusers runs {ran} with a tiny checkpoint. `omni` runs {ran - counts['refused']} "
        f"of them, {counts['identical']} identically, and refuses {counts['refused']}. diffusers does not run "
        f"{counts['not run by diffusers']}, and {counts['no tiny model']} have no tiny checkpoint.",
        120,
    )


def _table(rows: Iterable[Checked]) -> Iterator[str]:
    yield from ("| class | kind | verdict | reason or difference |", "|---|---|---|---|")
    for row in rows:
        yield f"| `{row.name}` | {row.kind} | {row.verdict} | {row.reason} |".replace("|  |", "| |")


def rows_of(text: str) -> dict[str, Checked]:
    """The rows of a page, by class."""
    rows = (line.strip("|").split("|", 3) for line in text.splitlines() if line.startswith("| `"))
    cells = ([cell.strip() for cell in row] for row in rows)
    found = [Checked(name.strip("`"), *row) for name, *row in cells]  # type: ignore[arg-type]
    return {row.name: row for row in found}
