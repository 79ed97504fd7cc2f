"""The reference side of the family goldens: draw weights, run transformers, decode greedily.

Everything runs in float32 on the CPU and one thread, mostly with eager attention, so that a second run
gives the same bytes. Weights depend on the family, the tensor's name and its shape alone: two
cases of one family share every tensor that has the same shape in both.
"""

import contextlib
import hashlib
import json
import logging
import pathlib
import re
import shutil
import tempfile

import gguf
import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_layers import MtpModel

import released_models

torch.set_num_threads(1)
torch.manual_seed(0)
torch._dynamo.config.disable = True  # quantizers compile functions; what these are written as counts
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)
# FlauBERT with pre_norm asks its cache for the part of a layer, which fails in 5.24; without one a layer computes the same
transformers.EncoderDecoderCache.__getitem__ = lambda cache, layer: None

SEED = 20
ROWS, LENGTH, PADDED = 2, 19, 6  # row 0 is full, row 1 starts (or ends) with 6 padding tokens
TARGET_LENGTH, TARGET_PADDED = 13, 4  # of an encoder-decoder; there row 0 is the padded one
PROMPT_LENGTH, NEW_TOKENS = 5, 16
MIN_DISTINCT, MIN_MARGIN = 8, 1e-2
RESULTS = ("logits", "last_hidden_state", "pooler_output", "encoder_last_hidden_state")
DRAWS, MOST_DRAWS = 8, 64  # of 64 prompts each; the second while no varied text is free of near ties
INPUT_FIRST = ("gpt_oss", "llama4_text")  # whose experts are (expert, in, out)
AT_ONCE = 14  # draws of the rest that run as one batch, which takes little longer than one draw


def generator(*words):
    """A generator that depends on the words alone, not on the order of the draws."""
    digest = hashlib.sha256("/".join(map(str, (SEED,) + words)).encode()).digest()
    return numpy.random.Generator(numpy.random.PCG64(int.from_bytes(digest[:16], "little")))


def is_norm_weight(name):
    return name.endswith("weight") and any(
        word in name.lower() for word in ("norm", ".ln_", "ln_f")
    )


def draw(family, name, shape, zero_centred_norms):
    """One tensor: matrices N(0, 0.2^2), norm weights and scalars of layers 1 + 0.3 N, biases 0.3 N."""
    normal = generator(family, name, tuple(shape)).standard_normal(tuple(shape))
    if is_norm_weight(name):
        value = 0.3 * normal + (0.0 if zero_centred_norms else 1.0)
    elif name.endswith("layer_scalar"):
        value = 0.3 * normal + 1.0
    elif name.endswith((".D", ".A_log")):  # Mamba: skip near 1, decay near -exp(0.3 N)
        value = 0.3 * normal + (1.0 if name.endswith(".D") else 0.0)
    elif name.endswith("bias"):
        value = 0.3 * normal
    elif "conv1d" in name:  # a depthwise kernel of few taps: 0.2 would fade the branch out
        value = 0.5 * normal
    else:
        value = 0.2 * normal
    return torch.from_numpy(value.astype(numpy.float32))


def amplify(family, name, value, zero_centred_norms, gain):
    """A tensor as it was drawn, times the gain; a norm's weight also gets a sign per channel."""
    if not is_norm_weight(name):
        return gain * value
    sign = generator(family, "signs", name).choice([-gain, gain], tuple(value.shape))
    shift = 1.0 if zero_centred_norms else 0.0
    return ((value.double() + shift) * torch.from_numpy(sign) - shift).float()


def model_class(architecture):
    return released_models.CLASSES.get(architecture) or getattr(transformers, architecture)


def rounded(value, storage, input_first):
    """Experts as the block type holds them; blocks lie along what a matrix is multiplied with."""
    kind = gguf.GGMLQuantizationType[storage]
    matrices = value.transpose(1, 2) if input_first else value
    blocks = gguf.quants.quantize(matrices.contiguous().numpy(), kind)
    result = torch.from_numpy(gguf.quants.dequantize(blocks, kind).copy())
    return result.transpose(1, 2) if input_first else result


