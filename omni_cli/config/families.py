"""Model families: an architecture as data, with references to the code that only it needs.

A family registers under the entry point group `omni_cli.models`; ours do, too. References are `package.module:name`,
imported on use, so that listing the families imports none of them.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from omni_cli.core.errors import OmniError

GROUP = "omni_cli.models"
BUILTIN_PREFIX = "builtin:"
# A file in the folder of a built checkpoint.
RANDOM_WEIGHTS = "random-weights.txt"

Reference = str
"""`package.module:name`."""

Modality = Literal["text", "audio", "image", "video", "tensor"]

EntryFile = Literal["config.json", "model_index.json"]
"""The file of a checkpoint that names its architecture: transformers' or diffusers'."""


class StageShape(Protocol):
    """The keys of a profile's stage that determine its place in a chain."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def input(self) -> str | None: ...


@dataclass(frozen=True)
class Cloning:
    """Voices that a stage clones from recordings: at most `max_voices` per request, each of at most `max_s` seconds.

    `text` is about the words of a recording. Without `by_all`, only some checkpoints of the family clone.
    """

    max_voices: int = 1
    text: Literal["needed", "optional", "unused"] = "unused"
    max_s: float = 60.0
    by_all: bool = True


@dataclass(frozen=True)
class StageRole:
    """One stage of a family's chain.

    `stage` is the class that runs it: called with a `StageSpec` and `emit`, it returns a loaded `Stage`. `input` names
    the role whose output it takes, None for the first. `makes` is its output for the user; None if only the next stage
    gets one. `takes` names request fields that affect it, beside those that follow from `makes`. Where the call of a
    pipeline decides both, `takes` is instead a function that returns the `PipelineCall` for a checkpoint's name; it is
    called in a process that has the libraries of the stage imported. `model` is the model's class where vLLM lacks it,
    and its name the architecture's there. With `transcribes`, a request is a sound, and a prompt only helps to
    understand it; if the stage `chats` as well, so is a request that asks for a transcript, or that has a sound and no
    prompt. `clones` is set where the stage clones voices. `settings` declares the stage's own profile keys: a class
    derived from `config.schema.ARStageConfig` or `DiffusionStageConfig`; None if it has no others. A checkpoint must
    have at least one file of each group in `needed_files`, weights whose names begin with each of `needed_weights`
    (`FOLDER/PREFIX` for those of a component), and one of `processor_files` if its configuration describes a vision or
    audio encoder. A checkpoint in whose config.json the key `enabled_key` is false lacks the stage. `decoder` leads to
    the configuration of an AR stage's language model: `KEY.KEY` of config.json, `FOLDER/KEY` of a component's. Beside a
    request's keys and values, that model has those of `num_branches` further sequences of the same length, within the
    same memory.
    """

    name: str
    kind: Literal["ar", "diffusion"]
    backend: Literal["vllm", "diffusers"]
    stage: Reference
    model: Reference = ""
    input: str | None = None
    makes: Modality | None = None
    takes: tuple[str, ...] | Reference = ()
    transcribes: bool = False
    chats: bool = False
    clones: Cloning | None = None
    settings: Reference | None = None
    needed_files: tuple[tuple[str, ...], ...] = ()
    processor_files: tuple[str, ...] = ()
    needed_weights: tuple[str, ...] = ()
    enabled_key: str | None = None
    decoder: str = ""
    num_branches: int = 0

    @property
    def architecture(self) -> str:
        """The name of its `model` in vLLM, "" without one."""
        return self.model.partition(":")[2]

    def fits(self, stage: StageShape) -> bool:
        """True if a profile's stage can have this role, under any name."""
        return (stage.kind, stage.backend, stage.input) == (self.kind, self.backend, self.input)


ar_role = functools.partial(StageRole, kind="ar", backend="vllm")
# A group of `needed_files`: transformers writes the first, and wrote the second.
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class CheckpointNeeds:
    """Needs of a published checkpoint: the size of its weight files, and the parameters of its parts.

    A part is a stage of a chain, or a component of a pipeline. `pipeline` is its class, where the family has several.
    """

    download_bytes: int
    parameters: Mapping[str, int]
    pipeline: str | None = None


