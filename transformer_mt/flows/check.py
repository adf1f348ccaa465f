"""Check the corpora of a configuration, and write a repaired copy of the corpora."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.prepare import load_held_out, load_source
from transformer_mt.tools.analysis.config_differences import list_changes
from transformer_mt.tools.quality.checks import CorpusReport
from transformer_mt.tools.quality.corpus_check import check_sources
from transformer_mt.tools.quality.pair_filters import ColumnFilter
from transformer_mt.tools.quality.repair import RepairReport, repair_sources


def check_corpus(config: Config, runner: Runner = IN_PROCESS_RUNNER) -> CorpusReport:
    """Check all corpora. Raises `UserError` if a source cannot be read."""
    report = check_sources(str(config.name), config.data, partial(load_source, config, runner=runner), runner)
    return replace(report, findings=sorted(report.findings, key=lambda finding: -finding.severity))


def repair_corpus(config: Config, folder: Path) -> RepairReport:
    """Write a repaired copy of `data.train` and a configuration that trains on it into a new folder.

    Raises `UserError` if the folder exists, the text cannot be read, most pairs would be removed, or a filter reads
    a column.
    """
    for filter_ in config.data.filters:
        if isinstance(filter_, ColumnFilter):
            raise filter_.make_error("the repaired copy has no column of numbers: remove this filter first")
    name = f"{config.name}-repaired"

    def render(data: DataConfig) -> str:
        return render_yaml(config.model_copy(update={"name": name, "data": data}))

    load, held_out = partial(load_source, config), load_held_out(config)
    return repair_sources(config.data, folder, folder / f"{name}.yaml", render, load, held_out)


def suggest_next_command(config_path: str) -> str:
    """Return what follows a repair: `tmt init` if its configuration has nothing but languages and one pair of files."""
    config = configuration.load(Path(config_path))
    corpus = (("data", "src_lang"), ("data", "tgt_lang"), ("data", "train"))
    has_settings = any(change.path[:2] not in corpus for change in list_changes(config))
    if has_settings or isinstance(config.data.train, tuple):
        return f"tmt train --config {quote(config_path)}"
    return f"tmt init {' '.join(map(quote, (*config.data.train.src, *config.data.train.tgt)))}"