def build(
    family, architecture, model_type, settings, zero_centred_norms=False, gains=None, storage=""
):
    """A model of the architecture whose weights are drawn; settings are config keywords.

    storage: a block type of GGUF that experts are rounded to.

    gains: endings of weights' names -> what they are amplified by. A tied head finds the last
    token again and repeats it; with random signs in the norm before the head it does not.
    """
    settings = json.loads(json.dumps(settings))
    if architecture in released_models.CLASSES:
        model = released_models.CLASSES[architecture].from_settings(settings).eval()
    else:
        config = transformers.AutoConfig.for_model(model_type, **settings)
        config._attn_implementation = "eager"
        model = model_class(architecture)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # fixed tables stay as the reference makes them
            if parameter.requires_grad or name.endswith("expert_bias"):
                parameter.copy_(draw(family, name, parameter.shape, zero_centred_norms))
            if storage and ".experts." in name and parameter.dim() == 3:
                parameter.copy_(rounded(parameter, storage, model_type in INPUT_FIRST))
            for ending, gain in (gains or {}).items():
                if name.endswith(ending):
                    parameter.copy_(amplify(family, name, parameter, zero_centred_norms, gain))
        for name, buffer in model.named_buffers():
            if name.endswith(("logits_bias", "e_score_correction_bias", "expert_bias", "layer_scalar")):
                buffer.copy_(draw(family, name, buffer.shape, zero_centred_norms))
            if name.endswith("tid2eid"):  # different experts for every token
                order = generator(family, name, tuple(buffer.shape)).random((len(buffer), model.config.n_routed_experts)).argsort(1)
                buffer.copy_(torch.from_numpy(order[:, : buffer.shape[1]].copy()))
    model.tie_weights()
    return model


