"""The README.md of a run folder: what this is, on what it was trained, its scores, what to type next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_mt.config import Config
from transformer_mt.runs import CheckpointInfo, RunFolder


def render(run: RunFolder, config: Config, record: Mapping[str, Any], best: CheckpointInfo | None) -> str:
    """The text, from what the run folder knows."""
    model, made = config.model, record["provenance"]
    lines = [
        f"# {config.name}",
        "",
        f"A Transformer that translates {config.data.src_lang} into {config.data.tgt_lang}, trained from scratch with "
        f"transformer-mt {made['versions']['transformer-mt']}.",
        "",
        f"- Model: {model.encoder.n_layers} + {model.decoder.n_layers} layers, width {model.d_model}, feed-forward "
        f"{model.d_ff}, {model.n_heads} heads, {model.norm_position}-norm, {record['parameters']:,} parameters",
        f"- Trained on {made['hardware']}, {config.precision}, seed {config.seed}",
        f"- Status: {record.get('ended') or 'in training, or interrupted'}",
        "",
        "## Data",
        *(f"- {line}" for line in record["report"]),
        *(f"- SHA-256 of {name}: `{digest}`" for name, digest in record["sha256"].items()),
        "",
        "## Scores",
    ]
    if best is None:
        lines.append("Not validated yet.")
    else:
        scores = ", ".join(f"{name} {value:.3f}" for name, value in best.scores.items())
        lines.append(f"- validation, at step {best.step:,} (the best by {best.metric}, greedy): {scores}")
    for name, scores in record.get("test", {}).items():
        for metric, score in scores.items():
            lines.append(f"- {name}: {metric} {score['value']:.2f} (`{score['signature']}`)")
    folder = run.path
    lines += [
        "",
        "## What to type next",
        "",
        "```bash",
        f"tmt translate {folder}                # a prompt, or standard input",
        f"tmt translate {folder} --input F --output G",
        f"tmt evaluate {folder} --src F --ref G",
        f"tensorboard --logdir {folder.parent}",
        "```",
        "",
        "`config.yaml` holds every setting; `run.json` says with which versions and on what machine it was made.",
    ]
    return "\n".join(lines) + "\n"
