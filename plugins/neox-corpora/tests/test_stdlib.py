import sysconfig
from pathlib import Path

from neox_corpora.stdlib import StandardLibrary


def test_the_standard_library_is_all_of_its_source_and_nothing_else():
    root = Path(sysconfig.get_path("stdlib"))
    corpus = StandardLibrary(None).open(Path())
    assert root / "os.py" in corpus.files
    assert root / "email" / "message.py" in corpus.files
    assert not [path for path in corpus.files if "site-packages" in path.parts or path.suffix != ".py"]
    assert not [path for path in corpus.files if {"test", "tests"} & set(path.relative_to(root).parts)]
    assert sum(path.stat().st_size for path in corpus.files) > 9e6
    assert corpus.files == StandardLibrary(None).open(Path()).files


def test_the_standard_library_is_mixed():
    """The last documents, which are for validation, are of many packages."""
    corpus = StandardLibrary(None).open(Path())
    last = {path.relative_to(corpus.root).parts[0] for path in corpus.files[-50:]}
    assert len(last) >= 5
