# The scripts, built and ready to train, on CPU or GPU: torch brings its own CUDA libraries, so this
# base also works under the NVIDIA container toolkit.
#
#   docker build -t patcher .
#   docker run --rm patcher                     # verify --quick: short trainings on the CPU
#   docker run --rm --gpus all --ipc=host -v /data/imagenet:/data:ro patcher \
#     torchrun --nproc_per_node=8 build/distributed.py --data /data --arch vit_l_16 \
#     --epochs 400 --batch-size 768 --learning-rate 0.001
#
# --ipc=host (or --shm-size=16g): batches pass through /dev/shm, and docker's default is 64 MB.
# For a driver that runs no CUDA 13, such as one for CUDA 12.2 (docs/training.md has the table):
#
#   docker build -t patcher --build-arg TORCH=2.4.1 --build-arg TORCHVISION=0.19.1 .
#
# With CUDA's own tools and a compiler, which --compile needs on a GPU; the wheels bring the rest:
#
#   docker build -t patcher --build-arg BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04 .
#
# Any base will do that has python 3.10 or newer, or an apt-get that brings it.
ARG BASE=python:3.11-slim
FROM ${BASE}

# The versions are those of the base.
# hadolint ignore=DL3008
RUN command -v python >/dev/null \
 || { apt-get update \
   && apt-get install -y --no-install-recommends gcc python3-dev python3-pip python-is-python3 \
   && rm -rf /var/lib/apt/lists/*; }
# A distribution's own Python refuses pip otherwise.
ENV PIP_BREAK_SYSTEM_PACKAGES=1

WORKDIR /opt/patcher
COPY . .
# Both versions, or neither: then what setup.cfg pins.
ARG TORCH=
ARG TORCHVISION=
# An editable install: the checkout here is what runs.
RUN if [ -z "${TORCH}${TORCHVISION}" ]; then set -- ".[train,demo]"; \
    else set -- ".[demo]" "torch==${TORCH:?TORCHVISION needs it}" "torchvision==${TORCHVISION:?TORCH needs it}"; fi \
 && python -m pip install --no-cache-dir --editable "$@" \
 && python -m patcher apply \
 && { getent passwd 1000 || useradd --create-home --uid 1000 trainer; } \
 && mkdir /runs \
 && chown -R 1000 /opt/patcher /runs

# By number, so that a host can tell that it is not root.
USER 1000
ENV PYTHONUNBUFFERED=1
# The commit; last, because a new one makes all that follows anew.
ARG REVISION=unknown
LABEL org.opencontainers.image.title="patcher" \
      org.opencontainers.image.description="Reference training scripts, patched and ready to train" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="MIT"
CMD ["python", "-m", "patcher", "verify", "--quick"]
