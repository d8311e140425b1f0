"""Options that several verbs share, alone or in groups."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

from typer import Argument, Option

from suffuse.core.params import Params

IndexArgument = Annotated[Path, Argument(metavar="INDEX", help="The index directory.")]
IndexOption = Annotated[Path, Option("-o", "--output", metavar="INDEX", help="The index directory to make.")]
# The parameters of an index that are options; their types, defaults and order are those of `Params`.
PARAMS_HELP = {
    "k": "Length of the neighbour lists.",
    "graph": "How edges and seeds are weighed: by what is near them (local), or as in the paper.",
    "alpha": "How far the walk goes: above 0, below 1.",
    "gamma": "Exponent of the similarities of --graph paper.",
    "support": "Where columns are solved: what the walk reaches (graph), or the paper's L-NN (features).",
    "truncation": "L, elements in the support of a column.",
    "keep": "Entries of each column that are stored.",
    "whiten": "PCA-whiten to this many dimensions, learned on these features.",
    "whiten_power": "Whitening power: 0 only rotates and cuts, 1 whitens fully.",
    "values": "How columns are stored: in a compact code (uint8), or plain.",
    "iterations": "Most steps of conjugate gradient.",
    "tolerance": "Residual at which a column is solved.",
    "graph_search": "How the neighbours in the graph are found; all but exact miss some.",
    "support_search": "How the L nearest of --support features are found.",
    "seed_search": "How a search finds its seeds: exactly, or fast by hnsw.",
    "probes": "Cells that ivfadc visits. Higher: better recall, slower.",
    "ef": "Candidates that hnsw keeps. Higher: better recall, slower.",
    "with_graph": "Store the graph, to show chains through it.",
}
ThreadsOption = Annotated[int | None, Option(metavar="N", help="Threads of the network.", show_default="all cores")]
ForceOption = Annotated[bool, Option("--force", help="Replace an index that is already there.")]


def expand_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Let a verb take groups of options: each field of a named tuple or of `Params` becomes an option of its own.

    Of `Annotated[Params, names]` only the fields of these names.
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        fields = _list_fields(parameter.annotation)
        if fields is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            group = getattr(parameter.annotation, "__origin__", parameter.annotation)
            groups[parameter.name] = group, [field.name for field in fields]
            parameters += fields

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        for name, (group, fields) in groups.items():
            given[name] = group(**{field: given.pop(field) for field in fields})
        verb(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _list_fields(group: Any) -> list[inspect.Parameter] | None:
    """The options of a group; None for what is no group."""
    if group is Params or getattr(group, "__origin__", None) is Params:
        names = PARAMS_HELP if group is Params else group.__metadata__[0]
        flags = {"k": ("--k", "-k"), "with_graph": ("--with-graph",)}  # one letter, and no opposite
        types = {
            name: Annotated[kind, Option(*flags.get(name, ()), help=PARAMS_HELP[name])]
            for name, kind in get_type_hints(Params).items()
            if name in names
        }
        defaults = Params().to_dict()
    elif hasattr(group, "_field_defaults"):
        types, defaults = get_type_hints(group, include_extras=True), group._field_defaults
    else:
        return None
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=defaults[name], annotation=types[name]) for name in types]


class Inputs(NamedTuple):
    """What a file of features holds, with what the options add to it."""

    features: Any  # (n, d)
    owners: Any  # (n,), the image of each row; None if each row is an image
    items: list[Any] | None  # name and metadata of each image


class FeatureOptions(NamedTuple):
    """What a file of features does not say itself."""

    names: Annotated[
        Path | None,
        Option(metavar="FILE", help="Name of each image: .txt (one per line), .csv, .json or .jsonl (metadata)."),
    ] = None
    owners: Annotated[
        Path | None,
        Option(metavar="FILE", help="Rows are regions: a .npy file with the image of each, counted from 0."),
    ] = None
    transpose: Annotated[bool, Option("--transpose", help="FEATURES has one column per image.")] = False

    def read(self, features: str, least_rows: int = 1) -> Inputs:
        """Read the features and the files that belong to them; labels in an .npz file become metadata."""
        from suffuse.store.feature_files import load, load_owners
        from suffuse.store.items import add_labels, load_items

        loaded = load(features, transpose=self.transpose, least_rows=least_rows)
        items = None if self.names is None else load_items(self.names)
        if loaded.labels is not None and self.owners is None:
            items = add_labels(items, loaded.labels)
        return Inputs(loaded.features, None if self.owners is None else load_owners(self.owners), items)
