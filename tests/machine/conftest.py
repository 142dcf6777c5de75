"""Files that stand for the kernel's."""

import pytest


@pytest.fixture
def tree(tmp_path):
    """Returns a function that writes files below a made-up root, and returns that root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write
