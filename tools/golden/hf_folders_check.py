"""Opens Hugging Face folders that tessera wrote with transformers: does generate() end, are tokens and logits the same?

    python tools/golden/hf_folders_check.py PROGRAM WORK_FOLDER [CHAT_MODEL.gguf]

Routes: a GGUF file, a folder with a run's LoRA merged into it, a run trained from nothing, an AWQ folder, runs of fine-tuned
BERT (classes of texts, of words, answers). With a chat model (SmolLM2-135M-Instruct.Q4_1.gguf) an answer must end by itself.
Prints a line per route; exit code 1 when one fails.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

program, work = sys.argv[1], pathlib.Path(sys.argv[2])
chat_model = sys.argv[3] if len(sys.argv) > 3 else None
shutil.rmtree(work, True)
work.mkdir(parents=True)
torch.manual_seed(1)
failed = 0


def check(name, good, said=""):
    global failed
    print(f"{name:<60} {'ok' if good else 'FAILED: ' + str(said)[:300]}")
    failed += not good


def run(*arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"tessera {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout, done.stderr


def route(make):
    """Runs one route; whatever goes wrong in it is one line."""
    try:
        make()
    except Exception as problem:
        check(make.__name__, False, str(problem).replace("\n", " "))


def forward(model, ids, *extra, **further):
    save_file({"input_ids": np.asarray(ids, np.int64)} | further, work / "in.safetensors")
    run("forward", model, "--input", work / "in.safetensors", "--output", work / "out.safetensors", *extra)
    return load_file(work / "out.safetensors")


def opened(folder, kind):
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    loose = {k: v for k, v in info.items() if v}
    if loose:
        raise RuntimeError(f"transformers does not take every tensor: {loose}")
    return model.eval()


def compare(name, folder, ids, theirs, tolerance=1e-4):
    with torch.no_grad():
        theirs = theirs(torch.tensor([ids]))
    got = forward(folder, [ids])["logits"]
    if "logits" in theirs:
        want = theirs["logits"].float().numpy()
    else:  # of answers: where they begin and end
        want = np.stack([theirs["start_logits"].numpy(), theirs["end_logits"].numpy()], axis=-1)
    error = np.abs(got.reshape(want.shape) - want).max() / np.abs(want).max()
    check(f"{name}: logits", error < tolerance, error)


# --- a small tokenizer and model of each kind ----------------------------------------------------

WORDS = "the a user model reads writes good bad film book was is not very and we it of in on".split()


def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def llama(folder):
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        bos_token_id=0, eos_token_id=1, pad_token_id=2, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def wordpiece(folder):
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *[chr(c) for c in range(97, 123) if chr(c) != "a"]]
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return len(vocab)


def bert(folder):
    folder.mkdir()
    size = wordpiece(folder)
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64
    )
    transformers.BertModel(config).save_pretrained(folder)


def ends(name, folder, vocab):
    """Whether the folder's model and generate() know the ids that end a text."""
    model = opened(folder, transformers.AutoModelForCausalLM)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    check(f"{name}: ids", model.generation_config.eos_token_id is not None and model.config.eos_token_id is not None,
          model.generation_config)  # fmt: skip
    check(f"{name}: the tokenizer's end", tokens.eos_token_id == model.config.eos_token_id, tokens.eos_token_id)
    with torch.no_grad():
        # the first token that a text goes on with is made the end: generation must stop right there
        ids = torch.tensor([tokens("the user reads", add_special_tokens=False)["input_ids"]])
        best = int(model(ids).logits[0, -1].argmax())
        end = model.config.eos_token_id
        head = model.get_output_embeddings().weight
        head[[best, end]] = head[[end, best]]
        made = model.generate(ids, max_new_tokens=20, do_sample=False)
    check(f"{name}: generate() ends", made.shape[1] == ids.shape[1] + 1 and int(made[0, -1]) == end, made.tolist())
    check(f"{name}: config.json", json.loads((folder / "config.json").read_text())["architectures"] != [])
    assert vocab >= len(tokens)
    return model


# --- routes ---------------------------------------------------------------------------------------


def gguf():
    llama(work / "llama")
    run("convert", work / "llama", "--to", "gguf", "--out", work / "llama.gguf")
    run("convert", work / "llama.gguf", "--to", "hf", "--out", work / "gguf_hf")
    ends("GGUF", work / "gguf_hf", 300)
    compare("GGUF", work / "gguf_hf", [5, 9, 100, 17, 3], opened(work / "gguf_hf", transformers.AutoModelForCausalLM))
    # by way of a folder of tessera's
    run("convert", work / "llama.gguf", "--out", work / "gguf_ours")
    run("convert", work / "gguf_ours", "--to", "hf", "--out", work / "gguf_ours_hf")
    ends("GGUF, tessera folder", work / "gguf_ours_hf", 300)


