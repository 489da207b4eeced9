"""What other plugins may use: text files as documents, for backends that read text."""

from neox_data.corpus import Document, Tally, fingerprint, read_documents, text_files
from neox_data.texts import kind_of

__all__ = ["Document", "Tally", "fingerprint", "kind_of", "read_documents", "text_files"]
