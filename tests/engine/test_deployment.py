"""A real federation on this machine: SuperLink and three SuperNodes with TLS and keys, any of which is killed."""

from __future__ import annotations

import pytest

from tests import kills

pytestmark = pytest.mark.slow


def test_a_federation_survives_restarts_of_server_and_nodes(tmp_path):
    assert kills.federation(tmp_path, superlinks=1, nodes=1) <= 1e-10
