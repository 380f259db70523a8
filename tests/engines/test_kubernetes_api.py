"""One contract for the real Kubernetes API and for the fake one that stands for it in other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coadapt.executors.engines._base import EngineSilentError
from tests.engines.kubernetes_api_contract import PODS, KubernetesApiContract, a_pod
from tests.engines.kubernetes_cluster import KubernetesCluster
from tests.engines.kubernetes_fake import FakeCluster


@pytest.mark.xdist_group("fake_kubernetes")
class TestFakeApi(KubernetesApiContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, running_fake: FakeCluster) -> Iterator[None]:
        self.cluster = running_fake
        yield
        running_fake.clear()

    def test_list_whose_parts_have_expired_begins_again(self, running_fake: FakeCluster) -> None:
        for number in range(3):
            assert self.create(a_pod(f"p{number}", gpus=64)).ok
        api = running_fake.api
        running_fake.fake.expired = True
        try:
            # in one part it needs no second one
            assert len(api.listing(PODS, {}, "pods")) == 3
            with pytest.raises(EngineSilentError, match="does not finish the list of pods"):
                api.listing(PODS, {}, "pods", part=2)
        finally:
            running_fake.fake.expired = False
        assert len(api.listing(PODS, {}, "pods", part=2)) == 3


@pytest.mark.long
@pytest.mark.xdist_group("kubernetes")
class TestRealApi(KubernetesApiContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, running_kubernetes: KubernetesCluster) -> Iterator[None]:
        self.cluster = running_kubernetes
        yield
        running_kubernetes.clear()
