"""Reads the TOML files of a network and of a plan, with errors that name line and value."""

import pathlib
import re


class TomlFile:
    """A TOML file whose values are checked.

    Args:
        path: String.
        argument: String. The name of the argument that holds the path, for errors.

    Raises:
        ValueError: If the file cannot be read or is not TOML.
    """

    def __init__(self, path, argument):
        self._argument, self._path = argument, path
        self._lines = read_text(path, argument).splitlines()
        try:
            self.table = _parser().loads("\n".join(self._lines))
        except ValueError as error:  # it names line and column
            raise ValueError(f"`{argument}`: {path} is not valid TOML: {error}") from None

    def error(self, key, problem, table=None):
        """Returns a `ValueError` about the value of a key.

        Args:
            key: String.
            problem: String. What is wrong, without a dot.
            table: Dict. The table of the key: one of `tables`, or by default `table`.
        """
        value = (self.table if table is None else table).get(key)
        line = self._line_of(key, *self._place_of(table))
        return ValueError(
            f"`{self._argument} {self._path}, line {line}`: {problem}. Received: {key} = {value!r}"
        )

    def _place_of(self, table):
        """Returns the name of a table's array, and its position there; `None` for other tables."""
        for name, value in self.table.items():
            for index, each in enumerate(value if isinstance(value, list) else ()):
                if each is table:
                    return name, index
        return None, None

    def _line_of(self, key, table, index):
        """Returns the number of a key's line; of its table's if the key is not on its own line."""
        inside, count, place = table is None, -1, 1
        for number, line in enumerate(self._lines, 1):
            header = re.match(r"\s*\[\[?\s*([\w.-]+)\s*\]", line)
            if header:
                count += header[1] == table
                inside = table is not None and header[1] == table and count == index
                place = number if inside else place
            elif inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
            elif table is not None and re.match(rf"\s*{re.escape(table)}\s*=", line):
                place = number
        return place

    def tables(self, name, required, optional=()):
        """Returns an array of tables after a check of their keys.

        Args:
            name: String.
            required: List of strings. The keys that each table needs.
            optional: List of strings. Further keys that it may have.
        """
        tables = self.table.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            raise self.error(name, f"{name} must be tables that begin with [[{name}]]")
        for each in tables:
            self.check_keys(each, required, optional, f" of each [[{name}]]")
        return tables

    def check_keys(self, table, required, optional, where=""):
        """Checks the keys of a table. `where` is a part of the error of a missing key."""
        known = (*required, *optional)
        for key in table:
            if key not in known:
                problem = f"{key!r} is not one of the keys {', '.join(known)}"
                raise self.error(key, problem, table)
        for key in required:
            if key not in table:
                raise self.error(key, f"the key {key!r}{where} is missing", table)


def read_text(path, argument):
    """Returns the text of a file.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        return pathlib.Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        reason = "it is not text in UTF-8"
    raise ValueError(f"`{argument}`: {path} cannot be read: {reason}") from None


def _parser():
    try:
        import tomllib  # of Python 3.11
    except ImportError:
        try:
            import tomli as tomllib
        except ImportError:
            raise ValueError(
                "Python 3.10 cannot read TOML by itself. Install tomli: `pip install tomli`, or "
                "the extra `easyddl[plan]`."
            ) from None
    return tomllib