def quantized_gguf():
    run("quantize", work / "llama.gguf", "--type", "Q8_0", "--out", work / "llama-q8.gguf")
    run("convert", work / "llama-q8.gguf", "--to", "hf", "--out", work / "q8_hf")
    ends("GGUF of Q8_0", work / "q8_hf", 300)


def texts():
    (work / "text.txt").write_text(" ".join(WORDS * 200))


def merged():
    texts()
    for name, base in (("folder", work / "llama"), ("GGUF file", work / "llama.gguf")):
        out, adapter = work / f"merged_{name}", work / f"lora_{name}"
        run("finetune", base, "--data", work / "text.txt", "--lora", 4, "--steps", 3, "--out", adapter)
        run("convert", base, "--merge-adapter", adapter, "--to", "hf", "--out", out)
        ends(f"merged into a {name}", out, 300)
        compare(f"merged into a {name}", out, [5, 9, 100, 17, 3], opened(out, transformers.AutoModelForCausalLM))


def tuned():
    run("finetune", work / "llama", "--data", work / "text.txt", "--steps", 3, "--out", work / "tuned")
    run("convert", work / "tuned" / "latest", "--to", "hf", "--out", work / "tuned_hf")
    ends("a run from a folder", work / "tuned_hf", 300)
    run("finetune", work / "llama.gguf", "--data", work / "text.txt", "--steps", 3, "--out", work / "tuned_gguf")
    run("convert", work / "tuned_gguf" / "latest", "--to", "hf", "--out", work / "tuned_gguf_hf")
    ends("a run from a GGUF file", work / "tuned_gguf_hf", 300)


def from_nothing():
    recipe = {
        "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 32, "context": 64, "norm": "rms_norm",
                 "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4, "position": "rope"}}],
                 "ffn": {"type": "glu", "act": "silu", "d_hidden": 64}, "head": "linear"},
        "data": {"train": [str(work / "text.txt")], "tokenizer": "bytes", "valid_fraction": 0.1},
        "train": {"steps": 3, "batch": 2, "length": 32, "seed": 1}, "optimizer": {"type": "adamw", "lr": 1e-3},
    }  # fmt: skip
    (work / "recipe.json").write_text(json.dumps(recipe))
    run("train", work / "recipe.json", "--out", work / "bytes")
    run("convert", work / "bytes" / "latest", "--to", "hf", "--family", "llama", "--out", work / "bytes_hf")
    model = opened(work / "bytes_hf", transformers.AutoModelForCausalLM)
    tokens = transformers.AutoTokenizer.from_pretrained(work / "bytes_hf")
    text = "the user \u00fc\n12"
    check("a run of bytes: tokens", tokens(text)["input_ids"] == list(text.encode()), tokens(text)["input_ids"])
    compare("a run of bytes", work / "bytes_hf", list(text.encode()), model)


