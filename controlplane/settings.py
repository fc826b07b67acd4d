"""All settings, from the environment or from files named by ``NAME_FILE``; a named file that is missing is an error.

Every default serves the embedded program (``make run``). .env.example lists each variable with its meaning.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path

import environ
import plotly
from csp.constants import NONE, SELF

from controlplane.web.static_version import static_version

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.FileAwareEnv()

STATE_DIR = Path(env.str("HEARTH_STATE_DIR", default=str(BASE_DIR / ".run"))).resolve()
DEBUG = env.bool("HEARTH_DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="only-for-building-and-tests-set-SECRET_KEY-to-serve")
ALLOWED_HOSTS = env.list("HEARTH_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("HEARTH_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "controlplane",
    "controlplane.accounts",
    "controlplane.audit",
    "controlplane.operations",
    "controlplane.clusters",
    "controlplane.serving",
    "controlplane.rest",
    "controlplane.web",
    "caches",
    "routing",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "csp",
    "django_filters",
    "django_htmx",
    "django_structlog",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "knox",
    "rest_framework",
]

MIDDLEWARE = [
    "controlplane.rest.middleware.RequestIdMiddleware",
    "controlplane.rest.middleware.ApiProblemMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "controlplane.web.errors.ErrorPagesMiddleware",
    "controlplane.rest.middleware.NulMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.web.context.page_frame",
            ],
        },
    },
]

warnings.filterwarnings("ignore", "Engine not recognized from url")  # it says the password
# PostgreSQL is the only database: partial unique indexes, SKIP LOCKED and percentiles carry the loop.
DATABASES = {"default": env.db("DATABASE_URL", default="postgres://hearth@127.0.0.1:5432/hearth")}
DATABASES["default"]["ATOMIC_REQUESTS"] = False
DATABASES["default"]["CONN_MAX_AGE"] = 0
# After a restart of PostgreSQL the pool holds dead connections: each is tried before it is handed out.
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
# Without a pool a database that is not there is an error at once, where a pool would wait for it.
if _pool := env.int("HEARTH_DATABASE_POOL", default=12):
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 0, "max_size": _pool, "timeout": 20}
# knox would create the table of its own token although ours replaces it.
MIGRATION_MODULES = {"knox": None}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.str("REDIS_URL", default="redis://127.0.0.1:6379/0").strip()  # files end with a newline

AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
CSRF_FAILURE_VIEW = "controlplane.web.errors.csrf_failure"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = env.bool("HEARTH_HTTPS", default=False)
CSRF_COOKIE_SECURE = SESSION_COOKIE_SECURE
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "font-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
    },
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

# Set where collectstatic writes compressed copies (the image does); without it files are served as they are.
STATIC_ROOT = env.str("HEARTH_STATIC_ROOT", default="") or None
STATICFILES_DIRS = [BASE_DIR / "static"]
# The digest makes every address immutable without a build step (controlplane.web.static_version).
STATIC_URL = f"/static/{static_version(BASE_DIR / 'static')}/"
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "controlplane.web.finders.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
# plotly.js is served from the plotly wheel itself, so that both sides always have the same version.
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
WHITENOISE_USE_FINDERS = STATIC_ROOT is None
WHITENOISE_AUTOREFRESH = False
WHITENOISE_MAX_AGE = 0 if DEBUG else 31_536_000

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.accounts.authentication.BearerTokenAuthentication",
        "controlplane.accounts.authentication.BrowserSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.accounts.permissions.ScopePermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "controlplane.rest.autoschema.HearthSchema",
    "DEFAULT_PAGINATION_CLASS": "controlplane.rest.paging.Paging",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "EXCEPTION_HANDLER": "controlplane.rest.problems.exception_handler",
    "DATETIME_FORMAT": "%Y-%m-%dT%H:%M:%S.%fZ",
    "UNAUTHENTICATED_USER": None,
}
REST_KNOX = {
    "TOKEN_MODEL": "accounts.Token",
    "AUTH_HEADER_PREFIX": "Bearer",
    "TOKEN_PREFIX": "hearth_",
    "TOKEN_TTL": timedelta(days=30),
}
KNOX_TOKEN_MODEL = "accounts.Token"
SPECTACULAR_SETTINGS = {
    "TITLE": "Hearth",
    "DESCRIPTION": "Keeps model weights warm on the nodes that will serve them.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_PUBLIC": True,
    "GET_LIB_DOC_EXCLUDES": "caches.api.base.undocumented_bases",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "ArtifactKind": "caches.api.serializers.pins.KINDS",
        "Cached": "caches.api.serializers.launches.LABELS",
        "ClusterType": "controlplane.clusters.models.ClusterType",
        "DriftState": "caches.models.DriftState",
        "EndpointKind": "caches.api.serializers.endpoints.KINDS",
        "EventClass": "caches.api.serializers.launches.CLASSES",
        "EntryState": "caches.selectors.entries.SHOWN_STATES",
        "GateType": "caches.models.GateType",
        "LaunchClock": "caches.api.serializers.launches.CLOCKS",
        "LaunchMark": "caches.api.serializers.launches.MARKS",
        "LaunchObserver": "caches.api.serializers.launches.OBSERVERS",
        "LaunchPhase": "caches.api.serializers.launches.PHASES",
        "LaunchPhaseState": "caches.api.serializers.launches.PHASE_STATES",
        "LaunchState": "caches.api.serializers.launches.STATES",
        "NodeState": "caches.api.serializers.fleet.STATES",
        "OperationKind": "controlplane.operations.models.OperationKind",
        "OperationState": "controlplane.operations.models.OperationState",
        "PlacementType": "caches.api.serializers.pins.PLACEMENTS",
        "Role": "controlplane.accounts.models.Role",
        "RoutingStrategy": "routing.api.serializers.STRATEGIES",
        "RolloutState": "caches.api.serializers.endpoints.STATES",
        "Scope": "controlplane.accounts.models.Scope",
        "SourceType": "caches.api.serializers.catalogue.TYPES",
        "TargetState": "controlplane.operations.models.TargetState",
        "VersionState": "caches.models.VersionState",
        "WebhookEvent": "caches.services.webhooks.announcing.EVENTS",
    },
    "PREPROCESSING_HOOKS": ["controlplane.rest.schema.without_suffixes"],
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "controlplane.rest.schema.finish"],
}

CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SOFT_TIME_LIMIT = 45
CELERY_TASK_TIME_LIMIT = 60
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 300,
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_TASK_DEFAULT_QUEUE = "control"
DJANGO_STRUCTLOG_CELERY_ENABLED = True

# What a source may never be, whatever a connection says (caches.sources.allowed).
SOURCE_ROOTS = env.list("HEARTH_SOURCE_ROOTS", default=[str(STATE_DIR / "sources")])
SOURCE_PRIVATE_ADDRESSES = env.bool("HEARTH_SOURCE_PRIVATE_ADDRESSES", default=True)
SOURCE_RECHECK_SECONDS = env.int("HEARTH_SOURCE_RECHECK_SECONDS", default=3600)  # how often drift is looked for
DRY_RUN_SECONDS = env.float("HEARTH_DRY_RUN_SECONDS", default=4.0)  # how long an endpoint's dry run asks others
SECRETS_DIR = Path(env.str("HEARTH_SECRETS_DIR", default=str(STATE_DIR / "secrets")))
METRICS_TOKEN = env.str("HEARTH_METRICS_TOKEN", default="").strip()
# How long after a ready-label went a Kubernetes scheduler may still place a pod by it (decision 13's grace).
SCHEDULING_LAG_SECONDS = env.float("HEARTH_SCHEDULING_LAG_SECONDS", default=10.0)
AGENT_IMAGE = env.str("HEARTH_AGENT_IMAGE", default="")  # what Hearth runs on the nodes of Kubernetes clusters
# Whether the nodes' container runtimes keep their images on the disk of the cache path: then images count there too.
IMAGES_SHARE_DISK = env.bool("HEARTH_IMAGES_SHARE_DISK", default=False)
AGENT_API_SERVER = env.str("HEARTH_AGENT_API_SERVER", default="")  # as those nodes reach it; empty: as pods are told
AGENT_PULL_SECRETS = env.list("HEARTH_AGENT_PULL_SECRETS", default=[])  # names in hearth-nodes
ROUTER_CONFIG_FILE = env.str("HEARTH_ROUTER_CONFIG_FILE", default="")  # where routers on this machine look, too
ROUTER_PROCESSES = env.int("HEARTH_ROUTER_PROCESSES", default=0)  # 0: as many as were heard of lately
TRUSTED_PROXIES = env.int("HEARTH_TRUSTED_PROXIES", default=0)  # hops whose X-Forwarded-For is believed
WAIT_SLOTS = env.int("HEARTH_WAIT_SLOTS", default=8)  # half of the web workers' threads may hold ?wait=
HEARTBEAT_FILE = env.str("HEARTH_HEARTBEAT_FILE", default="")  # touched by beat and watcher at work
LOG_LEVEL = env.str("HEARTH_LOG_LEVEL", default="INFO")

from controlplane.logs import logging_config  # noqa: E402  # after env, which it must not import

LOGGING = logging_config(level=LOG_LEVEL, json=not DEBUG)
