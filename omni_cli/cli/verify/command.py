"""`omni verify`: checks whether outputs are those of the reference, and stay the same."""

from __future__ import annotations

from omni_cli.cli.gate_options import check_output_files
from omni_cli.cli.verify.options import VerifyOptions
from omni_cli.errors import UsageError

_OF_PROFILES = ("profile", "vary", "set_")


def verify(options: VerifyOptions) -> int:
    """Check whether a profile, a model or a running server gives the right outputs.

    The same requests run in the engine and in transformers or diffusers, alone and batched, streamed, repeated, with
    other seeds and limits. Exits with 0 (all equal or near ties), 5 (different), 3 (nothing could be decided) or 6
    (the run failed).
    """
    check_output_files(options.output_json, options.junit, options.markdown)
    if options.url is not None:
        # With `--model`, the reference uses the adapter.
        names = _OF_PROFILES if options.model is not None else (*_OF_PROFILES, "lora")
        wrong = next((name for name in names if getattr(options, name)), None)
        if wrong is not None:
            raise UsageError(f"`--{wrong.rstrip('_')}` is for profiles, and `--url` names a server")
        from omni_cli.cli.verify.server import verify_server

        return verify_server(options)
    if options.served_model_name is not None or options.route != "chat":
        raise UsageError("`--route` and `--served-model-name` are for servers", hint="add `--url URL`")
    from omni_cli.cli.verify.profile import verify_profile

    return verify_profile(options)
