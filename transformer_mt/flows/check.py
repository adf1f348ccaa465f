"""Check the corpora of a configuration, and pair shifted lines of the training corpus again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.data.data_config import Source
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.prepare import load_source
from transformer_mt.system.log import Severity
from transformer_mt.tools.quality.checks import CorpusReport
from transformer_mt.tools.quality.corpus_check import check_sources
from transformer_mt.tools.quality.pair_filters import ColumnFilter
from transformer_mt.tools.quality.repair import RepairCounts, choose_added_filters, repair_sources


def check_corpus(config: Config, runner: Runner = IN_PROCESS_RUNNER) -> CorpusReport:
    """Check all corpora. Raises `UserError` if a source cannot be read."""
    return check_sources(str(config.name), config.data, partial(load_source, config, runner=runner), runner)


def is_repairable(config: Config, report: CorpusReport) -> bool:
    """Return whether `repair_corpus` repairs a warning or an error of `data.train`, and accepts the configuration."""
    if report.has_wrong_languages or any(isinstance(filter_, ColumnFilter) for filter_ in config.data.filters):
        return False
    added = {filter_.kind for filter_ in choose_added_filters(config.data, config.data.filters)}
    problems = [finding for finding in report.findings if finding.severity > Severity.OK]
    return any(finding.can_be_realigned or finding.remedy.partition(":")[0] in added for finding in problems)


def repair_corpus(config: Config, folder: Path) -> tuple[Path, dict[str, RepairCounts]]:
    """Write a copy of `data.train` with lines paired again, and a configuration that uses it, into a new folder.

    Return the path of the configuration, and the numbers of each source. Raises `UserError` if the folder exists, the
    text cannot be read, most lines would be removed, or a filter reads a column.
    """
    for filter_ in config.data.filters:
        if isinstance(filter_, ColumnFilter):
            raise filter_.make_error("the new text has no column of numbers: remove this filter first")
    name = f"{config.name}-repaired"

    def render(train: Source | tuple[Source, ...]) -> str:
        filters = config.data.filters
        changes = {"train": train, "filters": (*choose_added_filters(config.data, filters), *filters)}
        return render_yaml(config.model_copy(update={"name": name, "data": config.data.model_copy(update=changes)}))

    config_name = f"{name}.yaml"
    counts = repair_sources(config.data, folder, config_name, render, partial(load_source, config))
    return folder / config_name, counts
