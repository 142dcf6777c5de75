"""Shows public functions and classes by the names that scripts use, such as `ddl.split_data`."""

from sphinx import addnodes

PREFIXES = {"easyddl": "ddl.", "easyddl.profiling": "profiling."}


def add_prefix(app, domain, kind, content):
    """Writes `ddl.` before the name of a function or a class of easyddl."""
    if domain != "py" or kind not in ("function", "class"):
        return
    for signature in content.parent.findall(addnodes.desc_signature):
        prefix = PREFIXES.get(signature.get("module"))
        if prefix is None or "." in signature.get("fullname", ""):
            continue
        name = next(iter(signature.findall(addnodes.desc_name)))
        name.parent.insert(name.parent.index(name), addnodes.desc_addname(prefix, prefix))
