"""What authors of corpora test with: the check of the kind."""

from neox_data.testing.corpora import check_corpus

__all__ = ["check_corpus"]
