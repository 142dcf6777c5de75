"""Puts easyddl's four lines into a plain Keras script.

    python four_lines.py plain.py > parallel.py

The script is a module without a main function, which trains by `fit` at its top level, or in a loop
that calls `train_on_batch`:

- its batch size is a constant, `BATCH`, of which each rank takes its share;
- what it passes to these are names that it has assigned at its top level, slices of them, or dicts,
  lists and tuples of them. They are split before the first statement that has such a call.

The learning rate stays: the ranks are compared with one process that takes all of their batches.

Comments in the first lines, `# key: value`, tell what is particular about a script:

- `backend`: the backends that it is for, if not for all;
- `compare`: `replicas` where ranks differ from one process by design;
- `ddl_callback`: the arguments of `DDLCallback`;
- `before_fit`: a statement that a user of easyddl would add before `fit`, or before the loop;
- `optimizer`: `distributed` has `ddl.DistributedOptimizer` around each optimizer of a loop.
"""

import ast
import pathlib
import re
import sys


def headers(source):
    """What the comments at the top of a script tell, by key."""
    found = {}
    for line in source.splitlines():
        if not line.startswith("#"):
            break
        match = re.fullmatch(r"# ([a-z_]+): (.+)", line)
        if match:
            found[match[1]] = match[2]
    return found


def with_four_lines(source):
    """The source of a script that trains on many ranks, of that of one which does on one."""
    told = headers(source)
    tree = ast.parse(source)
    names = _assigned(tree)
    tree = _Rewriter(told).visit(tree)
    lines, split = [], set()
    before_fit = ast.parse(told.get("before_fit", "")).body
    for statement in tree.body:
        calls = [node for node in ast.walk(statement) if _trains(node)]
        data = [name for call in calls for name in _data_of(call) if name in names - split]
        data = list(dict.fromkeys(data))
        if calls:
            lines += before_fit
            before_fit = []
        if data:
            listed = ", ".join(data)
            lines += ast.parse(f"{listed} = ddl.split_data({listed})").body
            split.update(data)
        lines.append(statement)
    last = max(i for i, each in enumerate(lines) if isinstance(each, ast.Import | ast.ImportFrom))
    lines[last + 1 : last + 1] = ast.parse("import easyddl as ddl").body
    return ast.unparse(ast.fix_missing_locations(ast.Module(lines, [])))


def _is_fit(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "fit"
    )


def _trains(node):
    """Whether a node is a call that trains on what it is passed."""
    if not isinstance(node, ast.Call):
        return False
    return _is_fit(node) or ast.unparse(node.func).endswith(".train_on_batch")


def _assigned(tree):
    """The variables of a script's top level; constants are in capitals."""
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return {name for name in names if not name.isupper()}


def _data_of(call):
    """The names in the arguments of a call that hold what is trained on."""
    arguments = call.args[:3]
    arguments += [k.value for k in call.keywords if k.arg in ("x", "y", "sample_weight")]
    return [n.id for a in arguments for n in ast.walk(a) if isinstance(n, ast.Name)]


class _Rewriter(ast.NodeTransformer):
    def __init__(self, told):
        self.arguments = told.get("ddl_callback", "")
        self.distributed = told.get("optimizer") == "distributed"

    def visit_Assign(self, node):
        self.generic_visit(node)
        if [target.id for target in node.targets if isinstance(target, ast.Name)] == ["BATCH"]:
            node.value = ast.BinOp(node.value, ast.FloorDiv(), _expression("ddl.size()"))
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        if _is_fit(node):
            self._add_callbacks(node)
        if self.distributed and re.fullmatch(r"keras\.optimizers\.\w+", ast.unparse(node.func)):
            return ast.Call(_expression("ddl.DistributedOptimizer"), [node], [])
        return node

    def _add_callbacks(self, call):
        given = [keyword for keyword in call.keywords if keyword.arg == "callbacks"]
        mine = given[0].value.elts if given else []
        first = _expression(f"ddl.DDLCallback({self.arguments})")
        last = _expression("ddl.DDLGlobalVariablesCallback()")
        callbacks = ast.keyword("callbacks", ast.List([first, *mine, last], ast.Load()))
        call.keywords = [keyword for keyword in call.keywords if keyword not in given]
        call.keywords.append(callbacks)


def _expression(source):
    return ast.parse(source, mode="eval").body


if __name__ == "__main__":
    print(with_four_lines(pathlib.Path(sys.argv[1]).read_text()))
