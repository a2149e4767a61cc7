# The scripts, built and ready to train, on CPU or GPU: torch brings its own CUDA libraries, so this
# base also works under the NVIDIA container toolkit.
#
#   docker build -t patcher .
#   docker run --rm patcher                     # check, then a short training run on the CPU
#   docker run --rm --gpus all --ipc=host -v /data/imagenet:/data:ro patcher \
#     torchrun --nproc_per_node=8 build/distributed.py --data /data --arch vit_l_16 \
#     --epochs 400 --batch-size 768 --learning-rate 0.001
#
# --ipc=host (or --shm-size=16g): batches pass through /dev/shm, and docker's default is 64 MB.
# For a driver that runs no CUDA 13, such as one for CUDA 12.2 (docs/training.md has the table):
#
#   docker build -t patcher --build-arg TORCH=2.4.1 --build-arg TORCHVISION=0.19.1 .
#
# Another base, of any kind that has python 3.11: --build-arg BASE=<image>.
ARG BASE=python:3.11-slim
FROM ${BASE}

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
 && useradd --create-home --uid 1000 trainer \
 && chown -R 1000 /opt/patcher

# By number, so that a host can tell that it is not root.
USER 1000
ENV PYTHONUNBUFFERED=1
CMD ["sh", "-c", "python -m patcher check && exec python examples/demo.py --quick --folder /tmp/demo"]
