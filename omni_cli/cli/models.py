"""`omni models`: checkpoints of the Hugging Face hub, and small ones with random weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.cli.lazy import command_group
from omni_cli.cli.options import DisplayOptions
from omni_cli.cli.terminal import console, interrupts
from omni_cli.config.bounds import MAX_NUMPY_SEED
from omni_cli.config.families import builtins
from omni_cli.core.errors import UsageError
from omni_cli.core.text import suggest
from omni_cli.report.tables import align
from omni_cli.report.units import size

RepoArgument = Annotated[str, typer.Argument(metavar="REPO", help="A Hugging Face repo id, OWNER/NAME.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def pull(
    display: DisplayOptions,
    repo: RepoArgument,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="R", help="A branch, tag or commit. Default: main.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Download a model from the Hugging Face hub to its cache; only the files that its stages need.

    What is in the cache is not downloaded again. Above 5 GB it asks.
    """
    from omni_cli.checkpoints.files import REPO_ID
    from omni_cli.cli import profile_choice

    if not REPO_ID.fullmatch(repo):
        raise UsageError(f"not a repo id: `{repo}`", hint="a repo id is OWNER/NAME, as in `Qwen/Qwen2.5-Omni-3B`")
    plan, folder = profile_choice.pull(repo, revision, yes=yes, quiet=display.quiet)
    if display.as_json:
        console.print_json(
            {
                "schema": "omni.models.pull/1",
                "repo": repo,
                "revision": folder.name,
                "path": str(folder),
                "size_bytes": plan.size_bytes,
                "downloaded_bytes": plan.missing_bytes,
            }
        )
        return
    console.print_text(str(folder))


def list_models(display: DisplayOptions) -> None:
    """List the checkpoints in the caches: downloaded and built ones, their sizes and the profiles that use them."""
    from omni_cli.checkpoints.resolve import list_cached
    from omni_cli.config.bundled import bundled_data

    cached = list_cached()
    profiles = {
        model.name: [name for name, data in bundled_data().items() if data["model"] == model.name] for model in cached
    }
    if display.as_json:
        entries = [
            {
                "model": model.name,
                "size_bytes": model.size_bytes,
                "complete": model.complete,
                "profiles": profiles[model.name],
                "derives_profile": model.derives_profile,
                "path": str(model.folder),
            }
            for model in cached
        ]
        console.print_json({"schema": "omni.models.list/1", "models": entries})
        return
    rows = [("MODEL", "SIZE", "PROFILES")]
    for model in cached:
        usable = ", ".join(profiles[model.name]) or (f"`--model {model.name}`" if model.derives_profile else "-")
        rows.append((model.name, size(model.size_bytes), usable if model.complete else "incomplete"))
    console.print_text("\n".join(line[2:] for line in align(rows)))


def remove(
    display: DisplayOptions,
    repo: RepoArgument,
    yes: YesOption = False,
) -> None:
    """Delete a downloaded model, all its revisions, from the cache; asks before."""
    from omni_cli.checkpoints.resolve import delete_cached, find_cached
    from omni_cli.cli.profile_choice import confirm

    info, cache = find_cached(repo)
    if not yes:
        confirm(f"Delete {repo}, {size(info.size_on_disk)}?", f"omni models remove {repo} --yes")
    delete_cached(info, cache)
    if display.as_json:
        console.print_json({"schema": "omni.models.remove/1", "repo": repo, "freed_bytes": info.size_on_disk})
    elif not display.quiet:
        console.print_note(f"deleted {repo}, {size(info.size_on_disk)}")


def build(
    display: DisplayOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(builtins())}.")],
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=MAX_NUMPY_SEED, help="Seed of the random weights.")
    ] = 0,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="DIR", help="The checkpoint's folder. Default: ./NAME.")
    ] = None,
) -> None:
    """Write a small checkpoint of a real architecture, with random weights; nothing is downloaded.

    The same name and seed give the same bytes. A folder that already holds them is left as it is.
    """
    from omni_cli.checkpoints.build import build_folder
    from omni_cli.checkpoints.files import count_parameters

    if name not in builtins():
        raise UsageError(
            f"no such built-in model: `{name}`",
            hint=suggest(name, builtins()) or f"the built-in models are {', '.join(builtins())}",
        )
    target = output_dir if output_dir is not None else Path(name)
    start = time.perf_counter()
    written = build_folder(name, target, seed, go_on=interrupts.check)
    build_s = time.perf_counter() - start
    num_parameters = count_parameters(target)
    num_bytes = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    if display.as_json:
        console.print_json(
            {
                "schema": "omni.models.build/1",
                "name": name,
                "seed": seed,
                "path": str(target),
                "written": written,
                "num_parameters": num_parameters,
                "size_bytes": num_bytes,
                "build_s": build_s,
            }
        )
        return
    console.print_text(str(target))
    if not display.quiet:
        what = "built" if written else "already up to date, checked byte for byte"
        console.print_note(f"{num_parameters / 1e6:.1f} M parameters, {size(num_bytes)}, {what} in {build_s:.1f} s")


models = command_group(
    "Download, list and remove checkpoints; build small ones with random weights.",
    pull=pull,
    list=list_models,
    remove=remove,
    build=build,
)
