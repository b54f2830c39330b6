# The command line in a container: docker build -t tailwise . && docker run --rm -v "$PWD:/work" tailwise demo
# Where the package index offers CPU builds of torch elsewhere, name it: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt /wheels/*.whl \
    && useradd --create-home --uid 1000 tailwise \
    && install --directory --owner tailwise /work
USER 1000
WORKDIR /work
# Small networks gain nothing from more threads.
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["tailwise"]
CMD ["--help"]
