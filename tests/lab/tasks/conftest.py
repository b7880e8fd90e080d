import os

import pytest


@pytest.fixture
def real_data():
    if not os.environ.get("CRITGRAD_DATA"):
        pytest.skip("CRITGRAD_DATA is not set: no folder with the real data sets")