@dataclass(frozen=True)
class Machine:
    """A machine to derive a profile for."""

    device: Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Family:
    """One architecture under all its names in checkpoints.

    `entry_file` contains the name in a checkpoint. `claims` is a function of a name, true for those that the family
    takes beside its `architectures`. A family without either takes all that no other family does. `vllm_models` maps
    an architecture's name to a model class that vLLM lacks and no role has. `builtins` maps the name of a built-in
    checkpoint to a function of an output folder and a seed; a built checkpoint is kept until a module beside that
    function's, or of `omni_cli.checkpoints`, changes. `profile` is a function of a checkpoint folder and a `Machine`;
    it returns the keys of a profile's stages, by name; `kind`, `backend` and `input` follow from the roles.
    `inner_architectures` are those that vLLM looks up while it builds one of `models`. `published` maps repo ids of the
    Hugging Face hub to their needs, for `omni doctor`. `prompt_frame` is the text around the words of a generated
    prompt, for models that need the tokens of a conversation's turns. `unsaved_parts` are those that a pipeline's index
    names and its folder lacks, because the pipeline makes them itself. `check` is a function of a `GenerateRequest` and
    an `EngineConfig` that raises `InputError` for what can be rejected before anything is loaded. `reference` is the
    class that computes the family's outputs with transformers or diffusers
    (`omni_cli.models.reference.FamilyReference`), for `omni verify`. One whose publisher's `reference_package` needs
    other versions runs it in another Python, which `reference_recipe`, a target of the Makefile, makes: it is called
    with a fourth argument, the path of that Python.
    """

    name: str
    title: str
    roles: tuple[StageRole, ...]
    architectures: tuple[str, ...] = ()
    claims: Reference | None = None
    entry_file: EntryFile = "config.json"
    vllm_models: Mapping[str, Reference] = field(default_factory=dict)
    builtins: Mapping[str, Reference] = field(default_factory=dict)
    profile: Reference | None = None
    check: Reference | None = None
    inner_architectures: tuple[str, ...] = ()
    published: Mapping[str, CheckpointNeeds] = field(default_factory=dict)
    prompt_frame: tuple[str, str] = ("", "")
    unsaved_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reference: Reference | None = None
    reference_package: str = ""
    reference_recipe: str | None = None

    @property
    def models(self) -> Mapping[str, Reference]:
        """The model classes that vLLM lacks, by the names of their architectures."""
        return {**{role.architecture: role.model for role in self.roles if role.model}, **self.vllm_models}

    @property
    def is_named(self) -> bool:
        """False for the family that takes what no other does."""
        return bool(self.architectures or self.claims)

    def role(self, name: str) -> StageRole | None:
        """Return the role of a stage of that name; None if the chain has none. An only stage may have any name."""
        if len(self.roles) == 1:
            return self.roles[0]
        return next((role for role in self.roles if role.name == name), None)

    def fits(self, stages: Iterable[StageShape]) -> bool:
        """True if a profile's stages are stages of this family."""
        roles = [(self.role(stage.name), stage) for stage in stages]
        return all(role is not None and role.fits(stage) for role, stage in roles)


@dataclass(frozen=True)
class BrokenPlugin:
    """An installed package whose model family cannot be used; `message` has file and line of the mistake."""

    package: str
    message: str

    @property
    def hint(self) -> str:
        return f"correct it, or uninstall it: pip uninstall {self.package}"


def families() -> Mapping[str, Family]:
    """Return the usable families by name."""
    return _discover()[0]


def broken_plugins() -> tuple[BrokenPlugin, ...]:
    """Return the packages whose families are left out: nothing else is stopped by their mistakes."""
    return (*_discover()[1], *_broken_claims)


@functools.cache
def _discover() -> tuple[Mapping[str, Family], tuple[BrokenPlugin, ...]]:
    by_name: dict[str, Family] = {}
    claimed: dict[str, str] = {}
    broken = []
    # Ours first: no package can take an architecture from them.
    for point in sorted(entry_points(group=GROUP), key=lambda point: (not is_ours(point.module), point.name)):
        if _is_of_another_commit(point):
            continue
        family = _load_family(point)
        if isinstance(family, BrokenPlugin):
            broken.append(family)
            continue
        package = _package(point)
        if taken := next((claim for claim in _claims(family) if claim in claimed), None):
            message = f"two packages provide a model family for {taken}: {claimed[taken]} and {package}"
            broken.append(BrokenPlugin(package, f"{message} ({_file_of(point)})"))
            continue
        claimed |= dict.fromkeys(_claims(family), package)
        by_name[family.name] = family
    return MappingProxyType(by_name), tuple(broken)


def published_needs(model: str) -> CheckpointNeeds | None:
    """Return the needs of a repository of the Hugging Face hub; None if no family states them."""
    return next((family.published[model] for family in families().values() if model in family.published), None)


def has_random_weights(model: str) -> bool:
    """True for a built-in checkpoint, and for a folder that one was built in."""
    return model.startswith(BUILTIN_PREFIX) or Path(model, RANDOM_WEIGHTS).expanduser().is_file()


def _claims(family: Family) -> list[str]:
    """Return the names that only one family can have."""
    architectures = family.architectures if family.is_named else (f"any architecture in {family.entry_file}",)
    return [*architectures, *(BUILTIN_PREFIX + name for name in family.builtins), f"the name `{family.name}`"]


def _is_of_another_commit(point: EntryPoint) -> bool:
    """True if one of our families is not in the running code, as in an older commit of `omni bench --against`."""
    if not point.module.startswith("omni_cli.models."):
        return False
    package = point.module.rpartition(".")[0]
    return importlib.util.find_spec(package) is None or importlib.util.find_spec(point.module) is None