def awq():
    """A folder as AWQ writes it: codes of 4 bits, packed in its order."""
    folder = work / "awq"
    model = llama(folder)
    pack, group = [0, 2, 4, 6, 1, 3, 5, 7], 16
    tensors, rng = {}, np.random.default_rng(3)
    for name, value in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = value.numpy().astype(np.float16)
            continue
        out, inner = value.shape
        codes = rng.integers(0, 16, (inner, out))
        zeros = rng.integers(0, 16, (inner // group, out))

        def packed(rows):
            parts = rows.reshape(rows.shape[0], -1, 8)[:, :, pack].astype(np.uint32)
            return np.bitwise_or.reduce(parts << (4 * np.arange(8, dtype=np.uint32)), axis=2).astype(np.uint32).view(np.int32)

        stem = name.removesuffix("weight")
        tensors[stem + "qweight"], tensors[stem + "qzeros"] = packed(codes), packed(zeros)
        tensors[stem + "scales"] = (rng.random((inner // group, out)) / 50 + 0.01).astype(np.float16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    config.pop("dtype", None)
    config["torch_dtype"] = "float16"
    (folder / "config.json").write_text(json.dumps(config))
    run("convert", folder, "--to", "hf", "--out", work / "awq_hf")
    ends("AWQ", work / "awq_hf", 300)
    ids = [5, 9, 100, 17, 3]
    ours, back = forward(folder, [ids])["logits"], opened(work / "awq_hf", transformers.AutoModelForCausalLM)
    with torch.no_grad():
        want = back(torch.tensor([ids])).logits.float().numpy()
    check("AWQ: logits", np.abs(ours - want).max() / np.abs(want).max() < 1e-3, np.abs(ours - want).max())


def classifier():
    bert(work / "bert")
    lines = [f"the film was {w}\t{label}" for w, label in (("good", "up"), ("bad", "down"), ("not good", "down"))] * 8
    (work / "labels.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    run("finetune", work / "bert", "--data", work / "labels.tsv", "--steps", 3, "--out", work / "labels")
    out = work / "labels_hf"
    run("convert", work / "labels" / "latest", "--to", "hf", "--out", out)
    model = opened(out, transformers.AutoModelForSequenceClassification)
    check("classes of texts: class", type(model).__name__ == "BertForSequenceClassification", type(model))
    check("classes of texts: names", sorted(model.config.id2label.values()) == ["down", "up"], model.config.id2label)
    compare("classes of texts", out, transformers.AutoTokenizer.from_pretrained(out)("the film was good")["input_ids"], model)


def number():
    (work / "scores.tsv").write_text("text\tscore\n" + "\n".join(f"the film was {w}\t{s}" for w, s in (("good", 0.9), ("bad", 0.15))) + "\n")
    run("finetune", work / "bert", "--data", work / "scores.tsv", "--valid-fraction", 0, "--steps", 3, "--out", work / "scores")
    run("convert", work / "scores" / "latest", "--to", "hf", "--out", work / "scores_hf")
    model = opened(work / "scores_hf", transformers.AutoModelForSequenceClassification)
    check("numbers: one of them", model.config.num_labels == 1, model.config.num_labels)
    compare("numbers", work / "scores_hf", [2, 5, 6, 7, 3], model)


def words():
    one = {"tokens": ["the", "user", "reads", "a", "book"], "ner_tags": ["O", "B", "O", "O", "B"]}
    (work / "words.jsonl").write_text("\n".join([json.dumps(one)] * 8) + "\n")
    run("finetune", work / "bert", "--data", work / "words.jsonl", "--steps", 3, "--out", work / "words")
    run("convert", work / "words" / "latest", "--to", "hf", "--out", work / "words_hf")
    model = opened(work / "words_hf", transformers.AutoModelForTokenClassification)
    check("classes of words: names", sorted(model.config.id2label.values()) == ["B", "O"], model.config.id2label)
    compare("classes of words", work / "words_hf", [2, 5, 6, 7, 3], model)


def answers():
    one = {"context": "the user reads a book and the model writes a film", "question": "we reads", "answers": {"text": ["a book"], "answer_start": [15]}}
    (work / "answers.jsonl").write_text("\n".join([json.dumps(one | {"id": str(i)}) for i in range(8)]) + "\n")
    run("finetune", work / "bert", "--data", work / "answers.jsonl", "--steps", 3, "--out", work / "answers")
    run("convert", work / "answers" / "latest", "--to", "hf", "--out", work / "answers_hf")
    model = opened(work / "answers_hf", transformers.AutoModelForQuestionAnswering)
    compare("answers", work / "answers_hf", [2, 5, 6, 7, 3], model)


def pooling():
    """A pooling that BertForSequenceClassification cannot express is said before training, and conversion refuses it."""
    folder = work / "sentences"
    shutil.copytree(work / "bert", folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}))
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))  # fmt: skip
    _, said = run("finetune", folder, "--data", work / "labels.tsv", "--steps", 3, "--out", work / "pooled")
    check("mean pooling: said before training", "(convert --to hf)" in said and "objective.pool" in said, said)
    try:
        run("convert", work / "pooled" / "latest", "--to", "hf", "--out", work / "pooled_hf")
        check("mean pooling: refused", False)
    except RuntimeError as problem:
        check("mean pooling: refused", "objective.pool" in str(problem) and not (work / "pooled_hf").exists(), problem)
    run("finetune", folder, "--data", work / "labels.tsv", "--steps", 3, "--set", "objective.pool=null", "--out", work / "pooler")
    run("convert", work / "pooler" / "latest", "--to", "hf", "--out", work / "pooler_hf")
    compare("its pooler instead", work / "pooler_hf", [2, 5, 6, 7, 3], opened(work / "pooler_hf", transformers.AutoModelForSequenceClassification))


def chat():
    run("convert", chat_model, "--to", "hf", "--out", work / "chat")
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "chat", dtype=torch.float32).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(work / "chat")
    ids = tokens.apply_chat_template(
        [{"role": "user", "content": "Say hello."}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        made = model.generate(**ids, max_new_tokens=200, do_sample=False)[0, ids["input_ids"].shape[1] :]
    check("a chat model answers, and ends", made.shape[0] < 200 and int(made[-1]) == tokens.eos_token_id, tokens.decode(made))


for one in (gguf, quantized_gguf, merged, tuned, from_nothing, awq, classifier, number, words, answers, pooling):
    route(one)
if chat_model:
    route(chat)
print(f"{failed} failed")
sys.exit(1 if failed else 0)