def save(model, folder):
    """config.json and model.safetensors, as save_pretrained writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, released_models.Released):
        model.to_files(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(pathlib.Path(scratch, name), folder / name)


def unpacked(tensors):
    """Experts in MXFP4 as the numbers that the reference makes of them."""
    result = {}
    for name, value in tensors.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            scales = tensors[f"{stem}_scales"]
            result[stem] = convert_moe_packed_tensors(value, scales, dtype=torch.float32).contiguous()
        elif not name.endswith("_scales"):
            result[name] = value
    return result


def load(architecture, config, weights, attention="eager", extra_allowed=False):
    """What from_pretrained makes of a config (a dict) and a weights file; every name must match.

    attention: the reference's implementation, "eager" or "sdpa".
    extra_allowed: the file may hold tensors that the architecture does not use.
    """
    if architecture in released_models.CLASSES:
        return released_models.CLASSES[architecture].from_files(config, load_file(weights), extra_allowed)
    with tempfile.TemporaryDirectory() as scratch:
        packed = config.get("quantization_config", {}).get("quant_method") == "mxfp4"
        if packed:  # the loader of packed experts wants a GPU; what unpacks them does not
            config = {key: value for key, value in config.items() if key != "quantization_config"}
            save_file(unpacked(load_file(weights)), pathlib.Path(scratch, "model.safetensors"))
        else:
            shutil.copyfile(weights, pathlib.Path(scratch, "model.safetensors"))
        pathlib.Path(scratch, "config.json").write_text(json.dumps(config))
        cls, options = model_class(architecture), {}
        if cls.config_class.model_type != config["model_type"]:  # a type that another one's class computes
            options["config"] = transformers.AutoConfig.from_pretrained(scratch)
        model, info = cls.from_pretrained(
            scratch, attn_implementation=attention, dtype=torch.float32, output_loading_info=True, **options
        )
    if extra_allowed:
        info.pop("unexpected_keys")
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if wrong:
        raise RuntimeError(f"reference does not accept these weights as they are: {wrong}")
    count_buckets_anew(model)
    return model.eval()


def count_buckets_anew(model):
    """Reformer's layers keep the bucket count of the first length that they see: it is forgotten
    after each pass, so that a pass depends on its input alone."""
    for module in model.modules():
        if getattr(module, "num_buckets", 0) is None:
            module.register_forward_hook(lambda layer, *_: setattr(layer, "num_buckets", None))


def inputs(family, vocab, padding, types=0):
    """Token ids, mask, positions (and segment ids); padding is left, right or none."""
    ids = generator(family, "input_ids").integers(3, vocab, (ROWS, LENGTH))
    mask = numpy.ones((ROWS, LENGTH), numpy.int64)
    if padding == "left":
        mask[1, :PADDED] = 0
    elif padding == "right":
        mask[1, LENGTH - PADDED :] = 0
    ids = numpy.where(mask == 1, ids, 0)
    result = {"input_ids": ids, "attention_mask": mask}
    if padding == "left":
        result["position_ids"] = numpy.maximum(numpy.cumsum(mask, 1) - 1, 0)
    if types:
        cut = numpy.array([[LENGTH // 3], [LENGTH // 2]])
        result["token_type_ids"] = (numpy.arange(LENGTH)[None] >= cut).astype(numpy.int64)
    return {
        name: torch.from_numpy(numpy.ascontiguousarray(value)) for name, value in result.items()
    }


def feature_inputs(family, name, shape):
    """What is read instead of token ids: rows of numbers of one shape."""
    values = generator(family, name).standard_normal((ROWS, *shape))
    return {name: torch.from_numpy(values.astype(numpy.float32))}


def pair_inputs(family, vocab, features=None):
    """Sources and targets of an encoder-decoder, padded on the right; of unequal lengths.

    features: the name and shape of what the encoder reads instead of ids.
    """
    result = feature_inputs(family, *features) if features else inputs(family, vocab, "right")
    ids = generator(family, "decoder_input_ids").integers(3, vocab, (ROWS, TARGET_LENGTH))
    mask = numpy.ones((ROWS, TARGET_LENGTH), numpy.int64)
    mask[0, TARGET_LENGTH - TARGET_PADDED :] = 0
    result["decoder_input_ids"] = torch.from_numpy(numpy.where(mask == 1, ids, 0))
    result["decoder_attention_mask"] = torch.from_numpy(mask)
    return result


def global_mask(tokens):
    """These tokens of row 0, and the first of them in row 1."""
    mask = torch.zeros((ROWS, LENGTH), dtype=torch.int64)
    mask[0, list(tokens)] = 1
    mask[1, tokens[0]] = 1
    return mask


@torch.no_grad()
def run(model, batch, padding):
    """logits and, for a model without a head, last_hidden_state."""
    arguments = dict(batch)
    if padding == "none":
        arguments.pop("attention_mask", None)
    with contextlib.suppress(AttributeError):
        model.config.use_cache = False
    output = model(**arguments)
    result = {}
    for name in RESULTS + ("prediction_logits",):
        if getattr(output, name, None) is not None:
            result["logits" if name == "prediction_logits" else name] = getattr(output, name)
    if type(model).__name__.endswith("ForPreTraining") and result["logits"].dim() == 2:
        result["logits"] = result["logits"].unsqueeze(-1)  # one score a token
    if getattr(output, "start_logits", None) is not None:
        result["logits"] = torch.stack([output.start_logits, output.end_logits], -1)
    return {name: value.detach().float().contiguous() for name, value in result.items()}


@torch.no_grad()
def ahead(model, tensors, ids):
    """Logits of the modules that predict tokens further ahead, of one row: {"ahead_0": [T - 1, C]}.

    tensors: those of the checkpoint, where the modules are layers behind the last one.
    """
    first = model.config.num_hidden_layers
    state = {}
    for name, value in tensors.items():
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if not found or int(found[1]) < first or found[2] in ("embed_tokens.weight", "shared_head.head.weight"):
            continue
        rest = found[2].replace("shared_head.norm.", "post_norm.")
        inner = rest if rest.startswith(("enorm", "hnorm", "eh_proj", "post_norm")) else f"mtp_block.{rest}"
        state[f"layers.{int(found[1]) - first}.{inner}"] = value
    for name in [name for name in state if name.endswith(".experts.0.gate_proj.weight")]:
        stem = name.removesuffix("0.gate_proj.weight")
        count = sum(other.startswith(stem) for other in state) // 3
        parts = {
            part: torch.stack([state.pop(f"{stem}{e}.{part}_proj.weight") for e in range(count)])
            for part in ("gate", "up", "down")
        }
        state[f"{stem}gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
        state[f"{stem}down_proj"] = parts["down"]
    modules = MtpModel(model, model.config.num_mtp_layers).eval()
    missing, unexpected = modules.load_state_dict(state, strict=False)
    if unexpected or any(name.startswith("layers.") for name in missing):
        raise RuntimeError(f"modules for further tokens: missing {missing}, unexpected {unexpected}")
    hidden, result = model.model(input_ids=ids[None], use_cache=False).last_hidden_state, {}
    for k in range(model.config.num_mtp_layers):
        token = ids[None, k + 1 :]
        places = torch.arange(k + 1, len(ids))[None]
        hidden = modules.forward_layer(k, hidden[:, : token.shape[1]], places, None, input_ids=token)
        result[f"ahead_{k}"] = modules._project_to_logits(hidden)[0].contiguous()
    return result


def counted(value, mask):
    """The values that count: of real positions, or all where a row has one result or no padding."""
    return value[mask.bool()] if value.dim() == 3 and mask is not None else value


def difference(left, right, mask):
    """max |left - right| over what counts; of two vocabularies, over the tokens that both have."""
    names = ["logits"] if "logits" in left else ["last_hidden_state", "pooler_output"]

    def between(name):
        width = min(left[name].shape[-1], right[name].shape[-1])
        one, other = (counted(side[name], mask)[..., :width] for side in (left, right))
        return float((one - other).abs().max())

    return max(between(name) for name in names if name in left)


@torch.no_grad()
def continue_greedily(model, prompts):
    """Uncached greedy continuation: new ids and the margins between first and second."""
    ids, margins = prompts.clone(), []
    pair = model.config.is_encoder_decoder
    source = "input_features" if prompts.is_floating_point() else "input_ids"
    if pair:  # the prompt is what the encoder reads
        ids = torch.full((len(prompts), 1), model.config.decoder_start_token_id)
    first = ids.shape[1]
    for _ in range(NEW_TOKENS):
        given = {source: prompts, "decoder_input_ids": ids} if pair else {source: ids}
        logits = model(**given, use_cache=False).logits[:, -1].float()
        best = logits.topk(2, dim=-1)
        margins.append(best.values[:, 0] - best.values[:, 1])
        ids = torch.cat([ids, best.indices[:, :1]], dim=1)
    return ids[:, first:], torch.stack(margins, 1)


def draw_prompts(family, vocab, attempt, features=None):
    words = (family, "prompts", attempt)
    if features:
        values = generator(*words).standard_normal((64, *features[1]))
        return torch.from_numpy(values.astype(numpy.float32))
    return torch.from_numpy(generator(*words).integers(3, vocab, (64, PROMPT_LENGTH)))


def greedy(model, family, vocab, features=None):
    """A drawn prompt whose continuation has no near tie and is varied, and how it fared.

    The first with MIN_DISTINCT tokens and a wide margin; where there is none, one with a fair
    margin, then the most varied of those without a near tie.
    """
    best, row_of_best = (False, 0, 0.0), None
    starts = [*range(DRAWS), *range(DRAWS, MOST_DRAWS, AT_ONCE), MOST_DRAWS]
    for start, end in zip(starts, starts[1:]):
        if start >= DRAWS and best[:2] == (True, MIN_DISTINCT):
            break
        prompts = torch.cat([draw_prompts(family, vocab, k, features) for k in range(start, end)])
        tokens, margins = continue_greedily(model, prompts)
        for row in range(len(prompts)):
            margin = float(margins[row].min())
            distinct = min(len(set(tokens[row].tolist())), MIN_DISTINCT)
            merit = (margin > MIN_MARGIN, distinct, min(margin, 2 * MIN_MARGIN))
            if merit > best:
                best, row_of_best = merit, prompts[row : row + 1]
        if best == (True, MIN_DISTINCT, 2 * MIN_MARGIN):
            break
    tokens, margins = continue_greedily(model, row_of_best)
    facts = {
        "distinct": len(set(tokens[0].tolist())),
        "least_margin": round(float(margins.min()), 4),
        "near_tie": bool(margins.min() <= MIN_MARGIN),
    }
    return {"greedy_prompt": row_of_best[0].contiguous(), "greedy_ids": tokens[0].contiguous()}, facts
