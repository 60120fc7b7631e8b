import pytest
import torch

# The tests run side by side, one process a core: threads of their own would only get in the way.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)
