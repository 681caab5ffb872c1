"""The files of a repository that its stages load, chosen before the weights are downloaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from omni_cli.checkpoints.files import (
    WEIGHT_SUFFIXES,
    index_file,
    read_components,
    read_family,
    read_object,
    used_files,
)

# Weights of other frameworks, and what a model's page shows.
_UNUSED = {
    *(".onnx", ".onnx_data", ".msgpack", ".h5", ".ot", ".tflite", ".gguf", ".ckpt", ".mlmodel", ".nemo"),
    *(".md", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".mp4", ".pdf"),
}


def needed_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Return those of a repository's files that a chain loads; its JSON files are in `folder` already.

    Per folder one format (safetensors, if there is one) in one variant. Of a pipeline, only the components that its
    index names. Raises `CheckpointError` if the JSON files do not name a model class.
    """
    special = {name for role in read_family(folder).roles for group in role.needed_files for name in group}
    components = {part.folder.name for part in read_components(folder).values() if part.folder is not None}
    is_pipeline = index_file(folder) is not None
    by_folder: dict[str, list[Path]] = defaultdict(list)
    needed = []
    for name in names:
        path = PurePosixPath(name)
        top = path.parts[0] if len(path.parts) > 1 else ""
        if path.suffix in _UNUSED or path.name == ".gitattributes" or (is_pipeline and top and top not in components):
            continue
        if path.suffix in WEIGHT_SUFFIXES and name not in special:
            by_folder[str(path.parent)].append(Path(name))
        else:
            needed.append(name)
    for part, weights in by_folder.items():
        # Weights beside a pipeline's folders are the whole pipeline in one file, or in another format.
        if part != "." or not is_pipeline:
            needed += _loaded(folder / part, weights, only_safetensors=part != "." and not is_pipeline)
    return sorted(needed)


def _loaded(folder: Path, weights: list[Path], *, only_safetensors: bool) -> list[str]:
    """Return the weights that a loader takes of a folder with several formats and variants."""
    safetensors = [file for file in weights if file.suffix == ".safetensors"]
    files = used_files(safetensors if safetensors or only_safetensors else weights)
    files = [file for file in files if "." not in file.stem] or files  # without variants, such as `.fp16`
    index = folder / "model.safetensors.index.json"
    named = read_object(index).get("weight_map") if index.is_file() else None
    if isinstance(named, dict):
        files = [file for file in files if file.name in named.values()] or files
    return [file.as_posix() for file in files]
