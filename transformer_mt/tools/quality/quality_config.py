"""The list `data.filters`: names of the filters, and their form in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union, cast

from pydantic import BeforeValidator, Discriminator, Tag

from transformer_mt.tools.quality import corpus_filters, pair_filters
from transformer_mt.tools.quality.filter_base import Filter

FILTERS: dict[str, type[Filter]] = {
    filter_.kind: filter_
    for filter_ in (
        pair_filters.NormalizeFilter,
        pair_filters.LengthFilter,
        pair_filters.RatioFilter,
        pair_filters.LanguageFilter,
        pair_filters.ScriptFilter,
        pair_filters.CopyFilter,
        corpus_filters.DuplicateFilter,
        corpus_filters.NearDuplicateFilter,
        corpus_filters.OverlapFilter,
        corpus_filters.NearOverlapFilter,
        corpus_filters.UnrelatedFilter,
        pair_filters.NumbersFilter,
        pair_filters.UrlsFilter,
        pair_filters.RepetitionFilter,
        pair_filters.RegexFilter,
        pair_filters.ColumnFilter,
    )
}
"""The filters by name."""


def make_filter(name: str, **options: Any) -> Filter:
    """Return a filter with some options, and defaults for the others."""
    return FILTERS[name].model_validate(options)


def _filter_name(value: Any) -> str | None:
    """Return the name of a filter in any of its forms, or None if it has no form of a filter."""
    if isinstance(value, Filter):
        return value.kind
    if isinstance(value, dict) and len(cast(dict[Any, Any], value)) == 1:
        return str(next(iter(cast(dict[Any, Any], value))))
    return value if isinstance(value, str) else None


def _check_is_list(value: object) -> object:
    if isinstance(value, str | dict):
        raise ValueError("must be a list of filters, such as [length, ratio: {max: 3}]")
    return () if value is None else value


class _FileSchema:
    """JSON schema of the list in a file."""

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        options = {name: filter_.model_json_schema() for name, filter_ in FILTERS.items()}
        for schema in options.values():
            schema.pop("required", None)  # as in the other sections
        named = [
            {"type": "object", "properties": {name: schema}, "additionalProperties": False}
            for name, schema in options.items()
        ]
        return {"type": "array", "items": {"anyOf": [{"enum": list(FILTERS)}, *named]}}


if TYPE_CHECKING:
    FilterList = tuple[Filter, ...]
else:
    _FilterItem = Annotated[
        Union[tuple(Annotated[filter_, Tag(name)] for name, filter_ in FILTERS.items())],  # noqa: UP007
        Discriminator(_filter_name),
    ]
    FilterList = Annotated[tuple[_FilterItem, ...], BeforeValidator(_check_is_list), _FileSchema()]
    """Type of `data.filters`."""
