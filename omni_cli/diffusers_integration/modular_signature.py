"""Inputs and outputs of a modular pipeline, read from the documentation that diffusers generates for its blocks."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_cli.checkpoints.files import MODULAR_INDEX, read_object
from omni_cli.diffusers_integration.signature import Argument, PipelineSignature, file_of_class
from omni_cli.diffusers_integration.value_types import alternatives

_PACKAGE = "modular_pipelines"
_PARAMETER = re.compile(
    r"^ +(\w+) \(`([^`]*)`(, \*optional\*)?(?:, defaults to (.*?)(, depending on the workflow)?)?\):$", re.M | re.S
)
_SECTIONS = re.compile(r"^ *(?:Inputs|Outputs):$", re.M)
_WORKFLOW = re.compile(r"^ +- `\w+`: (?:requires ((?:`\w+`(?:,|\s+or)?(?:\s+(?=`))?)+)|default)", re.M)
# Blocks call them required where an earlier block makes them.
_MADE_BY_BLOCKS = {"Tensor", "dtype", "Generator"}
_SCHEDULE = {"sigmas", "timesteps"}


@dataclass(frozen=True)
class _Declared:
    """A parameter as a block's source declares it: its type and default as source text, None where it has none."""

    annotation: str | None
    default: str | None
    is_required: bool


def checkpoint_signature(folder: Path) -> PipelineSignature | None:
    """Return the signature of a modular checkpoint; None for code of its own and for classes that diffusers lacks."""
    if brings_blocks(folder):
        return None
    names = (read_object(folder / MODULAR_INDEX).get(key) for key in ("_class_name", "_blocks_class_name"))
    class_name, blocks_name = (name if isinstance(name, str) else None for name in names)
    return None if class_name is None else modular_signature(class_name, blocks_name)


def brings_blocks(folder: Path) -> bool:
    """Tell whether a checkpoint has code for its blocks, which diffusers would run."""
    config = folder / "modular_config.json"
    return config.is_file() and "auto_map" in read_object(config)


@functools.cache
def modular_signature(class_name: str, blocks_name: str | None = None) -> PipelineSignature | None:
    """Return the signature of one of diffusers' modular pipelines, with its own blocks or others of diffusers.

    None if there is no such class. As diffusers does, takes the pipeline's own blocks where the others are unknown.
    """
    file = file_of_class(class_name, _PACKAGE)
    pipeline = _class_in(file, class_name)
    if file is None or pipeline is None:
        return None
    for name in filter(None, (blocks_name, _default_blocks(pipeline))):
        blocks_file = file_of_class(name, _PACKAGE)
        blocks = _class_in(blocks_file, name)
        document = None if blocks is None else ast.get_docstring(blocks)
        if blocks_file is not None and document is not None and len(_SECTIONS.findall(document)) == 2:
            return parsed(class_name, document, _declarations(blocks_file.parent))
    return None


def parsed(
    name: str, document: str, declarations: Mapping[str, tuple[_Declared, ...]] | None = None
) -> PipelineSignature:
    """Read the documentation of a pipeline's blocks; it shortens types, which `declarations` have in full."""
    head, inputs, outputs = _SECTIONS.split(document)
    workflows = [re.findall(r"`(\w+)`", requires) for requires in _WORKFLOW.findall(head)]
    common = set.intersection(*map(set, workflows)) if workflows else None
    arguments = {}
    for parameter in _PARAMETER.finditer(inputs):
        argument, short, optional, default, varies = parameter.groups()
        declared = _best((declarations or {}).get(argument, ()), short)
        annotation = declared.annotation or (None if short in ("", "None") else short.replace("NoneType", "None"))
        if default is None and optional is None:
            default = declared.default
        is_given = declared.is_required or not optional
        if common is None and is_given and default is None and argument not in _SCHEDULE:
            is_needed = annotation is None or not alternatives(annotation) & _MADE_BY_BLOCKS
        else:
            is_needed = argument in (common or ())
        shown = "None" if default is None or varies else _literal(default)
        arguments[argument] = Argument(annotation, None if is_needed else shown)
    if re.search(r"\bguider\s+\(`", head):
        # A component has it, which the blocks do not list among their inputs.
        arguments.setdefault("guidance_scale", Argument("float", "None"))
    fields = tuple(match[1] for match in _PARAMETER.finditer(outputs))
    return PipelineSignature(name, arguments, fields, needs_are_declared=True)


def _best(declared: tuple[_Declared, ...], short: str) -> _Declared:
    """The type whose short form is `short`, and the default on which the blocks agree.

    `declared` ends with the template, whose default holds if no block gives one.
    """
    undocumented = short in ("", "None")
    names = set() if undocumented else alternatives(short.replace("NoneType", "None"))
    fitting = [
        each for each in declared if each.annotation and (undocumented or alternatives(each.annotation) == names)
    ]
    defaults = {each.default for each in declared[:-1] or declared if each.default is not None}
    first = fitting[0] if fitting else None
    return _Declared(
        None if first is None else first.annotation,
        defaults.pop() if len(defaults) == 1 else None,
        undocumented and first is not None and first.is_required,
    )


def _literal(text: str) -> str:
    """The source text of a default, which documentation shows without quotes."""
    text = " ".join(text.split())
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return repr(text)
    return text


def _class_in(file: Path | None, name: str) -> ast.ClassDef | None:
    body = [] if file is None else ast.parse(file.read_bytes()).body
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _default_blocks(pipeline: ast.ClassDef) -> str | None:
    for node in pipeline.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "default_blocks_name":
            return str(ast.literal_eval(node.value))
    return None


@functools.cache
def _declarations(folder: Path) -> Mapping[str, tuple[_Declared, ...]]:
    """The parameters that the blocks of a folder declare, each time; others as diffusers does for all blocks."""
    templates = dict(_templates(folder.parent / "modular_pipeline_utils.py"))
    found: dict[str, list[_Declared]] = {name: [] for name in templates}
    for file in sorted(folder.glob("*.py")):
        for name, given in _calls(ast.parse(file.read_bytes()), templates):
            found.setdefault(name, []).append(_declared(given))
    return {name: (*each, _declared(templates.get(name, {}))) for name, each in found.items()}


def _templates(file: Path) -> Iterator[tuple[str, dict[object, ast.expr]]]:
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "INPUT_PARAM_TEMPLATES":
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(key, ast.Constant) and isinstance(value, ast.Dict)
                pairs = zip(value.keys, value.values, strict=True)
                yield str(key.value), {each.value: item for each, item in pairs if isinstance(each, ast.Constant)}


def _calls(
    module: ast.Module, templates: Mapping[str, Mapping[object, ast.expr]]
) -> Iterator[tuple[str, dict[object, ast.expr]]]:
    """Yield the name and the fields of each `InputParam(...)` and `InputParam.template(...)`."""
    for node in ast.walk(module):
        function = ast.unparse(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and function in ("InputParam", "InputParam.template"):
            given: dict[object, ast.expr] = {keyword.arg: keyword.value for keyword in node.keywords}
            name = node.args[0] if node.args else given.get("name")
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, {**(templates.get(name.value, {}) if function != "InputParam" else {}), **given}


def _declared(given: Mapping[object, ast.expr]) -> _Declared:
    source = {name: ast.unparse(value) for name, value in given.items()}
    default = source.get("default", "None")
    is_known = default != "None" and _literal(default) == default
    return _Declared(source.get("type_hint"), default if is_known else None, source.get("required") == "True")
