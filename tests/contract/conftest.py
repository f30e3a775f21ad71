import pytest

# The suites live in the package, where pytest would leave their asserts without a word on what was compared.
pytest.register_assert_rewrite("dv_maintenance.testing")
