#!/usr/bin/env python
"""Hearth's commands; `manage.py help` lists them."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Hand over to Django, or say in a sentence that the environment is missing."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    try:
        from django.core.management import execute_from_command_line

        from controlplane.embedded.beside import environment_beside
        from controlplane.embedded.direct import directly
        from controlplane.embedded.problems import EmbeddedError
    except ImportError:
        sys.exit("Hearth is not installed in this Python. Use 'make run', or .venv/bin/python manage.py.")
    os.environ.update(directly(os.environ))
    try:
        os.environ.update(environment_beside(sys.argv[1:]))
    except EmbeddedError as problem:
        sys.exit(str(problem))
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
