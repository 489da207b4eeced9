"""Config files to a `Config`, and what is known of every key.

Module by module, in the order that a config takes:

* setting, checks, moments: how a key is declared; sections: the core's keys; watch: notes which of them are read
* formats, yaml: a text to nodes with their places; load: files and `--set` to one mapping
* legacy: the table of older spellings; modernise: to today's; layers, infer: keys that say something in short
* owners: whose a key is; convert: one value to its type; structure: all of them to the `Config`
* problem, report: what is wrong, and its text; known, unknown: what is said of a key that nobody here has

Of keys, whatever a config says: keys (all of them), words, document, explain, schema, coverage, packages (the last
writes packages.toml), declared (mistakes of an author). Of files, to be rewritten: source, migrate.
"""
