"""Config files to a `Config`, and what is known of every key.

* read: a text to nodes with their places; files and `--set` to one mapping
* schema: how a key is declared, the core's sections, whose a key is, and all values to the `Config`
* dialects: keys of other programs, by the plugins that know them
* problem, report: what is wrong, and its text
"""