def _load_family(point: EntryPoint) -> Family | BrokenPlugin:
    named = f"the model family `{point.name}` of {_package(point)}"
    try:
        family = point.load()
    except Exception as error:  # noqa: BLE001 - whatever a package raises stops only its own family
        text, place = getattr(error, "msg", error), plugin_place(error) or _file_of(point)  # `str` may have the place
        return BrokenPlugin(_package(point), f"cannot import {named}: {type(error).__name__}: {text} ({place})")
    if not isinstance(family, Family):
        message = f"{named} is of type {type(family).__name__}, not a Family ({_file_of(point, point.attr)})"
        return BrokenPlugin(_package(point), message)
    return family


def is_ours(module: str) -> bool:
    """True for a module of this package."""
    return module.partition(".")[0] == __name__.partition(".")[0]


def _file_of(point: EntryPoint, text: str | None = None) -> str:
    """Return the file of an entry point's module, with the line where `text` begins one; else its declaration."""
    file = find_file(point.module)
    if file is None:
        return f"entry point `{point.name} = {point.value}`"
    lines = file.read_text().splitlines() if text else []
    number = next((number for number, line in enumerate(lines, 1) if line.startswith(text or "")), None)
    return str(file) if number is None else f"{file}:{number}"


def find_file(module: str) -> Path | None:
    """Return the file of a module without importing it; None if there is none."""
    top, (_, *parts) = find_top(module), module.split(".")
    path = Path(top or "", *parts)
    candidates = (path, path / "__init__.py", path.with_suffix(".py")) if top else ()
    return next((file for file in candidates if file.is_file()), None)


def find_top(module: str) -> str | None:
    """Return the folder of a module's top package, or its file; None if it is not installed."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    return next((str(Path(place).resolve()) for place in places if place), None)


def plugin_place(error: BaseException) -> str | None:
    """Return `FILE:LINE` of a mistake in a plug-in; None if the innermost code, libraries apart, is not a plug-in's."""
    points = (point.module for point in entry_points(group=GROUP))
    others = [folder for folder in {find_top(name) for name in points if not is_ours(name)} if folder]
    if isinstance(error, SyntaxError) and str(error.filename).startswith(tuple(others)):
        return f"{error.filename}:{error.lineno}"
    ours = find_top(__name__) or ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = str(Path(frame.filename).resolve())
        if any(file == folder or file.startswith(f"{folder}/") for folder in others):
            return f"{frame.filename}:{frame.lineno}"
        if file.startswith(f"{ours}/") and file != str(Path(__file__).resolve()):
            return None
    return None


def hint_at_plugins(hint: str | None) -> str | None:
    """Return a hint for what no usable family has: the first broken plug-in, which may have it, else `hint`."""
    return next((f"{broken.message}; {broken.hint}" for broken in broken_plugins()), hint)


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else point.dist.name


def get_family(architecture: str, entry_file: EntryFile = "config.json") -> Family:
    """Return the family of a checkpoint's architecture, which `entry_file` names."""
    candidates = [family for family in families().values() if family.entry_file == entry_file]
    named = [family for family in candidates if architecture in family.architectures]
    claimed = (family for family in candidates if not named and _takes(family, architecture))
    anything = (family for family in candidates if not family.is_named)
    found = next(itertools.chain(named, claimed, anything), None)
    if found is None:
        raise OmniError(f"no model family for {architecture} is installed", hint="install omni-cli again")
    return found


_broken_claims: list[BrokenPlugin] = []


def _takes(family: Family, architecture: str) -> bool:
    """True if a family claims an architecture; a plug-in's function that fails claims none."""
    try:
        return family.claims is not None and bool(load(family.claims)(architecture))
    except Exception as error:
        if is_ours((family.claims or "").partition(":")[0]):
            raise
        message = f"cannot ask the model family `{family.name}`: {type(error).__name__}: {error}"
        _broken_claims.append(BrokenPlugin(family.name, f"{message} ({plugin_place(error) or family.claims})"))
        return False


def get_family_of_stages(model: str, stages: Iterable[StageShape]) -> Family | None:
    """Return the family of a profile without reading its checkpoint; None if no family has such stages.

    A built-in checkpoint has one. Otherwise the names of the stages decide, then the family that takes any
    architecture.
    """
    builder = builtins().get(model.removeprefix(BUILTIN_PREFIX)) if model.startswith(BUILTIN_PREFIX) else None
    shapes = list(stages)
    fitting = [family for family in families().values() if family.fits(shapes)]

    def rank(family: Family) -> tuple[bool, bool, bool]:
        names = {role.name for role in family.roles}
        return family is not builder, not all(shape.name in names for shape in shapes), family.is_named

    return min(fitting, key=rank, default=None)


def builtins() -> Mapping[str, Family]:
    """Return the names of the built-in checkpoints, sorted, with the family that builds each."""
    by_name = {name: family for family in families().values() for name in family.builtins}
    return dict(sorted(by_name.items()))


def load(reference: Reference) -> Any:
    """Import the target of a reference. Raises `OmniError` for a plug-in's that cannot be, with the mistake's place."""
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        if is_ours(module):
            raise
        message = f"cannot import `{reference}` of a plug-in: {type(error).__name__}: {error}"
        raise OmniError(f"{message} ({plugin_place(error) or find_top(module) or 'not installed'})") from error
