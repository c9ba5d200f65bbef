"""The template process of the everyday scripts: it imports torch once."""

from __future__ import annotations

import pytest

from tests.campaign.forks import Template


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """The process from which programs are forked."""
    with Template(tmp_path_factory.mktemp("template")) as started:
        yield started
