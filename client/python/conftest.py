# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import banyan

try:
    import torch

    torch.set_num_threads(1)  # the models of the tests are small, and the workers want the cores
except ImportError:
    pass


@pytest.fixture(scope="session")
def cluster() -> Iterator[banyan.LocalCluster]:
    with banyan.local_cluster(workers=3, memory="256M", threads=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _for_doctests(doctest_namespace: dict[str, Any], cluster: banyan.LocalCluster) -> None:
    doctest_namespace["cluster"] = cluster


@pytest.fixture
def client(cluster: banyan.LocalCluster) -> Iterator[banyan.Client]:
    with cluster.connect() as client:
        yield client
        for info in client.sessions():
            with contextlib.suppress(banyan.NotFound):  # states go with the session that they are of
                client.open(info.id).delete()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
