# syntax=docker/dockerfile:1
# One image for every process: web, worker, beat, watcher, migrate, and the agent on Kubernetes nodes.
# Any base with Python 3.11 to 3.14, pip, a shell and useradd will do.
ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV=/opt/hearth
WORKDIR /build
COPY requirements/ requirements/
RUN --mount=type=cache,target=/root/.cache \
    python -m pip install --require-hashes --no-deps --target /opt/uv --requirement requirements/bootstrap.txt \
    && python -m venv --without-pip /opt/hearth \
    && /opt/uv/bin/uv pip sync --require-hashes requirements/base.txt

FROM ${BASE}
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/hearth --shell /usr/sbin/nologin hearth \
    && install -d -o hearth -g hearth -m 0700 /var/lib/hearth
ENV PATH=/opt/hearth/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DJANGO_SETTINGS_MODULE=controlplane.settings \
    HEARTH_STATE_DIR=/var/lib/hearth \
    HEARTH_STATIC_ROOT=/srv/static
COPY --from=build /opt/hearth /opt/hearth
WORKDIR /srv/hearth
COPY . .
# The key signs nothing here: settings want one, collecting files does not use it.
RUN SECRET_KEY=only-while-building python manage.py collectstatic --no-input \
    && python -m compileall -q controlplane caches routing
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
# Idle connections stay longer than proxies keep them, which is a minute with most: one that is closed just when a proxy
# sends a request over it is an error for somebody.
CMD ["gunicorn", "controlplane.wsgi:application", "--bind", "0.0.0.0:8000", "--worker-class", "gthread", \
     "--workers", "2", "--threads", "8", "--graceful-timeout", "20", "--keep-alive", "75", \
     "--worker-tmp-dir", "/dev/shm", "--no-control-socket"]
