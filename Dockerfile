# Targets `cpu`, the default, and `cuda`: docs/containers.md
#
#   docker build --build-arg COMMIT=$(git rev-parse HEAD) -t omni .
FROM debian:bookworm-slim AS base
# torch and Triton compile for the machine at run time; vLLM's CPU build loads libnuma.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ libnuma1 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/omni \
    && useradd --create-home --uid 1000 omni \
    && install --directory --owner omni --group omni /cache /work
ENV PATH=/opt/omni/bin:$PATH XDG_CACHE_HOME=/cache PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /work
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --interval=10s --start-period=2m \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["omni"]
CMD ["serve", "--host", "0.0.0.0"]

FROM base AS wheel
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG COMMIT
COPY . /src
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT" > /src/omni_cli/COMMIT; fi \
    && pip wheel --no-deps --wheel-dir /dist /src \
    && cp /src/requirements/*.txt /dist

FROM base AS cuda
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
COPY --from=wheel /dist /dist
RUN pip install --constraint /dist/cuda.txt "$(ls /dist/*.whl)[cuda]"
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER omni

FROM base AS cpu
# A mirror of PyTorch's index; empty: only pip's sources, of which one must have torch's CPU build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
COPY --from=wheel /dist /dist
# The last one: CUDA builds that do not load with a CPU build of torch.
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0+cpu torchvision==0.28.0 \
    && pip install --constraint /dist/cpu.txt "$(ls /dist/*.whl)[cpu]" \
    && pip uninstall --yes torchaudio torchcodec
USER omni
