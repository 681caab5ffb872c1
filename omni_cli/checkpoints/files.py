"""Quick check of a checkpoint folder for missing, truncated or placeholder files. Reads headers only."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_cli.config.families import EntryFile, Family, StageRole, get_family
from omni_cli.core.errors import CheckpointError

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MODULAR_INDEX = "modular_model_index.json"
_COPY_AGAIN = "the folder is incomplete: download or copy it again"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# Parsing the vocabulary of a large model takes half a second.
_MAX_PARSED_BYTES = 1024 * 1024
# safetensors' names of the dtypes that a profile can have.
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_LFS_POINTER = b"version https://git-lfs"
# safetensors' own limit; with a larger number, the file is in another format.
_MAX_HEADER_BYTES = 100_000_000


def read_model_kind(path: str | Path) -> str:
    """Return `architectures[0]` of config.json (`Qwen2_5OmniModel`), or a pipeline's `_class_name`.

    Raises `CheckpointError` if neither file is readable or names one.
    """
    folder = Path(path)
    source = index_file(folder) or folder / "config.json"
    if source.name != "config.json":
        kind = read_object(source).get("_class_name")
    else:
        architectures = read_object(source).get("architectures")
        kind = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(kind, str):
        raise CheckpointError(
            f"`{source}` does not name a model class", hint="add the class to `architectures`, or download it again"
        )
    return kind


def read_family(path: str | Path) -> Family:
    """Return the model family of a checkpoint's architecture; raises `CheckpointError` as `read_model_kind` does."""
    return get_family(read_model_kind(path), entry_file(Path(path)))


def entry_file(folder: Path) -> EntryFile:
    """Return the name of the file that names a checkpoint's architecture."""
    return "config.json" if index_file(folder) is None else "model_index.json"


def index_file(folder: Path) -> Path | None:
    """Return the file that lists a diffusers pipeline's components, which may be modular; None for other models."""
    names = ("model_index.json", MODULAR_INDEX)
    return next((folder / name for name in names if (folder / name).is_file()), None)


@dataclass(frozen=True)
class Component:
    """One component of a diffusers pipeline: its class, and its folder, None if another repository has it."""

    library: str | None
    class_name: str | None
    folder: Path | None


def read_components(folder: Path) -> dict[str, Component]:
    """Return the components that a diffusers folder's index names, without those that are null."""
    index = index_file(folder)
    entries = {} if index is None else read_object(index)
    components = {name: _component(folder, name, value) for name, value in entries.items() if not name.startswith("_")}
    return {name: component for name, component in components.items() if component is not None}


def _component(folder: Path, name: str, value: object) -> Component | None:
    match value:
        case [str() as library, str() as class_name]:
            return Component(library, class_name, folder / name)
        case [_, _, {"type_hint": [library, class_name], "pretrained_model_name_or_path": str() as source, **others}]:
            # A modular pipeline names the source of each component; diffusers prefers a copy in the folder.
            part = str(others.get("subfolder") or "")
            elsewhere = Path(source) / part if Path(source).is_absolute() else None
            return Component(library, class_name, folder / part if (folder / part).is_dir() else elsewhere)
    return None


def check_checkpoint(folder: Path) -> None:
    """Raise `CheckpointError`, naming the file at fault, unless the folder looks like a complete checkpoint."""
    try:
        if index_file(folder) is not None:
            _check_pipeline(folder)
        elif (folder / "config.json").is_file():
            _check_weights(folder, read_family(folder).roles)
            _check_json(folder)
        else:
            raise CheckpointError(
                f"`{folder}` is not a checkpoint: it has neither config.json nor model_index.json",
                hint=_nearby(folder) or "pass the folder that contains the model's config.json",
            )
    except OSError as error:
        raise CheckpointError(
            f"cannot read `{error.filename or folder}`: {error.strerror or error}",
            hint="check the permissions of the folder and its files",
        ) from error


def _check_json(folder: Path) -> None:
    """Check that JSON files parse; for large ones (vocabularies) only the first and last character."""
    for file in sorted(folder.glob("*.json")):
        content = file.read_bytes()
        if len(content) <= _MAX_PARSED_BYTES:
            _read_json(file)
        elif content[:1] + content.rstrip()[-1:] not in (b"{}", b"[]"):
            raise CheckpointError(f"`{file}` is not valid JSON: it is truncated", hint=_COPY_AGAIN)


def read_dtype(folder: Path) -> str:
    """Return the dtype of the weights: config.json's, else that of most values in the safetensors files.

    float32 if neither is a dtype that a profile can have.
    """
    config = folder / "config.json"
    named = _named_dtype(read_object(config)) if config.is_file() else None
    if named is not None:
        return named
    numbers: Counter[str] = Counter()
    for file in folder.rglob("*.safetensors"):
        for entry in read_header(file).values():
            numbers[_DTYPES.get(entry["dtype"], "float32")] += math.prod(entry["shape"])
    return max(numbers, key=numbers.__getitem__, default="float32")


def _named_dtype(config: dict[str, Any]) -> str | None:
    """Return the `dtype` of a configuration, or of the first part of it that has one."""
    for key in ("dtype", "torch_dtype"):
        if config.get(key) in _DTYPES.values():
            return str(config[key])
    parts = (_named_dtype(part) for part in config.values() if isinstance(part, dict))
    return next(filter(None, parts), None)


def describes_encoder(folder: Path) -> bool:
    """True if the configuration has a part for a vision or audio encoder."""
    config = read_object(folder / "config.json")
    return any(isinstance(config.get(part), dict) for part in ("vision_config", "audio_config"))


