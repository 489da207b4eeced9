"""A case for each rule between keys, by subject."""

from rule_cases import engine, model, optimizer, ranks, recomputation, run, zero

SUBJECTS = (engine, model, optimizer, ranks, recomputation, run, zero)
CASES = {rule: case for subject in SUBJECTS for rule, case in subject.CASES.items()}
