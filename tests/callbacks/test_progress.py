import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("watched", [True, False])
def test_a_bar_at_a_terminal_and_lines_elsewhere(watched):
    """Under MPICH the ranks get pipes, which lead to the launcher's terminal, or elsewhere."""
    seen = mpi.shown(2, HERE / "progress_job.py", watched=watched)
    epochs = [seen.count(f"epoch {epoch}/2:") for epoch in (1, 2)]
    assert ("10/10 [" in seen) is watched, seen
    assert seen.count("easyddl: epoch") == (0 if watched else 2), seen
    assert min(epochs) >= (4 if watched else 1), seen
    assert "samples/s" in seen and "loss=" in seen and "slowest rank" in seen, seen
    assert "━" not in seen and "ms/step" not in seen, seen  # Keras's own
