"""The demo's sign-in: the file with its password is there exactly when the password works."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from django.conf import LazySettings

from caches.services.demo import setting_up as demo
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent

pytestmark = pytest.mark.django_db


@pytest.fixture
def password(tmp_path: Path, settings: LazySettings) -> Path:
    settings.STATE_DIR = tmp_path / "state"
    return tmp_path / "state" / "admin-password"


def _works(file: Path) -> bool:
    return User.objects.get(username="admin").check_password(file.read_text().strip())


def test_it_names_the_file_only_once_the_account_exists(password: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(**_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(demo, "audit_write", killed)
        with pytest.raises(KeyboardInterrupt):
            demo.admin_create(lambda _: None)
    assert not password.exists()
    assert not User.objects.exists()

    demo.admin_create(lambda _: None)
    assert _works(password)
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert [path.name for path in password.parent.iterdir()] == ["admin-password"]


def test_it_gives_the_file_its_name_after_a_kill_behind_the_account(password: Path) -> None:
    demo.admin_create(lambda _: None)
    password.rename(password.with_name("admin-password.new"))
    demo.admin_create(lambda _: None)
    assert _works(password)
    assert AuditEvent.objects.filter(action="user.create").count() == 1


def test_it_keeps_the_password_for_a_database_made_anew(password: Path) -> None:
    demo.admin_create(lambda _: None)
    before = password.read_text()
    User.objects.all().delete()
    demo.admin_create(lambda _: None)
    assert password.read_text() == before and _works(password)


def test_it_never_takes_an_unwritten_file_for_a_password(password: Path) -> None:
    password.parent.mkdir()
    password.with_name("admin-password.4711").touch()
    demo.admin_create(lambda _: None)
    assert len(password.read_text().strip()) >= 20 and _works(password)


def test_it_touches_nothing_where_somebody_signs_in_already(password: Path) -> None:
    User.objects.create_superuser(username="grace", password="her own")
    said: list[str] = []
    demo.admin_create(said.append)
    assert said == [] and not password.exists()
    assert User.objects.get().username == "grace"
