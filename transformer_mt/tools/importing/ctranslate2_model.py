"""Import of models for CTranslate2, as its converters write them, and of packages of Argos Translate with such a model.

Models of OpenNMT-py, OpenNMT-tf, eole and fairseq can be imported after their conversion. No code of CTranslate2 runs;
quantised weights become fp32 again.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_mt.data.data_config import Direction
from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair, find_kind
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.system.files import read_bytes
from transformer_mt.tools.importing.imported_model import (
    ImportedModel,
    Languages,
    find_missing,
    make_vocabulary,
)
from transformer_mt.tools.importing.layer_tensors import STACKS, LayerNames, half_sinusoids, read_layers
from transformer_mt.tools.importing.source_files import WeightSource, read_optional_json, validate

MAX_MODEL_BYTES = 16 << 30
VERSIONS = (4, 5, 6)  # of the binary format
DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu"}
CONTROLS = ("<s>", "</s>", "<blank>", "<pad>")
LANGUAGE_TOKEN = re.compile(r">>\w+<<|__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}")
SETTINGS = ("num_heads", "pre_norm", "activation", "scale_embeddings", "start_from_zero_embedding")
IGNORED = ("embeddings_merge", "alignment_layer", "alignment_heads", "with_source_bos", "with_source_eos")
MUST_BE_OFF = ("alibi", "alibi_use_positive_positions", "scale_alibi", "multi_query_attention")
LAYERS = LayerNames(
    layer="{stack}/layer_{number}/",
    qkv=({"self_attention/linear_0/": 3}, {"attention/linear_0/": 1, "attention/linear_1/": 2}),
    outputs=("self_attention/linear_1/", "attention/linear_2/"),
    feed_forward=("ffn/linear_0/", "ffn/linear_1/"),
    norms=("self_attention/layer_norm/", "attention/layer_norm/", "ffn/layer_norm/"),
    final_norm="{stack}/layer_norm/",
    norm_tensors=("gamma", "beta"),
)
DEFAULT_POSITIONS = 1024  # length of a table that the file leaves to CTranslate2


def read_ctranslate2(package: Path, languages: Languages) -> ImportedModel:
    """Read a folder of CTranslate2 or Argos Translate. Raises `UserError` if it is damaged or not supported."""
    folder = package / "model" if (package / "model").is_dir() else package
    path = folder / "model.bin"
    variables, aliases = _read_variables(path)
    settings = _read_settings(path, variables)
    source = WeightSource(path, dict(_list_tensors(variables, aliases)), [path])
    stored = read_optional_json(folder / "config.json")
    start = str(stored.get("decoder_start_token", "<s>"))  # null: a target prefix, which needs tags
    names = [_read_vocabulary(folder, side) for side in ("source", "target")]
    _check_vocabularies(folder, names, start)
    if languages.kept:
        raise UserError(f"--languages: {folder}: has no language tokens; leave it out (--corpus prunes the vocabulary)")
    is_shared = names[0] == names[1]
    output, embeddings = (
        aliases.get(name, name) for name in ("decoder/projection/weight", "decoder/embeddings/weight")
    )
    first = next((name for name in ("encoder/embeddings_0/weight", "encoder/embeddings/weight") if name in source), "")
    tie = "decoder" if output == embeddings else "none"
    if tie == "decoder" and is_shared and aliases.get(first, first) == embeddings:
        tie = "all"
    d_model = variables[aliases.get(first, first)].shape[-1] if first else 0
    tables = [_read_positions(source, stack, d_model) for stack in STACKS]
    eps = stored.get("layer_norm_epsilon") or 1e-5
    config = _make_config(path, settings, variables, d_model, tie, min(map(len, tables)), eps)
    segmenter = package / "sentencepiece.model"
    protos = [_read_segmenter(segmenter, package / f"{side}.spm") for side in ("source", "target")]
    ids = [{name: i for i, name in enumerate(each)} for each in names]
    missing = find_missing(names[0], protos[0])
    src, tgt = (
        make_vocabulary(
            names[i],
            protos[i],
            [0, ids[i][start], ids[i]["</s>"]],
            missing if is_shared or i == 0 else (),
            controls=CONTROLS,
            is_target=i == 1,
        )
        for i in (0, 1)
    )
    add = {key: bool(stored.get(f"add_source_{key}", settings.get(f"with_source_{key}", 0))) for key in ("bos", "eos")}
    tokenizers = TokenizerPair(src.tokenizer, tgt.tokenizer, add["bos"], shares_ids=is_shared, source_eos=add["eos"])
    sizes = [*map(len, names)]
    weights = dict(read_layers(source, config, LAYERS))
    matrix = tgt.rows.embeddings(source.take("decoder/embeddings/weight", sizes[1], d_model))
    if settings.get("decoder/start_from_zero_embedding"):
        matrix[tgt.rows.pad_id + 1] = 0  # of BOS
    weights["decoder.embedding.tokens.weight"] = matrix
    if tie == "none":
        weights["output.weight"] = tgt.rows.embeddings(source.take("decoder/projection/weight", sizes[1], d_model))
    if tie != "all":
        weights["encoder.embedding.tokens.weight"] = src.rows.embeddings(source.take(first, sizes[0], d_model))
    source.discard("decoder/projection/weight", first)
    has_bias = "decoder/projection/bias" in source
    bias = source.take("decoder/projection/bias", sizes[1]) if has_bias else torch.zeros(sizes[1])
    weights["output.bias"] = tgt.rows.bias(bias)
    for stack, table in zip(STACKS, tables, strict=True):
        weights[f"{stack}.embedding.positions.table"] = table[: config.max_positions].clone()
    source.check_all_taken()
    metadata = read_optional_json(package / "metadata.json")
    pair = [languages.src or metadata.get("from_code"), languages.tgt or metadata.get("to_code")]
    directions = [Direction(*languages.check(package, *pair))]
    kind: Any = find_kind(src.tokenizer.backend)
    return ImportedModel(config, weights, tokenizers, kind, directions, "CTranslate2", source.sha256())


def _read_settings(path: Path, variables: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the settings in the file, which are numbers. Raises `UserError` for one that cannot be imported."""
    settings = {name: int(value) for name, value in variables.items() if value.dim() == 0 and "_scale" not in name}
    for name, value in settings.items():
        key = name.rpartition("/")[2]
        is_known = key in (*SETTINGS, *IGNORED) or (key == "with_target_bos" and value)
        if not is_known and (value or key not in MUST_BE_OFF):
            raise UserError(f"{path}: {name}: {value} cannot be imported")
    return settings


