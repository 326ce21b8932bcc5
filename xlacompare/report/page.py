"""A page of text: headings, wrapped lines, tables; at most so many columns, coloured only on a terminal."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence

import rich.console
import rich.padding
import rich.table
import rich.text

WIDTH = 100
INDENT = 2


class Page:
    """Collects the text of a report.

    Only ASCII of our own is written: a pipe may have any encoding. Texts of others (reasons, names) pass as they are.
    """

    def __init__(self, width: int | None = None) -> None:
        """Makes an empty page.

        Args:
          width: Columns; by default 100, or the terminal's where standard output is a narrower one.
        """
        outer = rich.console.Console()
        self.width = width or (min(WIDTH, outer.width) if outer.is_terminal else WIDTH)
        self._plain = not outer.is_terminal or outer.no_color
        self._file = io.StringIO()
        self._console = rich.console.Console(
            file=self._file,
            width=self.width,
            force_terminal=outer.is_terminal,
            no_color=outer.no_color,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def text(self) -> str:
        """All of it, ending with a line end."""
        written = self._file.getvalue()
        if self._plain:
            written = "\n".join(line.rstrip() for line in written.split("\n"))
        return written.rstrip("\n") + "\n"

    def blank(self) -> None:
        """An empty line."""
        self._console.print()

    def heading(self, text: str) -> None:
        """A heading, after an empty line."""
        self.blank()
        self.line(text, "bold", indent=0)

    def line(self, text: str, style: str = "", indent: int = INDENT, hang: int = 2) -> None:
        """A line, wrapped where it must be; what goes on to the next line is indented `hang` columns more."""
        first, further = " " * indent, " " * (indent + hang)
        wrapped = textwrap.wrap(
            text, self.width, initial_indent=first, subsequent_indent=further, break_on_hyphens=False
        )
        for part in wrapped or [""]:
            self._console.print(rich.text.Text(part, style=style), soft_wrap=True)

    def verbatim(self, text: str, style: str = "") -> None:
        """A line whose columns are laid out already; what does not fit is wrapped."""
        if len(text) <= self.width:
            self._console.print(rich.text.Text(text, style=style), soft_wrap=True)
        else:
            self.line(text.strip(), style, indent=len(text) - len(text.lstrip()))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
        """A table without rules; the first `left` columns are texts, the others are aligned to the right."""
        cells = [list(columns), *map(list, rows)]
        natural = INDENT + sum(max(len(row[i]) for row in cells) + 2 for i in range(len(columns))) - 2
        padding = 1 if natural > self.width else 2
        table = rich.table.Table(box=None, pad_edge=False, padding=(0, padding, 0, 0), header_style="dim")
        for i, name in enumerate(columns):
            table.add_column(name, justify="left" if i < left else "right", overflow="fold", vertical="bottom")
        for row in cells[1:]:
            table.add_row(*(rich.text.Text(value) for value in row))
        self._console.print(rich.padding.Padding(table, (0, 0, 0, INDENT)))
