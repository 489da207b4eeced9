"""What authors of model families test with: the check of the kind."""

from neox_hf.testing.families import check_model_family

__all__ = ["check_model_family"]
