"""A config file as its author sees it: keys in their order, with the comments around them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field

from neox_core.config.read.formats import flow, plain


@define
class Entry:
    """A key of a file. A block has `items`; anything else has the `text` of its value, fit for one line.

    where: "file:line:column" of the key, as in `Loaded.places`.
    above: whole lines of comments before it, and "" for an empty one; beside: the comment at the end of its line.
    flow: the text of a block that the file has on one line.
    """

    key: str
    where: str
    above: list[str] = field(factory=list)
    beside: str = ""
    text: str = ""
    items: "list[Entry] | None" = None
    flow: str = ""


@define
class Source:
    """The entries of a file, and the comments after the last one."""

    entries: list[Entry]
    below: list[str]


def read_source(file: Path) -> Source:
    """A YAML file that `load` reads without errors."""
    from ruamel.yaml import YAML

    text = file.read_text(encoding="utf-8-sig")
    root = YAML(typ="safe", pure=True).compose(text)
    return _Reader(text, str(file)).source(root)


def write(source: Source) -> str:
    """The file, in block style."""
    lines = [*_lines(source.entries, ""), *source.below]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    return "\n".join(lines) + "\n"


def _lines(entries: list[Entry], indent: str) -> Iterator[str]:
    for entry in entries:
        yield from (indent + line if line else "" for line in entry.above)
        value = entry.text if entry.items is None else entry.flow
        beside = f"  {entry.beside}" if entry.beside else ""
        yield f"{indent}{entry.key}:{' ' if value else ''}{value}{beside}"
        if entry.items is not None and not entry.flow:
            yield from _lines(entry.items, indent + "  ")


class _Reader:
    """Walks the keys and values of a file in the order of its text; what lies between two of them is comments."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.at = 0
        self.last: Entry | None = None

    def source(self, root: Any) -> Source:
        entries = self.block(root)
        below = self._between(len(self.text))
        while below and not below[-1]:
            del below[-1]
        return Source(entries, below)

    def block(self, node: Any) -> list[Entry]:
        entries = []
        for key, value in node.value:
            above = self._between(key.start_mark.index)
            self.at = key.end_mark.index
            mark = key.start_mark
            entry = Entry(str(key.value), f"{self.name}:{mark.line + 1}:{mark.column + 1}", above)
            self.last = entry
            self._value(entry, value)
            entries.append(entry)
        return entries

    def _value(self, entry: Entry, node: Any) -> None:
        start = node.start_mark.index
        if start < self.at:  # an alias: what it stands for was written before
            entry.text = flow(_plain(node))
            self.at = self.text.index("*", self.at) + 1
            return
        if isinstance(node.value, list) and node.tag.endswith(":map") and node.value:
            one_line = self._slice(start, node.end_mark.index) if node.flow_style else "\n"
            entry.items = self.block(node)
            if "\n" not in one_line:
                entry.flow, self.last = one_line, entry
            return
        entry.above += _comments(self.text[self.at : start])
        end = _end(node)
        slice_ = self._slice(start, end)
        if "\n" in slice_ or slice_[:1] in ("&", "!", "*", "|", ">"):
            entry.above += self._inside(node)
            slice_ = flow(_plain(node))
        entry.text = slice_
        self.at = end

    def _slice(self, start: int, end: int) -> str:
        return self.text[start:end].strip()

    def _between(self, index: int) -> list[str]:
        """Comment lines up to `index`; what stands on the line of the entry before goes beside that."""
        first, *lines = self.text[self.at : index].split("\n")
        _, mark, comment = first.partition("#")
        above: list[str] = []
        if mark and self.last is not None and not self.last.beside:
            self.last.beside = f"#{comment.rstrip()}"
        elif mark:
            above.append(f"#{comment.rstrip()}")
        for line in lines[:-1] if index < len(self.text) else lines:
            _, mark, comment = line.partition("#")
            if mark:
                above.append(f"#{comment.rstrip()}")
            elif not line.strip() and above[-1:] != [""]:
                above.append("")
        return above

    def _inside(self, node: Any) -> list[str]:
        """The comments within a list that is written over several lines."""
        found, at = [], node.start_mark.index
        for leaf in _leaves(node) if isinstance(node.value, list) else ():
            found += _comments(self.text[at : leaf.start_mark.index])
            at = max(at, leaf.end_mark.index)
        return found


def _comments(gap: str) -> list[str]:
    return ["#" + line.partition("#")[2].rstrip() for line in gap.split("\n") if "#" in line]


def _leaves(node: Any) -> Iterator[Any]:
    if isinstance(node.value, list):
        for inner in node.value:
            for each in inner if isinstance(inner, tuple) else (inner,):
                yield from _leaves(each)
    else:
        yield node


def _end(node: Any) -> int:
    """Where a value ends; the mark of a list in block style is that of what follows it."""
    if isinstance(node.value, list) and not node.flow_style and node.value:
        return max(int(leaf.end_mark.index) for leaf in _leaves(node))
    return int(node.end_mark.index)


def _plain(node: Any) -> Any:
    from neox_core.config.read.yaml import YamlReader

    return plain(YamlReader("").read(node, ()))