def _check_vocabularies(folder: Path, names: Sequence[Sequence[str]], start: str) -> None:
    """Raise `UserError` if a vocabulary lacks a control symbol, or has language tokens."""
    if token := next(filter(LANGUAGE_TOKEN.fullmatch, names[0]), None):
        raise UserError(
            f"{folder}: has language tokens, such as {token}, and does not say how they are used; import the "
            "original model of Transformers"
        )
    for side in names:
        if missing := {"<unk>", "</s>", start} - {*side}:
            raise UserError(
                f"{folder}: the vocabulary has no entry {min(missing)} (decoder_start_token is {start}); if tmt export "
                "made it, pass its run to other commands, such as tmt translate"
            )


def _make_config(
    path: Path,
    settings: Mapping[str, int],
    variables: Mapping[str, Tensor],
    d_model: int,
    tie: str,
    n_positions: int,
    eps: float,
) -> ModelConfig:
    """Derive section `model` from the settings and shapes of the file."""

    def count(stack: str) -> int:
        layers = {
            name.split("/")[1] for name in variables if name.startswith(f"{stack}/layer_") and name.count("/") > 2
        }
        return len(layers)

    def find(key: str, default: int) -> int:
        values = {settings.get(f"{stack}/{key}", default) for stack in STACKS}
        if len(values) > 1:
            raise UserError(f"{path}: {key} differs between encoder and decoder, which cannot be imported")
        return values.pop()

    activation = find("activation", 0)
    if activation not in ACTIVATIONS or not d_model:
        raise UserError(f"{path}: is no Transformer for translation with a known activation ({activation})")
    inner = {stack: variables.get(f"{stack}/layer_0/ffn/linear_0/weight", torch.empty(0)).size(0) for stack in STACKS}
    values = {
        "d_model": d_model,
        "d_ff": inner["encoder"],
        "n_heads": settings.get("encoder/num_heads", 8),
        **{
            stack: {
                "n_layers": count(stack),
                "n_heads": settings.get(f"{stack}/num_heads", 8),
                "d_ff": inner[stack],
            }
            for stack in STACKS
        },
        "positions": "learned",
        "max_positions": n_positions,
        "freeze": ("positions",),
        "norm_position": "pre" if find("pre_norm", 1) else "post",
        "norm_eps": eps,
        "scale_embeddings": {0: False, 1: True}.get(find("scale_embeddings", 1)),
        "tie_embeddings": tie,
        "activation": ACTIVATIONS[activation],
        "output_bias": True,
    }
    return validate(ModelConfig, values, path)


