# The scripts, built and ready to train. CPU or GPU: the torch that pip installs brings its own CUDA libraries, so this base
# also works under the NVIDIA container toolkit:
#
#   docker build -t patcher .
#   docker run --rm patcher                                    check, then a short training run on the CPU
#   docker run --rm --gpus all --ipc=host -v /data/imagenet:/data:ro patcher \
#     torchrun --nproc_per_node=8 build/distributed.py --data /data --arch vit_l_16 --epochs 400 --batch-size 768 --learning-rate 0.001
#
# --ipc=host (or --shm-size=16g): data loading workers pass batches through /dev/shm, and docker's default of 64 MB is too small.
# docs/training.md says which torch goes with which driver. For one that runs no CUDA 13, such as a driver for CUDA 12.2:
#
#   docker build -t patcher --build-arg TORCH=2.4.1 --build-arg TORCHVISION=0.19.1 .
#
# Another base, of any kind that has python 3.11: --build-arg BASE=<image>.
ARG BASE=python:3.11-slim
FROM ${BASE}

WORKDIR /opt/patcher
COPY . .
# What setup.cfg pins, or both versions.
ARG TORCH=
ARG TORCHVISION=
# An editable install: the checkout here is what runs.
RUN if [ -z "${TORCH}${TORCHVISION}" ]; then set -- ".[train,demo]"; \
    else set -- ".[demo]" "torch==${TORCH:?TORCHVISION needs it}" "torchvision==${TORCHVISION:?TORCH needs it}"; fi \
 && python -m pip install --no-cache-dir --editable "$@" \
 && python -m patcher apply \
 && useradd --create-home --uid 1000 trainer \
 && chown -R 1000 /opt/patcher

# By number, so that a host which wants to know that it is not root can tell.
USER 1000
ENV PYTHONUNBUFFERED=1
CMD ["sh", "-c", "python -m patcher check && exec python examples/demo.py --quick --folder /tmp/demo"]
