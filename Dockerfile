# One recipe for both images: --target server (the default) and --target agent.
FROM python:3.12-slim AS base
WORKDIR /app
COPY pyproject.toml constraints.txt requirements-server.lock README.md LICENSE ./
COPY advisor advisor
COPY agent agent
COPY web web

# It starts as root to make overlays; `--run-as trainer` is who the training scripts are.
FROM base AS agent
# ssh-keygen checks signed jobs, cc builds NCCL's tuner plugin.
RUN apt-get update && apt-get install -y --no-install-recommends openssh-client gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# torch and numpy are for the trainings: take the torch that your cards need.
RUN pip install --no-cache-dir -c constraints.txt torch numpy ".[agent]"
RUN useradd --create-home --uid 10002 trainer \
    && install -d -o trainer -g trainer /training
WORKDIR /training

# Nothing is installed whose hash is not in the lock (`make lock`), not even what builds our own wheel.
FROM base AS server
RUN pip install --no-cache-dir --require-hashes -r requirements-server.lock \
    && pip install --no-cache-dir --no-deps --no-build-isolation .
RUN useradd --no-create-home --uid 10001 advisor \
    && install -d -o advisor -g advisor -m 0700 /data /enrolment \
    && install -d -o advisor -g advisor /training
USER advisor
# Where `advisor tune` is typed it writes its result, and there the agents start the job: both images have this directory.
WORKDIR /training
ENV ADVISOR_DATA_DIR=/data
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8765/readyz', timeout=4)"]