def _read_positions(source: WeightSource, stack: str, d_model: int) -> Tensor:
    """Return the table of a stack: that of the file, or the default of CTranslate2."""
    name = f"{stack}/position_encodings/encodings"
    if name not in source:
        return half_sinusoids(1, DEFAULT_POSITIONS, d_model)
    return source.take(name, *source.shape(name))


# --- files ------------------------------------------------------------------------------------------------------------


def _read_segmenter(*paths: Path) -> Any:
    path = next((path for path in paths if path.exists()), paths[0])
    return pretrained.parse_sentencepiece(path, str(path))


def _read_vocabulary(folder: Path, side: str) -> list[str]:
    for path in (folder / f"{name}_vocabulary.{end}" for name in (side, "shared") for end in ("json", "txt")):
        if path.exists():
            text = read_bytes(path, pretrained.MAX_TOKENIZER_BYTES).decode(errors="replace")
            try:
                found: Any = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
            except ValueError:
                raise UserError(f"{path}: cannot be read as JSON") from None
            names: list[str] = [*map(str, found)] if isinstance(found, list) else []  # pyright: ignore[reportUnknownArgumentType]
            if names and len({*names}) == len(names):
                return names
            raise UserError(f"{path}: is no list of different entries")
    raise UserError(f"{folder}: has neither {side}_vocabulary nor shared_vocabulary (.json or .txt)")


def _list_tensors(
    variables: Mapping[str, Tensor], aliases: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield the name of each weight, and a function that returns it in floating point."""
    for name in (*variables, *aliases):
        tensor = variables[aliases.get(name, name)]
        if tensor.dim() and not name.endswith("_scale"):
            scale = variables.get(aliases.get(f"{name}_scale", f"{aliases.get(name, name)}_scale"))
            yield name, partial(_dequantise, tensor, scale)


def _dequantise(tensor: Tensor, scale: Tensor | None) -> Tensor:
    """Undo the quantization to integers: int8 has a factor for each row, int16 one for all."""
    if scale is None:
        return tensor
    if scale.dim() and scale.shape != tensor.shape[:1]:
        raise UserError(f"import: an integer matrix {[*tensor.shape]} has {[*scale.shape]} factors; convert it again")
    return tensor.float() / (scale[:, None] if scale.dim() else scale)


def _read_variables(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the variables of a `model.bin`, and the aliases of some. Raises `UserError` for any other file."""
    data = bytearray(read_bytes(path, MAX_MODEL_BYTES))
    at = 0

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return value

    def string() -> str:
        nonlocal at
        size = number("H")
        at += size
        return data[at - size : at - 1].decode()

    try:
        version, _ = number("I"), string()
        if version not in VERSIONS:
            raise ValueError(f"version {version} of the format")
        number("I")  # revision of the specification
        variables: dict[str, Tensor] = {}
        for _ in range(number("I")):
            name = string()
            shape = [number("I") for _ in range(number("B"))]
            dtype, n_bytes = DTYPES[number("B")], number("I")
            values = torch.frombuffer(data, dtype=dtype, count=n_bytes // dtype.itemsize, offset=at)
            variables[name] = values.reshape(shape)
            at += n_bytes
        aliases = {string(): string() for _ in range(number("I"))}
        if missing := [target for target in aliases.values() if target not in variables]:
            raise ValueError(f"an alias of {missing[0]}")
    except (ValueError, IndexError, struct.error, RuntimeError) as error:
        raise UserError(f"{path}: is no model of CTranslate2 that can be read ({error})") from None
    return variables, aliases
