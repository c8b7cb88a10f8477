# One image recipe for server and agents; EXTRAS chooses what is installed.
FROM python:3.12-slim
ARG EXTRAS=server
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY advisor advisor
COPY agent agent
COPY web web
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"
