"""Keys of YAML files: read, and changed without spelling anything else of the file anew.

YAML 1.1 and 1.2 read `on`, `010` and `12:30` as different values, and a tag may mean something to its program only. So
a file is never turned into values and back: its nodes are kept as they are written, and one is replaced. Comments go.
"""

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode
from yaml.representer import SafeRepresenter

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"


def read_nodes(text: str) -> Node | None:
    """Return the nodes of a file with one document, None for an empty one; raises ValueError where it is no YAML."""
    try:
        found: Node | None = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML ({error})") from error
    return found


def list_children(node: MappingNode) -> dict[str, Node]:
    """Return what a mapping holds by name, with what it merges in (`<<: *base`)."""
    found: dict[str, Node] = {}
    waiting, seen = [node], set()
    while waiting:
        at = waiting.pop(0)
        if id(at) in seen:
            continue
        seen.add(id(at))
        own = {
            key.value: value for key, value in at.value if isinstance(key, ScalarNode) and key.tag != _MERGE
        }
        found = {**own, **found}
        merged = [value for key, value in at.value if key.tag == _MERGE]
        waiting = [*(each for value in merged for each in _list_mappings(value)), *waiting]
    return found


def _list_mappings(node: Node) -> list[MappingNode]:
    nodes = node.value if isinstance(node, SequenceNode) else [node]
    return [each for each in nodes if isinstance(each, MappingNode)]


def read_scalar(node: Node) -> object:
    """Return the value of a scalar, None for any other node; raises ValueError for a tag that has no meaning here."""
    if not isinstance(node, ScalarNode):
        return None
    try:
        return yaml.SafeLoader("").construct_object(node)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML ({error})") from error


def replace_child(node: MappingNode, name: str, child: Node) -> MappingNode:
    """Return a copy of a mapping with another node under a name; whatever else shares the old one keeps it."""
    kept = [(key, value) for key, value in node.value if key.tag == _MERGE or key.value != name]
    place = next(
        (at for at, (key, _) in enumerate(node.value) if key.tag != _MERGE and key.value == name), len(kept)
    )
    pairs = [*kept[:place], (_spell_key(node, name), child), *kept[place:]]
    return MappingNode(node.tag, pairs, flow_style=node.flow_style)


def _spell_key(node: MappingNode, name: str) -> Node:
    return next(
        (key for key, _ in node.value if key.tag != _MERGE and key.value == name), ScalarNode(_TEXT, name)
    )


def spell_scalar(value: bool | int | float | str) -> Node:
    """Return a number, switch or word as a node that every reader of YAML takes for the same."""
    if isinstance(value, str):
        return ScalarNode(_TEXT, value, style='"')
    return SafeRepresenter().represent_data(value)


def spell_tree(node: object) -> str:
    """Return the text of a document."""
    assert isinstance(node, Node)
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, allow_unicode=True, width=2**31))
