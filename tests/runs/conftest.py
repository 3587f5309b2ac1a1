import pytest

pytest.register_assert_rewrite("ledger_contract")
