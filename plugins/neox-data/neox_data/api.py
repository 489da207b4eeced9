"""What other plugins may use: contracts of what makes datasets, and text files as documents."""

from neox_data.contracts import Corpus, NamedCorpus, ResumableBackend, ResumableWriter, TrainableTokenizer
from neox_data.corpus import Document, Tally, fingerprint, read_documents, text_files
from neox_data.texts import kind_of

__all__ = [
    "Corpus",
    "Document",
    "NamedCorpus",
    "ResumableBackend",
    "ResumableWriter",
    "Tally",
    "TrainableTokenizer",
    "fingerprint",
    "kind_of",
    "read_documents",
    "text_files",
]
