"""Arguments of multi-process runs."""

import pytest

from lopt.errors import UserError
from meta_train.devices.launch import Launch

IMPOSSIBLE = ["x", ":1", "host:0", "host:99999", "host:-1"]


@pytest.mark.parametrize("address", IMPOSSIBLE)
def test_an_impossible_address_is_refused(address, monkeypatch):
    with pytest.raises(UserError, match="HOST:PORT"):
        Launch(coordinator_address=address)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    with pytest.raises(UserError, match="HOST:PORT"):
        Launch()
    assert not Launch(distributed="off").is_distributed


@pytest.mark.parametrize(("num", "process_id"), [(2, 2), (2, -1), (None, 0)])
def test_an_impossible_process_id_is_refused(num, process_id):
    with pytest.raises(UserError, match="--process-id must lie below"):
        Launch(num_processes=num, process_id=process_id)
