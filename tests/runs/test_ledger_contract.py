"""The contract on the model itself, which stores are compared with."""

import pytest
from ledger_contract import Connect, LedgerContract
from ledger_model import ModelLedger, ModelStore

from retake.clock import FakeClock


class TestModel(LedgerContract):
    @pytest.fixture
    def connect(self, clock: FakeClock) -> Connect:
        store = ModelStore()
        return lambda: ModelLedger(store, clock)
