"""What holds each rule between the keys of the documents, by number.

A name is a rule of `plan/rules`, with a case in `rule_cases`. `Said` is broken and just held.
"""

from rule_index import methods, run

INDEX = dict(sorted((run.INDEX | methods.INDEX).items()))
