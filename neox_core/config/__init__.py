"""Config files to a `Config`, and what is known of every key.

* read: a text to nodes with their places; files and `--set` to one mapping
* schema: how a key is declared, the core's sections, whose a key is, and all values to the `Config`
* compat: older spellings, the keys that no installed plugin has, and what is said of them
* reference: what is said of keys whatever a config says: `explain`, the JSON schema, docs/configuration.md
* problem, report: what is wrong, and its text
"""
