"""The README of a run folder: model, data, scores, and commands to continue with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from transformer_mt.config.root import Config
from transformer_mt.data.config import DataConfig
from transformer_mt.evaluation.samples import markdown_table
from transformer_mt.pipeline.run_status import describe_status
from transformer_mt.runs.checkpoint_info import CheckpointInfo, rank_checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.display import LAYOUT, make_visible
from transformer_mt.system.files import write_text
from transformer_mt.training.metrics_logger import split_by_source


def write_card(run: RunFolder, config: Config, *, is_running: bool) -> None:
    """Replace the README of a run folder. `is_running` says whether the training continues."""
    found = run.list_readable_checkpoints()
    rejected = [info for info in found if info.is_rejected]
    best = next(iter([*rank_checkpoints(found), *rejected[-1:]]), None)
    write_text(run.readme, render_card(run, config, run.read_metadata(), best, is_running=is_running))


def render_card(
    run: RunFolder,
    config: Config,
    record: Mapping[str, Any],
    best: CheckpointInfo | None,
    *,
    is_running: bool = False,
) -> str:
    """Return the Markdown text from the content `record` of `run.json` and the best checkpoint, if any."""
    provenance = record["provenance"]
    status = describe_status(run, record, config.train.max_steps, is_running=is_running)
    if is_running:
        status = f"{status} when this file was written"
    can_translate = "exported" in record or best is not None or bool(run.list_readable_checkpoints())
    lines = [
        f"# {config.name}",
        "",
        f"A Transformer that translates {describe_directions(config.data)}, trained"
        f"{'' if provenance.get('init_from') else ' from scratch'} with transformer-mt "
        f"{provenance['versions']['transformer-mt']}.",
        "",
        f"- Model: {describe_model(config)}, {record['parameters']:,} parameters",
        f"- Trained on {provenance['hardware']}, {config.precision}, seed {config.seed}",
        *(f"- {fact}" for fact in _describe_training(record, status)),
        "",
        "## Data",
        *(f"- {line}" for line in record["report"]),
        *(f"- Fingerprint of {name}: `{digest}`" for name, digest in record["sha256"].items()),
        "",
        "## Scores",
        *_describe_scores(record, best),
        *(_describe_behaviour_tests(best.tests) if best and best.tests else ()),
        "",
        "## Next commands",
        "",
        "```bash",
        format_next_commands(run, config) if can_translate else _format_restart_command(run),
        "```",
        "",
        "`config.yaml` holds every setting; `run.json` holds the versions and the machine.",
    ]
    return make_visible("\n".join(lines), keep=LAYOUT) + "\n"


def describe_model(config: Config) -> str:
    """Return the shape of the model in words."""
    model = config.model
    stacks = [model.for_stack(stack) for stack in (model.encoder, model.decoder)]
    d_ff, heads = (
        " + ".join(dict.fromkeys(str(getattr(stack, key)) for stack in stacks)) for key in ("d_ff", "n_heads")
    )
    return (
        f"{model.encoder.n_layers} + {model.decoder.n_layers} layers, width {model.d_model}, feed-forward {d_ff}, "
        f"{heads} heads, {model.norm_position}-norm"
    )


def describe_directions(data: DataConfig) -> str:
    """Return the directions of the training pairs, with their tags."""
    directions: dict[str, None] = {}
    for source in data.train_sources:
        src_lang, tgt_lang = source.languages(data.src_lang, data.tgt_lang)
        directions[f"{src_lang} into {tgt_lang}" + (f" (tag {source.tag})" if source.tag else "")] = None
    return ", ".join(directions)


def format_next_commands(run: RunFolder, config: Config) -> str:
    """Return the commands that follow a training, one per line, with comments."""
    folder = quote(str(run.path))
    tag = f" --tag {config.data.tags[0]}" if config.data.needs_tag and config.decoding.tag is None else ""
    evaluate_options = "" if config.data.test else f"{tag} --src F --ref G"
    commands = {
        f"tmt translate {folder}{tag}": "translate at a prompt, or standard input",
        f"tmt translate {folder}{tag} --input F --output G": "translate a file",
        f"tmt evaluate {folder}{evaluate_options}": "scores with 95 % intervals",
        f"tmt board {folder}": "curves and figures in TensorBoard",
    }
    width = max(map(len, commands))
    return "\n".join(f"{command:<{width}}  # {purpose}" for command, purpose in commands.items())


def _format_restart_command(run: RunFolder) -> str:
    """Return the command for a run without a checkpoint."""
    return (
        f"tmt train --config {quote(str(run.config))}  # there is no checkpoint yet: train, or start again after a stop"
    )


def _describe_training(record: Mapping[str, Any], status: str) -> Iterator[str]:
    if warm_start := record["provenance"].get("init_from"):
        yield f"Started from the weights of {warm_start['path']}, step {warm_start['step']:,}"
    yield f"Status: {status}"
    if "hours" in record:
        yield f"Hours of training: {record['hours']:.2f}"
    if exported := record.get("exported"):
        yield f"Weights only: {exported['what']}"


def _describe_scores(record: Mapping[str, Any], best: CheckpointInfo | None) -> Iterator[str]:
    if best is None:
        yield "Not validated yet."
    else:
        chosen = "" if "exported" in record else f"the best by {best.metric}, "
        if best.is_rejected:
            chosen = "rejected by validation.gate or validation.expect_all, "
        for title, found in split_by_source(best.scores).items():
            scores = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            yield f"- {title}, at step {best.step:,} ({chosen}greedy): {scores}"
    for name, scores in record.get("test", {}).items():
        for metric, score in scores.items():
            step = record["tested"]["step"]
            yield f"- {name}, at step {step:,}: {metric} {score['value']:.2f} (`{score['signature']}`)"


def _describe_behaviour_tests(tests: Sequence[Mapping[str, str | None]]) -> Iterator[str]:
    """Yield how many behaviour tests pass, and a table of the others."""
    failed = [
        [str(test[key]) for key in ("title", "source", "translation", "problem")] for test in tests if test["problem"]
    ]
    yield from ("", "## Behaviour tests", f"- {len(tests) - len(failed)} of {len(tests)} pass")
    if failed:
        yield from ("", markdown_table(("test", "source", "translation", "problem"), failed))
