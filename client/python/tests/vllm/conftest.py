# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import banyan

sys.path.insert(0, str(Path(__file__).parent))  # for the processes that engines run in, too


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--record", action="store_true", help="write recorded.json from the installed vLLM")


def pytest_configure(config: Any) -> None:
    import os

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="session")
def cluster() -> Iterator[banyan.LocalCluster]:
    """Four workers, where most tests put their sessions."""
    with banyan.local_cluster(workers=4, memory="512M", threads=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this run are made."""
    return tmp_path_factory.mktemp("models")