def count_parameters(folder: Path) -> int:
    """Count the values in all safetensors files below `folder`, buffers included."""
    return sum(
        math.prod(entry["shape"]) for file in folder.rglob("*.safetensors") for entry in read_header(file).values()
    )


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the weights in the safetensors files of `folder`; empty for other formats."""
    headers = map(read_header, weight_files(folder))
    return {name: tuple(entry["shape"]) for header in headers for name, entry in header.items()}


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of `folder` that hold the model: those that its index names, if it has one."""
    files = used_files(folder.glob("*.safetensors"))
    index = next(folder.glob("*.safetensors.index.json"), None)
    named = None if index is None else read_object(index).get("weight_map")
    return [file for file in files if not isinstance(named, dict) or file.name in named.values()]


def used_files(files: Iterable[Path]) -> list[Path]:
    """Return the weight files of a folder that hold the model, sorted.

    Left out are a LoRA adapter and, beside other files, the shards of an earlier save of a model in one file, and the
    same weights in Mistral's form.
    """
    known = sorted(file for file in files if not file.name.startswith("adapter_"))
    known = [file for file in known if not file.name.startswith("consolidated")] or known
    whole = {file.stem for file in known}
    return [file for file in known if not (_SHARD.search(file.stem) and _SHARD.sub("", file.stem) in whole)]


def loaded_bytes(folder: Path, itemsize: int, prefixes: Collection[str] = ("",)) -> int | None:
    """Return the size of a folder's weights in memory, of those whose names begin with one of `prefixes`.

    A floating-point number has `itemsize` bytes; types that are loaded as they are, such as those of quantized weights,
    have their size in the file. None for a folder without weights.
    """
    files = weight_files(folder)
    files = [file for file in files if "." not in file.stem] or files  # without variants, such as `.fp16`
    if not files:
        return sum(file.stat().st_size for file in folder.glob("*.bin")) or None
    total = 0
    for name, entry in (item for file in files for item in read_header(file).items()):
        if name.startswith(tuple(prefixes)):
            start, end = entry["data_offsets"]
            total += math.prod(entry["shape"]) * itemsize if entry["dtype"] in _DTYPES else end - start
    return total


def _nearby(folder: Path) -> str | None:
    """Return a hint at a checkpoint one level down, as after unpacking into another folder."""
    for name in ("config.json", "model_index.json", MODULAR_INDEX):
        for file in sorted(folder.glob(f"*/{name}")):
            return f"did you mean `{file.parent}`?"
    return None


def _check_pipeline(folder: Path) -> None:
    """Check a diffusers folder: each component that its index names, and weights if it has a config.json."""
    unsaved = read_family(folder).unsaved_parts.get(read_model_kind(folder), ())
    for name, component in read_components(folder).items():
        if component.folder is None or (not component.folder.is_dir() and name in unsaved):
            continue
        if not component.folder.is_dir():
            raise CheckpointError(f"`{folder}` has no component `{name}`", hint=_COPY_AGAIN)
        _check_json(component.folder)
        if (component.folder / "config.json").is_file():
            _check_weights(component.folder)


def _check_weights(folder: Path, roles: tuple[StageRole, ...] = ()) -> None:
    """Check that every file an index names exists, and every safetensors file of the model is complete."""
    # Tensors in these files are not the model's: a trainer's arguments, and files that a family's stages read.
    others = {"training_args.bin", *(name for role in roles for names in role.needed_files for name in names)}
    files = used_files(file for file in folder.iterdir() if file.suffix in WEIGHT_SUFFIXES and file.name not in others)
    # An index of another format may be left of a download without its shards.
    kind = ".safetensors" if any(file.suffix == ".safetensors" for file in files) else ""
    for index in sorted(folder.glob(f"*{kind}.index.json")):
        weight_map = read_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"`{index}` has no `weight_map`", hint=_COPY_AGAIN)
        missing = sorted({name for name in weight_map.values() if not (folder / str(name)).is_file()})
        if missing:
            raise CheckpointError(f"`{folder}` has no {', '.join(missing)}", hint=_COPY_AGAIN)
    for file in weight_files(folder):
        read_header(file)
    if not files:
        raise CheckpointError(f"`{folder}` has no weights (*.safetensors)", hint=_COPY_AGAIN)


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Parse the tensors of a safetensors header; `CheckpointError` unless it is valid and matches the file's length."""
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
        if start == _LFS_POINTER:
            raise CheckpointError(
                f"`{path}` is a Git LFS pointer, not the weights", hint="run `git lfs pull` in the folder"
            )
        header_bytes = int.from_bytes(start[:8], "little")
        file.seek(8)
        header = file.read(header_bytes) if header_bytes <= _MAX_HEADER_BYTES else b""
        size = file.seek(0, 2)
    try:
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        data_bytes = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"`{path}` is not a safetensors file", hint=_COPY_AGAIN) from error
    expected = 8 + header_bytes + data_bytes
    if size != expected:
        raise CheckpointError(f"`{path}` has {size} bytes instead of {expected}", hint=_COPY_AGAIN)
    return tensors


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; `CheckpointError` otherwise."""
    value = _read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"`{path}` is not a JSON object", hint=_COPY_AGAIN)
    return value


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"`{path.parent}` has no {path.name}", hint=_COPY_AGAIN) from None
    except OSError as error:
        raise CheckpointError(f"cannot read `{path}`: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"`{path}` is not valid JSON: {error}", hint=_COPY_AGAIN) from error
