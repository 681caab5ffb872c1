"""omni-cli: run and benchmark omni models over vLLM and diffusers."""

__version__ = "0.6.0"
