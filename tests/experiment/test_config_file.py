"""A settings file that cannot be read: one line with the file and the cure."""

import pytest

from rope_jax.experiment.config import load_config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xef\xbb\xbfname = 'a'", r"without a byte order mark; got one in .*experiment.toml\. Save"),
        (b"name = '\xff'", r"UTF-8 text; got invalid start byte at byte 8 of .*experiment.toml\. Save"),
        (b"name = ", r"must be TOML; got .*experiment.toml: Invalid value .*\. Mend"),
    ],
)
def test_a_file_that_is_no_toml_is_named_with_its_cure(tmp_path, content, message):
    path = tmp_path / "experiment.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_config(path)


def test_an_absent_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must be a file; got '.*absent.toml', which is absent\. See"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(IsADirectoryError, match=rf"must be a file; got the folder '{tmp_path}'\. Name"):
        load_config(tmp_path)
