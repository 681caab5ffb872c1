"""The request fields and arguments that a checkpoint's pipeline takes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from omni_cli.checkpoints.files import MODULAR_INDEX, components_of, index_file, read_model_kind
from omni_cli.checkpoints.hub import cached_settings
from omni_cli.checkpoints.resolve import is_built, resolve_model
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.call_checks import check_media, checked_value, readings, settable
from omni_cli.diffusers_integration.loading import check_runnable
from omni_cli.diffusers_integration.modular_signature import checkpoint_signature
from omni_cli.diffusers_integration.packages import check_packages
from omni_cli.diffusers_integration.signature import FIELDS, Kind, PipelineSignature, signature_of
from omni_cli.diffusers_integration.stand_in import check_request
from omni_cli.diffusers_integration.weights import check_quantization_needs
from omni_cli.errors import CheckpointError, InputError
from omni_cli.families import BUILTIN_PREFIX, CallArgument, published_needs
from omni_cli.outputs import GenerateRequest

_BUILT = {
    "tiny-audio": "StableAudioPipeline",
    "tiny-edit": "Flux2KleinPipeline",
    "tiny-image": "QwenImagePipeline",
    "tiny-video": "WanPipeline",
}


@dataclass(frozen=True)
class PipelineInputs:
    """The inputs of a pipeline's call; an unknown pipeline accepts any, and rejects them itself after loading.

    `classes` are those of diffusers that it consists of; `folder` has its files, None if they are not there yet.
    """

    signature: PipelineSignature | None
    classes: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def pipeline(self) -> str | None:
        return None if self.signature is None else self.signature.name

    @property
    def outputs(self) -> tuple[str, ...]:
        return () if self.signature is None else self.signature.output_fields

    @property
    def fields(self) -> frozenset[str]:
        signature = self.signature
        found = FIELDS if signature is None else [f for f in FIELDS if signature.argument_of(f) is not None]
        makes_video = signature is not None and signature.makes == "video"
        length = ["duration"] if makes_video and "num_frames" in found else []
        return frozenset({*found, *(["fps"] if makes_video else []), *length, "arg"})

    @functools.cached_property
    def arguments(self) -> tuple[CallArgument, ...]:
        if self.signature is None:
            return ()
        signature = self.signature
        fields = {signature.argument_of(field): field for field in reversed(FIELDS)}
        needed = {name for group in signature.needed for name in group[:1]}
        shown = {*fields, *settable(signature)}
        return tuple(
            CallArgument(
                name,
                signature.medium_of(name) or fields.get(name, "arg"),
                argument.type,
                argument.default,
                name in needed,
                argument.file_kind,
            )
            for name, argument in signature.arguments.items()
            if name in shown
        )

    def missing(self, fields: Collection[str], arguments: Collection[str]) -> tuple[CallArgument, ...]:
        if self.signature is None:
            return ()
        given = {self.signature.argument_of(field) for field in fields} | set(arguments)
        groups = self.signature.needed
        missing = next((group for group in groups if not given & set(group)), ())
        return tuple(argument for argument in self.arguments if argument.name in missing)

    def check(self, fields: Mapping[str, object]) -> None:
        check_packages(self.classes)
        if self.signature is not None:
            check_runnable(self.signature)
            check_media(fields, self.signature)

    def checked(self, arguments: Mapping[str, object]) -> dict[str, object]:
        return {name: self._checked(name, value) for name, value in arguments.items()}

    def check_request(self, request: GenerateRequest, stage: DiffusionStageConfig) -> str | None:
        check_quantization_needs(stage)
        return None if self.signature is None else check_request(self.signature.name, self.folder, stage, request)

    def _checked(self, name: str, value: object) -> object:
        if self.signature is not None:
            return checked_value(name, value, self.signature)
        if isinstance(value, str) and value.startswith("@"):
            raise InputError(
                f"`{name}` names a file, and only a downloaded checkpoint tells whether its pipeline takes one",
                hint="download the checkpoint first, and name its folder with `--model`",
            )
        return readings(value)[0]


def made_by(model: str, stage: str = "image") -> Kind:
    """The kind of a checkpoint's output; where only a download tells it, that which its stage is named after."""
    signature = inputs_of(model).signature
    if signature is not None:
        return signature.makes or "image"
    return next((kind for kind in get_args(Kind) if kind == stage), "image")


def inputs_of(model: str) -> PipelineInputs:
    """Return the inputs of the pipeline of a profile's `model`."""
    class_name = _BUILT.get(model.removeprefix(BUILTIN_PREFIX)) or _class_of(model)
    if class_name is None:
        return PipelineInputs(None)
    folder = _folder_of(model)
    is_modular = folder is not None and index_file(folder) == folder / MODULAR_INDEX
    signature = checkpoint_signature(folder) if folder is not None and is_modular else signature_of(class_name)
    return PipelineInputs(signature, (class_name, *_diffusers_classes(model)), folder)


def _class_of(model: str) -> str | None:
    """Return the class that a folder, a downloaded or a published repository names; None for anything else."""
    needs = published_needs(model)
    published = None if needs is None else needs.pipeline
    folder = _folder_of(model)
    try:
        return published if folder is None else read_model_kind(folder)
    except CheckpointError:
        return published


def _diffusers_classes(model: str) -> list[str]:
    """Return the classes of diffusers that a checkpoint's index names; none without an index."""
    parts = components_of(_folder_of(model) or Path(model)).values()
    return [part.class_name for part in parts if part.library == "diffusers" and part.class_name is not None]


def _folder_of(model: str) -> Path | None:
    if model.startswith(BUILTIN_PREFIX):
        return Path(resolve_model(model)) if is_built(model) else None
    if Path(model).is_dir():
        return Path(model)
    return cached_settings(model, "model_index.json") or cached_settings(model, MODULAR_INDEX)
