from keep_failures import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]
