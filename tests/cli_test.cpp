// The command line as scripts see it: bad input is one clear line on stderr, the right exit code,
// nothing on stdout and nothing half-written.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <set>
#include <span>
#include <sstream>

#include <fmt/format.h>

#include "tessera/base/half.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/testing.h"
#include "tessera/format/safetensors.h"
#include "tessera/spec/json.h"
#include "cli_testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class Cli : public CliRunner {
 protected:
  /// One of positions for 64 tokens, all angles of which change after 16.
  std::string changing_angles() const {
    const fs::path goldens = kGoldens + "/phi3", made = folder_ / "changing";
    fs::create_directories(made);
    for (const char* file : {"base/model.safetensors", "rope_longrope/config.json"})
      fs::copy_file(goldens / file, made / fs::path(file).filename(),
                    fs::copy_options::overwrite_existing);
    return made.string();
  }
};

TEST_F(Cli, AnAdapterIsAppliedMergedAndWritten) {
  const std::string adapter = (kSource / "tests/golden/adapters/llama").string(),
                    other = kGoldens + "/gpt2/base";
  const format::TensorFile golden = format::open_safetensors(adapter + "/io.safetensors");
  const std::string input = (folder_ / "ids.safetensors").string(),
                    output = (folder_ / "logits.safetensors").string(),
                    made = (folder_ / "made").string(), again = (folder_ / "again").string();
  format::write_safetensors(input, std::array{golden.at("input_ids")});
  const auto expect_logits = [&](const std::string& model) {
    const Outcome outcome =
        run("forward " + model + " --input '" + input + "' --output '" + output + "'");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const format::TensorFile file = format::open_safetensors(output);
    const auto numbers = [](const format::TensorView& view) {
      return std::span(reinterpret_cast<const float*>(view.data.data()), view.data.size() / 4);
    };
    const auto found = numbers(file.at("logits")), wanted = numbers(golden.at("logits"));
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 1e-4) << model;
  };
  expect_logits("'" + tiny() + "' --adapter '" + adapter + "'");
  EXPECT_EQ(
      run("convert '" + tiny() + "' --merge-adapter '" + adapter + "' --out '" + made + "'").code,
      0);
  expect_logits("'" + made + "'");
  // a folder of one format on top of the other would be read as neither
  expect_refused("convert '" + made + "' --force --out '" + made + "'", 2,
                 "is the input folder, which is in Hugging Face format; expected another folder");
  EXPECT_EQ(
      run("convert '" + tiny() + "' --export-adapter='" + adapter + "' --out '" + again + "'").code,
      0);
  expect_logits("'" + tiny() + "' --adapter '" + again + "'");
  const std::string beside = " '" + other + "' --adapter '" + adapter + "' ";
  for (const std::string& call :
       {"generate" + beside + "--prompt a", "eval" + beside + "--text '" + input + "'",
        "forward" + beside + "--input '" + input + "' --output x", "embed" + beside + "--text a",
        "convert '" + other + "' --merge-adapter '" + adapter + "' --out x"})
    expect_refused(
        call, 2, "was trained for another model: module model.layers.0.mlp.down_proj has no place");
}

/// Letters and digits, which the tiny tokenizer knows, in no order that is soon the same again.
std::string letters(size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[i * i % 36];
  return text;
}

TEST_F(Cli, BenchQuantSaysWhatTypesCost) {
  const std::string gguf = kGoldens + "/llama/gguf/base.gguf",
                    text = folder_.write("long.txt", letters(200)),
                    bench = "bench quant '" + gguf + "' --text '" + text + "' --tokens 120 ";
  const Outcome outcome = run(bench +
                              "--window 40 --decode 4 --type F32 --type Q8_0 --type Q4_0 "
                              "--type 'Q4_0+blk.*.attn_*=q8_0' --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const spec::Json rows = spec::parse_json(outcome.out, "bench").at("rows");
  ASSERT_EQ(rows.size(), 5u);
  const auto number = [&](size_t row, const char* key) { return rows[row].at(key).get<double>(); };
  // floats are the model itself
  EXPECT_NEAR(number(1, "kl"), 0, 1e-9);
  EXPECT_EQ(number(1, "top_1"), 1);
  EXPECT_NEAR(number(1, "perplexity"), number(0, "perplexity"), 1e-5);
  // fewer bits are further away, and some more for attention brings them nearer
  EXPECT_GT(number(2, "kl"), 1e-9);
  EXPECT_GT(number(3, "kl"), 10 * number(2, "kl"));
  EXPECT_LT(number(4, "kl"), number(3, "kl"));
  EXPECT_GT(number(4, "bytes"), number(3, "bytes"));
  const auto bits = [&](size_t row, const char* kind) {
    return rows[row].at("bits_by_kind").at(kind).get<double>();
  };
  EXPECT_GT(bits(4, "attention"), bits(3, "attention"));
  EXPECT_EQ(bits(4, "feed_forward"), bits(3, "feed_forward"));
  // by the inputs of the text it is compared over, the same bits are nearer
  const Outcome calibrated =
      run(bench + "--decode 0 --calibration '" + text +
          "' --type Q4_0 --type Q4_0+importance --type Q4_0+gptq --type Q4_0+awq+gptq --json");
  ASSERT_EQ(calibrated.code, 0) << calibrated.err;
  const spec::Json by_text = spec::parse_json(calibrated.out, "bench").at("rows");
  ASSERT_EQ(by_text.size(), 5u);
  EXPECT_LT(by_text[3].at("kl"), by_text[1].at("kl"));
  EXPECT_LT(by_text[4].at("kl"), by_text[1].at("kl"));
  expect_refused(bench + "--type Q4_0+gptq", 2, "needs a text that the model reads first");
  expect_refused(bench + "--type Q4_0+act-order --calibration '" + text + "'", 2,
                 "act-order without gptq");
  const Outcome table = run(bench + "--type Q8_0 --decode 0");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_TRUE(table.out.starts_with("| type | MiB | bits |"));
  EXPECT_NE(table.out.find("| Q8_0 |"), std::string::npos);
  expect_refused(bench + "--type Q9", 2, "unknown type \"Q9\"");
  expect_refused(bench + "--type 'Q8_0+nothing*=q8_0'", 2, "matches no tensor");
  expect_refused(bench + "--type Q8_0 --work /nowhere", 1, "expected --work DIR");
}

TEST_F(Cli, TasksOfFilesAndGeneratedOnes) {
  const std::string model = "eval '" + kGoldens + "/llama/gguf/base.gguf' --task ",
                    task =
                        folder_.write("task.jsonl",
                                      "{\"query\": \"A B\", \"choices\": [\"C\", \"D\"], \"gold\": "
                                      "0}\n{\"query\": \"C D\", \"choices\": [\"A\", \"B\"], "
                                      "\"gold\": \"B\"}\n"),
                    out = (folder_ / "task.out").string();
  const auto scores = [&](const std::string& flags) {
    const Outcome outcome = run(model + flags + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "eval");
  };
  const auto file = "'" + task + "' --few-shot 1 --out '" + out + "'";
  const auto first = scores(file + " --limit 1"), whole = scores(file), again = scores(file);
  EXPECT_EQ(first["examples"], 1);
  EXPECT_EQ(whole["examples"], 2);
  EXPECT_EQ(whole["scores"]["acc"]["interval"], "wilson");
  EXPECT_EQ(again["scores"], whole["scores"]);
  EXPECT_EQ(again["prompt_tokens"], 0);
  expect_refused(model + "'" + task + "' --out '" + out + "'", 2, "few_shot = 1, here 0");
  expect_refused(model + "'" + task + "' --few-shot 2", 2,
                 "expected at most 1, the other examples");
  expect_refused(model + "'" + folder_.write("bad.jsonl", "{}") + "'", 1, "bad.jsonl:1]");

  const auto needle = scores("needle --lengths 16,24 --depths 0,1 --examples 2 --items 2");
  ASSERT_EQ(needle["cells"].size(), 4u);
  EXPECT_EQ(needle["cells"][3]["depth"], 1.0);
  EXPECT_EQ(needle["cells"][3]["length"], 24);
  EXPECT_EQ(scores("parity --lengths 16")["cells"][0]["examples"], 10);
  const std::string stored = "needle --lengths 16,24 --depths 0,1 --examples 2 --items 2 --out '" +
                             (folder_ / "needle.out").string() + "'";
  EXPECT_EQ(scores(stored)["cells"], needle["cells"]);
  EXPECT_EQ(scores(stored)["cells"], needle["cells"]);
  expect_refused(model + stored + " --seed 1", 2, "seed = 0, here 1");
  expect_refused(model + "s5", 2, "expected at least 120");
  expect_refused(model + "parity --depths 0", 2, "expected it with passkey or needle");
  expect_refused(model + "positions", 2, "expected --text FILE");
  const std::string text = folder_.write("text.txt", letters(300));
  const auto positions = scores("positions --lengths 16 --text '" + text + "'");
  EXPECT_EQ(positions["trained_length"], 16);
  EXPECT_GE(positions["lengths"].size(), 2u);
}

TEST_F(Cli, BenchmarksByName) {
  const std::string model = "eval '" + kGoldens + "/llama/gguf/base.gguf' --task ",
                    documents = folder_.write(
                        "piqa.jsonl",
                        "{\"goal\": \"A B\", \"sol1\": \"C\", \"sol2\": \"D\"}\n{\"goal\": \"C\", "
                        "\"sol1\": \"D\", \"sol2\": \"A\"}\n"),
                    labels = folder_.write("labels.lst", "0\n1\n"),
                    out = (folder_ / "piqa.out").string();
  const auto scores = [&](const std::string& flags) {
    const Outcome outcome = run(model + flags + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "eval");
  };
  const std::string piqa =
      "piqa --data '" + documents + "' --labels '" + labels + "' --out '" + out + "'";
  const auto first = scores(piqa), again = scores(piqa);
  EXPECT_EQ(first["examples"], 2);
  EXPECT_TRUE(first["scores"].contains("acc_norm"));
  EXPECT_FALSE(first["scores"].contains("acc_bytes"));
  EXPECT_EQ(again["scores"], first["scores"]);
  EXPECT_EQ(again["prompt_tokens"], 0);
  expect_refused(model + "piqa --data '" + documents + "'", 1,
                 "no \"label\"; expected a document of piqa: goal, sol1, sol2, label");
  expect_refused(model + "piqa", 2, "expected --data FILE");
  expect_refused(model + "glue:cola", 2, "without its examples; expected --data FILE");
  expect_refused(model + "nonsense", 2, "neither a task nor a file; tasks: passkey, positions");

  const std::string ruler =
      "vt --lengths 1500 --examples 2 -n 4 --out '" + (folder_ / "vt.out").string() + "'";
  const std::string run_of_bytes = (folder_ / "bytes").string();
  const Outcome trained =
      run("train " + (kSource / "examples/recipes/tiny.json").string() +
          " --set train.steps=1 --set train.eval_batches=1 --out " + run_of_bytes);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string bytes = "eval '" + run_of_bytes + "/latest' --task ";
  const auto of_bytes = [&](const std::string& flags) {
    const Outcome outcome = run(bytes + flags + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "eval");
  };
  const auto variables = of_bytes(ruler), resumed = of_bytes(ruler);
  EXPECT_EQ(variables["cells"].size(), 1u);
  EXPECT_EQ(variables["cells"][0]["answers"], 10);
  EXPECT_EQ(resumed["cells"], variables["cells"]);
  const auto queries =
      of_bytes("niah_multiquery --lengths 900,1200 --depths 0,0.5,1 --examples 1 -n 2");
  ASSERT_EQ(queries["cells"].size(), 6u);
  for (const spec::Json& cell : queries["cells"]) EXPECT_EQ(cell["answers"], 4);
  EXPECT_EQ(queries["cells"][5]["depth"], 1.0);
  expect_refused(bytes + "vt --depths 0", 2, "expected it with a task of needles");
  expect_refused(bytes + "cwe --lengths 300", 2, "expected at least");
  // the documents of questions are in a file
  const fs::path squad = folder_ / "squad.json";
  std::ofstream(squad) << R"({"data": [{"paragraphs": [{"context": "Bern is the capital.",
             "qas": [{"question": "Capital?", "answers": [{"text": "Bern"}, {"text": "b"}]}]}]}]})";
  const auto asked =
      of_bytes("qa_1 --data '" + squad.string() + "' --lengths 500,700 --examples 5 -n 2");
  ASSERT_EQ(asked["cells"].size(), 2u);
  EXPECT_EQ(asked["cells"][1]["answers"], 1);
  EXPECT_FALSE(asked["cells"][1].contains("all_found"));
  expect_refused(bytes + "qa_1", 2, "expected --data FILE, a file of SQuAD 2.0");
  expect_refused(bytes + "qa_2 --data '" + squad.string() + "' --lengths 100", 2,
                 "expected at least");
  // what its log and recipe show
  const Outcome checked = run("advise --check '" + run_of_bytes + "' --json");
  ASSERT_EQ(checked.code, 0) << checked.err;
  EXPECT_NE(checked.out.find("\"id\": \"no_warmup\""), std::string::npos) << checked.out;
  EXPECT_NE(run("advise --check '" + run_of_bytes + "'").out.find("source: arXiv:2002.04745"),
            std::string::npos);
  expect_refused("advise --check '" + run_of_bytes + "' --length 3", 2,
                 "--length excludes --check");
  expect_refused("advise --parameters 0", 2,
                 "[--parameters] found \"0\"; expected a number above 0");
}

TEST_F(Cli, LongRangeArenaIsGeneratedTrainedAndScored) {
  const std::string lists = (folder_ / "lists").string(), paths = (folder_ / "paths").string();
  const Outcome made =
      run("data --generate listops --out " + lists +
          " --examples 200 --held-out 50 --max-depth 5 --max-args 5 --min-length 16 --max-length "
          "128 --json");
  ASSERT_EQ(made.code, 0) << made.err;
  const spec::Json report = spec::parse_json(made.out, "data");
  ASSERT_EQ(report["files"].size(), 3u);
  EXPECT_EQ(report["files"][2]["examples"], 50);
  EXPECT_GT(report["files"][0]["baselines"]["root_operator"],
            report["files"][0]["baselines"]["majority"]);
  const std::string out = (folder_ / "run").string();
  const Outcome trained =
      run("train " + (kSource / "examples/recipes/lra/listops.json").string() +
          " --set train.steps=2 --set train.batch=4 --set spec.d_model=16 --set "
          "data.train='[\"" +
          lists + "/basic_train.tsv\"]' --set data.valid='[\"" + lists +
          "/basic_val.tsv\"]' --out " + out);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome scored =
      run("eval " + out + " --task lra:listops --data " + lists + "/basic_test.tsv --json");
  ASSERT_EQ(scored.code, 0) << scored.err;
  const spec::Json scores = spec::parse_json(scored.out, "eval");
  EXPECT_EQ(scores["benchmark"], "lra:listops");
  EXPECT_EQ(scores["examples"], 50);
  EXPECT_EQ(scores["intervals"]["accuracy"]["interval"], "wilson");
  EXPECT_EQ(scores["baselines"]["majority"], report["files"][2]["baselines"]["majority"]);
  EXPECT_EQ(scores["scores"].size(), 1u);
  EXPECT_EQ(run("data --generate pathfinder --out " + paths + " --examples 6 --held-out 2").code,
            0);
  EXPECT_EQ(fs::file_size(paths + "/train-images-idx3-ubyte"), 16u + 6 * 1024);
  const Outcome shown = run("data " + (kSource / "examples/recipes/lra/pathfinder.json").string() +
                            " --samples 1 --json --set data.train='[\"" + paths +
                            "/train-images-idx3-ubyte\"]' --set "
                            "data.train_labels='[\"" +
                            paths + "/train-labels-idx1-ubyte\"]' --set data.valid='[\"" + paths +
                            "/val-images-idx3-ubyte\"]' --set data.valid_labels='[\"" + paths +
                            "/val-labels-idx1-ubyte\"]'");
  ASSERT_EQ(shown.code, 0) << shown.err;
  expect_refused("data", 2, "expected RECIPE, or --generate TASK");
  expect_refused("data --generate listops", 2, "expected --out FOLDER");
}

TEST_F(Cli, StatesOfLongTexts) {
  const std::string model = "'" + kGoldens + "/llama/gguf/base.gguf'",
                    text = folder_.write("long.txt", letters(400));
  const auto eval = [&](const std::string& flags) {
    const Outcome outcome =
        run("eval " + model + " --text '" + text + "' --window 32 --carry --json" + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "eval");
  };
  const int64_t all = eval(" --kv-type f32").at("state_bytes"),
                some = eval(" --kv-type f32 --keep-last 16").at("state_bytes");
  EXPECT_EQ(some, int64_t{4 + 16} * 2 * 2 * 12 * 2 * 4);  // tokens, layers, heads, width, k and v
  EXPECT_GT(all, 2 * some);
  const Outcome shifted = run("generate " + model +
                              " --input-ids 1,2,3 --ignore-eos --max-new-tokens 100 --context 20 "
                              "--context-shift --json");
  ASSERT_EQ(shifted.code, 0) << shifted.err;
  const spec::Json row = spec::parse_json(shifted.out, "generate");
  EXPECT_EQ(row.at("token_ids").size(), 100u);
  EXPECT_GT(row.at("context_shifts").get<int64_t>(), 5);
  expect_refused("generate " + model + " --input-ids 1 --context 20 --context-shift --beams 2", 2,
                 "context shift is not available with beam search");
  expect_refused("generate " + kGoldens + "/mamba2/base --input-ids 1 --keep-last 4", 2,
                 "keeps a bounded state already");
  // heavy ones, last ones and 64 more, and a number for each key
  const int64_t heavy = eval(" --kv-type f32 --keep-last 16 --keep-heavy 8").at("state_bytes");
  EXPECT_EQ(heavy, int64_t{8 + 16 + 64} * 2 * 2 * (12 * 2 + 1) * 4);
  expect_refused("generate " + model + " --input-ids 1 --keep-heavy 4", 2, "--keep-last");
  expect_refused("generate " + model + " --input-ids 1 --keep-last 4 --keep-heavy 4 --keep-first 2",
                 2, "--keep-first");
  expect_refused("generate " + model +
                     " --input-ids 1 --keep-last 4 --keep-heavy 4 --lookup 2 "
                     "--branches 2",
                 2, "layers.0");
}

TEST_F(Cli, QuantisedFoldersAreReadByEveryVerb) {
  const std::string folders = (kSource / "tests/golden/quantized").string();
  const auto ids = [&](const std::string& name) {
    const Outcome outcome = run("generate " + folders + "/" + name +
                                " --input-ids 5,6,7 --max-new-tokens 8 --temperature 0 --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return std::pair(spec::parse_json(outcome.out, "generate").at("token_ids"), outcome.err);
  };
  const auto [packed, nothing] = ids("awq");
  EXPECT_EQ(nothing.find("float32"), std::string::npos) << nothing;
  EXPECT_NE(ids("gptq4_groups_of_16").second.find("are held in float32"), std::string::npos);
  const auto [ordered, said] = ids("gptq4_act_order");
  EXPECT_EQ(said.find("float32"), std::string::npos) << said;
  // as floats it says the same
  const std::string plain = (folder_ / "plain").string();
  const Outcome converted = run("convert " + folders + "/awq --to hf --out '" + plain + "'");
  ASSERT_EQ(converted.code, 0) << converted.err;
  EXPECT_NE(converted.err.find("written as float32"), std::string::npos) << converted.err;
  const Outcome outcome =
      run("generate '" + plain + "' --input-ids 5,6,7 --max-new-tokens 8 --temperature 0 --json");
  EXPECT_EQ(spec::parse_json(outcome.out, "generate").at("token_ids"), packed);
  // nor can a GGUF file hold blocks whose columns have another order
  const std::string floats = (folder_ / "floats.gguf").string();
  const std::string tokenizer = " --tokenizer '" + kGoldens + "/llama/gguf/base.gguf'";
  const Outcome widened =
      run("convert " + folders + "/gptq4_act_order --to gguf" + tokenizer + " --out " + floats);
  ASSERT_EQ(widened.code, 0) << widened.err;
  EXPECT_NE(widened.err.find("written as float32"), std::string::npos) << widened.err;
  const Outcome from_file =
      run("generate " + floats + " --input-ids 5,6,7 --max-new-tokens 8 --temperature 0 --json");
  EXPECT_EQ(spec::parse_json(from_file.out, "generate").at("token_ids"), ordered);
  expect_refused("quantize " + folders + "/awq --type Q4_0 --tokenizer '" + kGoldens +
                     "/llama/gguf/base.gguf' --out x",
                 2, "rounded a second time");
}

TEST_F(Cli, QuantizeWritesWhatOthersRead) {
  const std::string gguf = kGoldens + "/llama/gguf/base.gguf";
  const std::string whole = (folder_ / "whole.gguf").string();
  const std::string out = (folder_ / "q.gguf").string();
  const std::string imatrix = (folder_ / "imatrix.gguf").string();
  const std::string text = (folder_ / "text.txt").string();
  write_file_atomically(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEFGHIJ");
  // a folder becomes a file, and a file one of other types
  ASSERT_EQ(
      run("convert '" + tiny() + "' --to gguf --tokenizer '" + gguf + "' --out '" + whole + "'")
          .code,
      0);
  const std::string eval = " --text '" + text + "' --json";
  const auto perplexity = [&](const std::string& model) {
    const Outcome outcome = run("eval '" + model + "'" + eval);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "eval").at("perplexity").get<double>();
  };
  const double before = perplexity(gguf);
  EXPECT_NEAR(perplexity(whole), before, 1e-6 * before);
  const Outcome plain = run("quantize '" + whole + "' --type q8_0 --json --out '" + out + "'");
  ASSERT_EQ(plain.code, 0) << plain.err;
  const spec::Json report = spec::parse_json(plain.out, "quantize");
  EXPECT_LT(report.at("bytes"), report.at("bytes_before"));
  EXPECT_NEAR(perplexity(out), before, 0.02 * before);
  // what was measured is what was saved
  const std::string weighted = (folder_ / "weighted.gguf").string();
  const std::string again = (folder_ / "again.gguf").string();
  const std::string q4 = "quantize '" + whole + "' --type q4_0 --rule 'blk.0.*_norm.weight=f16' ";
  ASSERT_EQ(run(q4 + "--importance '" + text + "' --save-imatrix '" + imatrix + "' --out '" +
                weighted + "'")
                .code,
            0);
  ASSERT_EQ(run(q4 + "--imatrix '" + imatrix + "' --out '" + again + "'").code, 0);
  EXPECT_EQ(read_text_file(weighted), read_text_file(again));
  ASSERT_EQ(run(q4 + "--force --out '" + again + "'").code, 0);
  EXPECT_NE(read_text_file(weighted), read_text_file(again));
  // by what the text makes of inputs: further bytes, the same of every number of threads
  std::set<std::string> seen = {read_text_file(weighted), read_text_file(again)};
  for (const char* method : {"gptq", "gptq --act-order", "awq", "awq+gptq"}) {
    SCOPED_TRACE(method);
    const std::string calibrated =
        q4 + "--importance '" + text + "' --calibrate " + method + " --threads ";
    const Outcome outcome = run(calibrated + "1 --force --out '" + again + "'");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string bytes = read_text_file(again);
    EXPECT_TRUE(seen.insert(bytes).second);
    EXPECT_NEAR(perplexity(again), before, 0.2 * before);
    ASSERT_EQ(run(calibrated + "3 --force --out '" + again + "'").code, 0);
    EXPECT_EQ(read_text_file(again), bytes);
  }
  expect_refused("quantize '" + whole + "' --type Q4_0 --calibrate gptq --out x", 2,
                 "--calibrate requires --importance");
  expect_refused(
      "quantize '" + whole + "' --type Q4_0 --importance '" + text + "' --calibrate gpt --out x", 2,
      "gptq");
  expect_refused(q4 + "--act-order --out x", 2, "--act-order requires --calibrate");

  expect_refused("quantize '" + out + "' --type Q4_0 --out x", 2, "rounded a second time");
  expect_refused("quantize '" + whole + "' --type Q4_0", 2,
                 "--out FILE is missing (or use --dry-run");
  expect_refused("quantize '" + whole + "' --type Q4 --out x", 2,
                 "unknown type \"Q4\"; known: F32");
  expect_refused("quantize '" + whole + "' --type Q4_0 --rule a --out x", 2, "expected NAMES=TYPE");
  expect_refused("quantize '" + whole + "' --type Q4_0 --imatrix '" + gguf + "' --out x", 1,
                 "expected a file of importance");
  expect_refused("quantize '" + tiny() + "' --type Q4_0 --out x", 1, "no tokenizer.json");
  expect_refused("convert '" + kGoldens + "/zamba2/base' --to gguf --out x", 2,
                 "this architecture has no GGUF export");
}

/// From a file of labels to a model that judges texts.
TEST_F(Cli, FinetuneGuessesAndClassifyUsesWhatItMade) {
  std::string table = "sentence\tmood\n";
  for (int i = 0; i < 40; ++i)
    table += fmt::format("{}{}{}\t{}\n", static_cast<char>('a' + i % 5), i % 2 == 0 ? 'x' : 'y',
                         static_cast<char>('a' + i % 3), i % 2 == 0 ? "glad" : "sad");
  const std::string data = (folder_ / "a.tsv").string(), out = (folder_ / "run").string();
  std::ofstream(data) << table;
  const std::string recipe = (folder_ / "bytes.json").string();
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'x');
  std::ofstream(recipe)
      << R"({"spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16,
      "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
      "ffn": {"type": "glu", "d_hidden": 32}, "layers": [{"repeat": 1}]},
      "data": {"train": ["text.txt"]}, "train": {"steps": 1, "batch": 1, "length": 8}})";
  const std::string base = (folder_ / "base").string();
  ASSERT_EQ(run("train " + recipe + " --out " + base).code, 0);

  const std::string call = "finetune " + base + " --data " + data + " --label mood";
  const Outcome printed = run(call + " --recipe");
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_NE(printed.err.find("classification of \"sentence\" by \"mood\""), std::string::npos)
      << printed.err;
  EXPECT_EQ(spec::parse_json(printed.out, "stdout")["objective"]["labels"],
            (spec::Json{"glad", "sad"}));
  expect_refused("finetune " + base + " --data " + data + " --out x", 2, "no column for the label");
  expect_refused(call, 2, "--out FOLDER is missing");

  const Outcome made = run(call + " --lr 0.02 --steps 60 --out " + out + " --json");
  ASSERT_EQ(made.code, 0) << made.err;
  const spec::Json told = spec::parse_json(made.out, "stdout");
  EXPECT_EQ(told["scores"]["accuracy"], 1.0) << made.out;
  EXPECT_TRUE(fs::exists(out + "/finetune.json"));
  // the best checkpoint and the last, each with its scores
  EXPECT_LE(told["best"]["valid_loss"].get<double>(), told["last"]["valid_loss"].get<double>());
  EXPECT_EQ(told["last"]["step"], 60);
  EXPECT_EQ(told["checkpoint"], fmt::format("{}/step-{}", out, told["best"]["step"].dump()));
  EXPECT_EQ(fs::read_symlink(out + "/best").string(), "step-" + told["best"]["step"].dump());
  EXPECT_TRUE(fs::exists(out + "/best/model.safetensors"));
  // the run's folder is a model: its best checkpoint
  const Outcome whole = run("classify " + out + " --text bxc --json");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(spec::parse_json(whole.out, "stdout")[0]["label"], "glad");
  EXPECT_EQ(run("show " + out).code, 0);
  EXPECT_NE(run("plan " + out).err.find(out + ": its best checkpoint, step-"), std::string::npos);
  EXPECT_NE(run("plan " + base).err.find(base + ": its newest checkpoint, step-1"),
            std::string::npos);
  // a labelled file is scored with the model's own classes
  const Outcome scored = run("eval " + out + " --data " + data + " --label-key mood --json");
  ASSERT_EQ(scored.code, 0) << scored.err;
  const spec::Json scores = spec::parse_json(scored.out, "stdout");
  EXPECT_EQ(scores["task"], "classification");
  EXPECT_EQ(scores["examples"], 40);
  EXPECT_EQ(scores["scores"]["accuracy"], 1.0);
  EXPECT_EQ(scores["scores"]["f1"], 1.0);
  const std::string other = folder_.write("other.tsv", "sentence\tmood\nab\tangry\n");
  expect_refused("eval " + out + " --label-key mood --data " + other, 1,
                 "class \"angry\" is unknown");
  expect_refused("eval " + base + " --label-key mood --data " + data, 2,
                 "has the head \"tied\", which gives no classes");
  expect_refused("eval " + out, 2,
                 "expected --text FILE, --data FILE with labelled examples, or --task NAME|FILE");
  // errors and hints name the verb and its own options
  const std::string unknown = folder_.write("unknown.tsv", "foo\tbar\nab\tglad\n");
  expect_refused("eval " + out + " --data " + unknown, 2, "[eval] no column for the text");
  expect_refused("eval " + out + " --data " + unknown, 2, "name it with --text-key NAME");
  expect_refused("eval " + out + " --text-key foo --data " + unknown, 2,
                 "name it with --label-key NAME");
  expect_refused("eval " + out + " --text-key x --data " + unknown, 2, "[eval] --text-key x");
  expect_refused("finetune " + base + " --text x --out x --data " + unknown, 2,
                 "[finetune] --text x");
  EXPECT_NE(run("eval " + out + " --data " + data + " --label mood")
                .err.find("(--task, --text-key, --text-b-key, --label-key)"),
            std::string::npos);
  const Outcome judged = run("classify " + out + "/latest --text bxc --text ayb --json");
  ASSERT_EQ(judged.code, 0) << judged.err;
  const spec::Json report = spec::parse_json(judged.out, "stdout");
  EXPECT_EQ(report[0]["label"], "glad");
  EXPECT_EQ(report[1]["label"], "sad");
  const Outcome line = run("classify " + out + "/latest --text bxc --top 2");
  EXPECT_EQ(line.out.substr(0, 5), "glad\t") << line.out;
  EXPECT_NE(line.out.find("\tsad\t"), std::string::npos) << line.out;
  expect_refused("classify " + base + "/latest --text a", 2, "this model has the head \"tied\"");
}

// an untrained checkpoint is a model for every verb, with the values that a run begins with
/// The last line of `finetune` is a command, and works as it is printed.
TEST_F(Cli, FinetunesAndScoresBenchmarks) {
  const std::string base = (folder_ / "base").string();
  ASSERT_EQ(run("train " + (kSource / "examples/recipes/tiny.json").string() +
                " --set train.steps=1 --set train.eval_batches=1 --out " + base)
                .code,
            0);
  std::string sst = "sentence\tlabel\n", copa;
  for (int i = 0; i < 30; ++i) {
    sst += fmt::format("{}{}\t{}\n", static_cast<char>('a' + i % 5), i % 3 == 0 ? 'x' : 'y',
                       i % 3 == 0 ? 1 : 0);
    copa += spec::Json{{"premise", std::string(1, static_cast<char>('a' + i % 7))},
                       {"choice1", i % 2 == 0 ? "x" : "y"},
                       {"choice2", i % 2 == 0 ? "y" : "x"},
                       {"question", i % 5 < 2 ? "cause" : "effect"},
                       {"label", i % 2},
                       {"idx", i}}
                .dump() +
            "\n";
  }
  const std::string train = folder_.write("train.tsv", sst), out = (folder_ / "sst2").string();
  const auto tuned = [&](const std::string& task, const std::string& data, const std::string& to) {
    const Outcome made = run("finetune " + base + "/latest --task " + task + " --data " + data +
                             " --steps 2 --lr 0.01 --out " + to);
    EXPECT_EQ(made.code, 0) << made.err;
    return made;
  };
  const auto scored = [&](const std::string& flags) {
    const Outcome outcome = run("eval " + flags + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "eval");
  };
  EXPECT_NE(tuned("SST-2", train, out).err.find("2 classes: negative, positive"),
            std::string::npos);
  const spec::Json own = scored(out + "/latest --task glue:sst2 --data " + train),
                   plain = scored(out + "/latest --data " + train);
  EXPECT_EQ(own["benchmark"], "glue:sst2");
  EXPECT_EQ(own["scores"], (spec::Json{{"accuracy", plain["scores"]["accuracy"]}}));
  EXPECT_EQ(own["intervals"]["accuracy"]["value"], plain["scores"]["accuracy"]);
  EXPECT_EQ(plain["intervals"]["matthews"]["interval"], "bootstrap");
  // an interrupted evaluation continues from its stored logits, here the first of four model calls
  const std::string stored = (folder_ / "sst2.out").string(),
                    resumed = out + "/latest --task glue:sst2 --batch 8 --data " + train +
                              " --out " + stored;
  const spec::Json whole = scored(resumed);
  EXPECT_EQ(whole["scores"], own["scores"]);
  std::string lines = read_text_file(stored);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5);
  lines.resize(lines.find('\n', lines.find('\n') + 1) + 1);
  std::ofstream(stored, std::ios::trunc) << lines;
  EXPECT_NE(run("eval " + resumed).err.find("1 of 4 model calls from"), std::string::npos);
  EXPECT_EQ(scored(resumed), whole);
  expect_refused(
      "eval " + out + "/latest --task glue:sst2 --batch 4 --data " + train + " --out " + stored, 2,
      "holds results of another evaluation: batch = 8, here 4");
  expect_refused("eval " + out + "/latest --task rte --data " +
                     folder_.write("rte.tsv",
                                   "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t"
                                   "entailment\n"),
                 2, "has the classes negative, positive; glue:rte has entailment, not_entailment");
  // a head with numbers has the classes in their order
  const std::string numbers = (folder_ / "numbers").string();
  ASSERT_EQ(
      run("finetune " + base + "/latest --data " + train + " --steps 2 --out " + numbers).code, 0);
  EXPECT_EQ(scored(numbers + "/latest --task sst2 --data " + train)["scores"]["accuracy"],
            scored(numbers + "/latest --data " + train)["scores"]["accuracy"]);

  const std::string questions = folder_.write("copa.jsonl", copa),
                    choices = (folder_ / "copa").string();
  tuned("superglue:copa", questions, choices);
  const spec::Json of_choices =
      scored(choices + "/latest --task superglue:copa --data " + questions);
  EXPECT_EQ(of_choices["examples"], 60);
  EXPECT_EQ(of_choices["scores"].size(), 1u);
  EXPECT_EQ(of_choices["intervals"]["choice_accuracy"]["interval"], "wilson");
}

TEST_F(Cli, FinetunePrintsACommandThatRuns) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "once upon a time there was a king who lived in a land\n";
  folder_.write("text.txt", text);
  const std::string tokens = (folder_ / "tokens").string();
  const Outcome learnt =
      run("train-tokenizer " + (folder_ / "text.txt").string() + " --vocab 300 --json --out " +
          tokens + " --special '<|im_start|>' --special '<|im_end|>'");
  ASSERT_EQ(learnt.code, 0) << learnt.err;
  const auto model = [&](const std::string& name, int64_t vocab, const std::string& tokenizer) {
    spec::Json recipe = spec::parse_json(R"({
        "spec": {"tessera": 1, "arch": "decoder", "d_model": 16,
                 "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
                 "ffn": {"type": "glu", "d_hidden": 32}, "layers": [{"repeat": 1}]},
        "data": {"train": ["text.txt"]}, "train": {"steps": 1, "batch": 1, "length": 8}})",
                                         "recipe");
    recipe["spec"]["vocab"] = vocab;
    recipe["data"]["tokenizer"] = tokenizer;
    const std::string out = (folder_ / name).string();
    const Outcome made =
        run("train " + folder_.write(name + ".json", recipe.dump()) + " --out " + out);
    EXPECT_EQ(made.code, 0) << made.err;
    return out;
  };
  const std::string bytes = model("bytes", 256, "bytes"),
                    words =
                        model("words", spec::parse_json(learnt.out, "stdout")["tokens"], tokens);
  int n = 0;
  // the verb of the command, and the run's folder
  const auto tried = [&](const std::string& base, const std::string& name,
                         const std::string& header, const std::vector<std::string>& lines,
                         const std::string& more = "") {
    std::string content = header;
    for (size_t i = 0; i < 20; ++i) content += lines[i % lines.size()] + "\n";
    // a name that a shell would take apart
    const std::string out = (folder_ / fmt::format("run {}", n++)).string();
    const Outcome made = run("finetune '" + base + "' --steps 1 --data " +
                             folder_.write(name, content) + " --out '" + out + "'" + more);
    EXPECT_EQ(made.code, 0) << made.err;
    const std::string mark = "tessera ";
    const size_t at = made.out.find("run it");
    const size_t begin = at == std::string::npos ? at : made.out.find(mark, at);
    if (begin == std::string::npos) {
      ADD_FAILURE() << made.out;
      return std::pair(std::string(), out);
    }
    const std::string command =
        made.out.substr(begin + mark.size(), made.out.find('\n', begin) - begin - mark.size());
    EXPECT_NE(command.find(out), std::string::npos) << command;
    // a chat ends with its input
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.err;
    return std::pair(command.substr(0, command.find(' ')), out);
  };
  const auto verb = [&](const auto&... how) { return tried(how...).first; };
  EXPECT_EQ(verb(bytes, "a.txt", "", std::vector{text.substr(0, text.find('\n'))}), "generate");
  const std::vector<std::string> labelled = {"good\tup", "bad\tdown"},
                                 answers = {R"({"prompt": "a", "completion": "b"})"};
  EXPECT_EQ(verb(bytes, "a.tsv", "text\tlabel\n", labelled), "classify");
  EXPECT_EQ(verb(bytes, "c.tsv", "query\tpositive\n", labelled), "embed");
  // a pretrained ViT gets a head for the classes of a list of images
  folder_.write("a.pgm", "P2 2 2 9  9 9 0 0");
  folder_.write("b.pgm", "P2 2 2 9  9 0 9 0");
  const std::vector<std::string> images = {"a.pgm,lying", "b.pgm,standing"};
  EXPECT_EQ(verb(kGoldens + "/vit/base", "list.csv", "file_name,label\n", images), "eval");
  EXPECT_EQ(verb(bytes, "pc.jsonl", "", answers), "generate");
  EXPECT_EQ(verb(bytes, "pc.jsonl", "", answers, " --lora 2"), "generate");
  const std::vector<std::string> talk = {
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"};
  const std::vector<std::string> better = {
      R"({"prompt": [{"role": "user", "content": "a"}], )"
      R"("chosen": [{"role": "assistant", "content": "b"}], )"
      R"("rejected": [{"role": "assistant", "content": "c"}]})"};
  // a model of bytes has no place for a template
  EXPECT_EQ(verb(bytes, "chat.jsonl", "", talk), "generate");
  EXPECT_EQ(verb(words, "dpo.jsonl", "", better), "chat");
  const auto [chat, talker] = tried(words, "chat.jsonl", "", talk);
  EXPECT_EQ(chat, "chat");
  // an adapter brings its template to the model, whose tokenizer has none, and into a merged one
  EXPECT_NE(run("chat " + words).err.find("chat template"), std::string::npos);
  const auto [beside, adapter] = tried(words, "chat.jsonl", "", talk, " --lora 2");
  EXPECT_EQ(beside, "chat");
  const std::string merged = (folder_ / "merged").string();
  const Outcome sum =
      run("convert " + words + " --merge-adapter '" + adapter + "' --out " + merged);
  EXPECT_EQ(sum.code, 0) << sum.err;
  EXPECT_EQ(run("chat " + merged).code, 0);
  EXPECT_EQ(verb(talker, "dpo.jsonl", "", better), "chat");
}

/// Of a run that is resumed with another recipe, and of an adapter in place of a model.
TEST_F(Cli, FinetuneGoesOnOrChangesNothing) {
  folder_.write("text.txt", std::string(2000, 'x'));
  const std::string recipe = folder_.write(
      "bytes.json", R"({"spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16,
      "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
      "ffn": {"type": "glu", "d_hidden": 32}, "layers": [{"repeat": 1}]},
      "data": {"train": ["text.txt"]}, "train": {"steps": 1, "batch": 1, "length": 8}})");
  const std::string base = (folder_ / "base").string(), out = (folder_ / "run").string();
  ASSERT_EQ(run("train " + recipe + " --out " + base).code, 0);
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += R"({"prompt": "a", "completion": "b"})"
             "\n";
  const std::string call =
      "finetune " + base + " --lora 2 --data " + folder_.write("pc.jsonl", lines) + " --out " + out;
  ASSERT_EQ(run(call + " --steps 2").code, 0);
  const std::string before = read_text_file(out + "/finetune.json");
  expect_complaint(run(call + " --steps 4 --lr 0.5 --resume"), 2, "\"optimizer.lr\" differs");
  EXPECT_EQ(read_text_file(out + "/finetune.json"), before);
  const Outcome longer = run(call + " --steps 4 --resume --json");
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_NE(longer.err.find("train.steps = 4 instead of 2"), std::string::npos) << longer.err;
  EXPECT_EQ(spec::parse_json(longer.out, "stdout")["last"]["step"], 4);
  EXPECT_EQ(spec::read_json_file(out + "/finetune.json")["train"]["steps"], 4);

  const std::string next =
      "finetune " + out + " --steps 1 --data " + (folder_ / "pc.jsonl").string();
  expect_refused(next + " --out " + (folder_ / "next").string(), 2,
                 fmt::format("tessera convert {} --merge-adapter {} --out MERGED", base, out));
  expect_refused(next + " --out " + (folder_ / "next").string(), 2, "--resume --steps N");
  // and what it names works
  const std::string merged = (folder_ / "merged").string();
  const Outcome sum = run("convert " + base + " --merge-adapter " + out + " --out " + merged);
  ASSERT_EQ(sum.code, 0) << sum.err;
  EXPECT_EQ(run("finetune " + merged + " --steps 1 --data " + (folder_ / "pc.jsonl").string() +
                " --out " + (folder_ / "next").string())
                .code,
            0);

  lines += R"({"prompt": "a", "completion": "c", "label": false})"
           "\n";
  expect_refused(
      "finetune " + base + " --steps 1 --out x --data " + folder_.write("kto.jsonl", lines), 1,
      "unpaired preferences (KTO) are not supported");
}

TEST_F(Cli, InitMakesAnUntrainedCheckpoint) {
  const std::string spec = R"({"tessera": 1, "arch": "decoder", "vocab": 257, "d_model": 16,
      "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
      "ffn": {"type": "glu", "d_hidden": 32}, "layers": [{"repeat": 2}], "head": "tied"})",
                    file = folder_.write("spec.json", spec), out = (folder_ / "fresh").string();
  const Outcome made = run("init " + file + " --seed 7 --out " + out);
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find("seed 7, tokenizer bytes"), std::string::npos) << made.out;
  EXPECT_EQ(run("generate " + out + " --prompt ab --max-new-tokens 2").code, 0);
  // its metadata name the tokenizer, which stands in no file
  const std::string bytes = run("tokenize bytes --text ab").out;
  EXPECT_EQ(run("tokenize " + out + " --text ab").out, bytes);
  EXPECT_EQ(run("tokenize " + out + "/model.safetensors --text ab").out, bytes);
  const std::string text = folder_.write("text.txt", std::string(600, 'x'));
  EXPECT_EQ(run("verify " + out + " --text " + text).code, 0);
  expect_refused("init " + file + " --out " + out, 2,
                 "expected a new or empty folder, or --force to write into it");
  // those of a run whose seed is the same, before its first update
  const std::string recipe =
      folder_.write("recipe.json", R"({"spec": "spec.json", "data": {"train": ["text.txt"]},
                         "optimizer": {"lr": 0, "weight_decay": 0},
                         "train": {"steps": 1, "batch": 1, "length": 8, "seed": 7}})");
  ASSERT_EQ(run("train " + recipe + " --out " + (folder_ / "run").string()).code, 0);
  const auto own = format::open_safetensors(out + "/model.safetensors"),
             trained = format::open_safetensors(folder_ / "run/latest/model.safetensors");
  ASSERT_EQ(own.tensors().size(), trained.tensors().size());
  for (const format::TensorView& tensor : own.tensors())
    EXPECT_TRUE(std::ranges::equal(tensor.data, trained.at(tensor.name).data)) << tensor.name;
  // an encoder of images has no tokenizer
  const std::string image =
      folder_.write("vit.json", R"({"tessera": 1, "arch": "encoder", "vocab": 1,
      "d_model": 16, "norm": "layer_norm",
      "embed": {"type": "patches", "channels": 3, "patch": 4, "height": 8, "width": 8,
                "class_token": "first", "position": {"type": "learned", "n_positions": 5}},
      "layers": [{"mixer": {"type": "attention", "n_heads": 2}}],
      "ffn": {"type": "mlp", "d_hidden": 16},
      "heads": [{"type": "pooler", "of": "first"}, {"type": "classifier", "n_labels": 3}]})");
  const std::string vit = (folder_ / "vit").string();
  ASSERT_EQ(run("init " + image + " --out " + vit).code, 0);
  EXPECT_EQ(run("plan " + vit).code, 0);
}

// bad data are one line before the first step, and leave no folder
TEST_F(Cli, DataThatCannotBeLearntFromLeaveNothingBehind) {
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'x');
  const std::string spec = R"("tessera": 1, "vocab": 258, "d_model": 16,
      "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
      "ffn": {"type": "glu", "d_hidden": 32})",
                    train = R"("train": {"steps": 1, "batch": 1, "length": 8})";
  const auto recipe = [&](const std::string& name, const std::string& own,
                          const std::string& data) {
    return folder_.write(
        name, fmt::format(R"({{"spec": {{{}, {}}}, "data": {{{}}}, {}}})", spec, own, data, train));
  };
  const std::string
      decoder = R"("arch": "decoder", "layers": [{}])",
      pair = R"("arch": "encoder_decoder", "cross": {"type": "cross_attention", "n_heads": 2},
      "stacks": {"encoder": {"layers": [{}]}, "decoder": {"layers": [{}]}})",
      base = (folder_ / "base").string(), out = (folder_ / "deep/er/run").string();
  ASSERT_EQ(
      run("train " + recipe("base.json", decoder, R"("train": ["text.txt"])") + " --out " + base)
          .code,
      0);
  const auto refused = [&](const std::string& arguments, const std::string& words) {
    const Outcome outcome = run(arguments + " --out " + out);
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    const size_t last = outcome.err.rfind('\n', outcome.err.size() - 2);
    EXPECT_EQ(outcome.err.find("tessera: [", last == std::string::npos ? 0 : last + 1),
              last == std::string::npos ? 0 : last + 1)
        << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "deep")) << arguments;
  };
  const auto table = [&](const std::string& name, const std::string& text) {
    return "finetune " + base + " --steps 1 --label mood --data " + folder_.write(name, text);
  };
  std::string good = "text\tmood\n";
  for (int i = 0; i < 20; ++i) good += i % 2 == 0 ? "ab\tglad\n" : "ba\tsad\n";
  refused(table("missing.tsv", good + "ab\t\n"), "missing.tsv: line 22: \"mood\" is empty");
  refused(table("short.tsv", good + "ab\n"), "short.tsv: line 22: 1 cells; expected 2");
  refused(table("blank.tsv", good + "\nab\tglad\n"), "blank.tsv: line 22: an empty line");
  refused(table("empty.tsv", ""), "empty.tsv: the file is empty");
  refused("finetune " + base + " --steps 1 --data " + (folder_ / "nowhere.tsv").string(),
          "nowhere.tsv");
  refused(table("learn.tsv", good) + " --valid " +
              folder_.write("valid.tsv", "text\tmood\nab\tangry\n"),
          "valid.tsv: line 2: class \"angry\" is unknown");
  refused("finetune " + base + " --steps 1 --data " + folder_.write("a.txt", "one\ntwo\nthree\n") +
              " --labels " + folder_.write("a.labels", "x\ny\n"),
          "a.labels: 2 labels; expected 3");
  refused("train " + recipe("nowhere.json", decoder, R"("train": ["nowhere.txt"])"), "nowhere.txt");
  folder_.write("half.jsonl", "{\"in\": \"a\", \"out\": \"b\"}\n{\"in\": \"a\"}\n");
  refused("train " + recipe("half.json", pair,
                            R"("train": ["half.jsonl"], "format": "jsonl", "source_key": "in",
                               "text_key": "out")"),
          "half.jsonl: line 2");
  folder_.write(
      "chat.jsonl",
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "123456789"}]})"
      "\n");
  refused("train " + recipe("chat.json", decoder, R"("train": ["chat.jsonl"], "format": "jsonl")") +
              R"( --set 'objective={"type": "chat", "format": "chatml"}')",
          "no conversation; expected at least one: 1 conversation skipped");
  // a text that is too long is cut, which is said
  folder_.write("long.jsonl", "{\"in\": \"a\", \"out\": \"123456789\"}\n");
  const Outcome cut = run("train " +
                          recipe("long.json", pair,
                                 R"("train": ["long.jsonl"], "format": "jsonl", "source_key": "in",
                               "text_key": "out")") +
                          " --out " + out);
  EXPECT_EQ(cut.code, 0) << cut.err;
  EXPECT_NE(
      cut.err.find("of 1 train pairs 0 sources and 1 targets are longer than train.length = 8"),
      std::string::npos)
      << cut.err;
}

TEST_F(Cli, HelpOfEveryVerbHasExamples) {
  EXPECT_EQ(run("--help").code, 0);
  const char* const verbs[] = {
#define TESSERA_PLAIN_VERB(name, typed, group, summary) typed,
#define TESSERA_TENSOR_VERB(name, typed, group, summary) typed,
#define TESSERA_SPLIT_VERB(name, typed, group, summary, add) typed,
#include "tessera/cli/verbs.def"
  };
  for (const char* verb : verbs) {
    const Outcome help = run(std::string(verb) + " --help");
    EXPECT_EQ(help.code, 0) << verb << help.err;
    EXPECT_NE(help.out.find("Examples:"), std::string::npos) << verb;
  }
}

TEST_F(Cli, UsageErrors) {
  expect_refused("frobnicate", 2, "[tessera] there is no verb \"frobnicate\"; `tessera --help`");
  expect_refused("generat x", 2, "did you mean \"generate\"?");
  expect_refused("plan", 2, "[plan] spec is required; see `tessera plan --help`");
  expect_refused("plan bytes --context -1", 2, "-1; expected a number from 0");
  expect_refused("plan bytes --context 99999999999999999999", 2, "up to 2^40");
  expect_refused("plan bytes --snapshot-every 0", 2, "0; expected a number above 0");
  expect_refused("bench mixers --limit x", 2, "[bench mixers] --limit: x; expected a number");
  expect_refused("tokenize bytes --decode --ids 1,260", 1, "no token has id 260");
  expect_refused("generate " + tiny(), 2, "--prompt");
  expect_refused("generate " + tiny() + " --input-ids 1,2 --temperature -1", 2,
                 "temperature = -1; expected 0 (greedy) or more");
  for (const std::string bad : {"x", "1.5", "-", "-2", "18446744073709551616"})
    expect_refused("generate " + tiny() + " --input-ids 1,2 --seed " + bad, 2,
                   "expected a whole number up to 2^64 - 1, or -1 for a new seed");
  expect_refused("generate " + tiny() + " --input-ids ''", 2, "--input-ids: ; expected a number");
  for (const std::string bad : {"1,2,,3", ",1", "1,", "1,-2", "1,x"})
    expect_refused("generate " + tiny() + " --input-ids " + bad, 2,
                   "--input-ids: " + bad + "; expected a number");
  expect_refused("tokenize bytes --decode --ids 1,,2", 2, "--ids: 1,,2; expected a number");
  expect_refused("generate " + tiny() + " --input-ids 1 --beams 1025", 2,
                 "1025; expected a whole number from 1 to 1024");
  expect_refused("generate " + tiny() + " --input-ids 1 --min-new-tokens 9 -n 5", 2,
                 "--min-new-tokens 9 is more than --max-new-tokens 5");
  expect_refused("tokenize bytes", 2, "--text");
  // not a number is in no range
  for (const char* bad : {"nan", "-NAN", "1.5", "0.5x"})
    expect_refused("eval --ngram 2 --text x --train-fraction " + std::string(bad), 2,
                   "expected a number from 0 to 1");
  expect_refused("generate " + tiny() + " --input-ids 1 --beams 2 --length-penalty nan", 2,
                 "nan; expected a finite number");
  expect_refused("generate " + tiny() + " --input-ids 1 --beams 2 --length-penalty inf", 2,
                 "inf; expected a finite number");
  expect_refused("generate " + tiny() + " --input-ids 1 --temperature 1 --top-p nan", 2,
                 "top_p = nan");
  expect_refused("verify " + tiny() + " --bound nan", 2, "expected a number from 0");
  expect_refused("convert " + tiny() + " --out x --kv-heads nan", 2, "expected a number above 0");
  expect_refused("convert " + tiny() + " --out x --kv-heads 1 --pool random --seed -1", 2,
                 "-1; expected a whole number");
}

TEST_F(Cli, ListNamesEverythingWithItsPaper) {
  const std::map<std::string, std::string> names{
      {"pattern",
       "full window chunked sink_window longformer big_bird strided fixed random dilated prefix"},
      {"mixer",
       "attention latent_attention multi_level_attention differential_attention "
       "native_sparse_attention lsh_attention local_attention linformer performer linear_attention "
       "gau flash_gau transformer_xl compressive memorizing fourier short_conv s4 s4d mamba mamba2 "
       "rwkv4 rwkv5 rwkv6 rwkv7 retention gla hgrn2 delta_net gated_delta_net kda "
       "lightning_attention mlstm slstm rg_lru hyena gmlp"},
      {"position",
       "sinusoidal learned axial t5 shaw xl deberta tupe decoupled rope p_rope m_rope xpos alibi "
       "none cope fire kerple convolutional"},
      {"rope_scaling", "linear ntk dynamic yarn llama3 longrope"},
      {"residual", "reversible"},
      {"ffn", "chunked"},
      {"arrangement", "alternating_patterns factorised_heads encoder encoder_decoder"},
      {"computation",
       "flash_attention chunked_attention split_kv_decoding ring_attention striped_attention "
       "beam_search"},
      {"storage", "paged_kv int8_kv fp8_kv int4_kv"}};
  std::map<std::string, std::string> papers;
  for (const spec::Json& row : spec::parse_json(run("list mechanisms --json").out, "list --json")) {
    const spec::Json& group = row["slot"].is_null() ? row["group"] : row["slot"];
    papers[group.get<std::string>() + " " + row["type"].get<std::string>()] = row["paper"];
  }
  const std::string text = run("list mechanisms").out;
  for (const auto& [group, all] : names) {
    std::istringstream words(all);
    for (std::string name; words >> name;) {
      const std::string paper = papers[group + " " + name];
      EXPECT_NE(paper.find("arXiv:"), std::string::npos) << group << " " << name << ": " << paper;
      EXPECT_NE(text.find(fmt::format("\n{:<13} {:<12} ", group, name)), std::string::npos) << name;
      EXPECT_NE(text.find("[" + paper + "]\n"), std::string::npos) << name;
    }
  }
}

TEST_F(Cli, ListsFamiliesWithClassGgufNameAndSizes) {
  std::map<std::string, spec::Json> rows;
  for (const spec::Json& row : spec::parse_json(run("list families --json").out, "list --json"))
    rows[row.at("family").get<std::string>()] = row;
  const auto classes = [&](const char* family) { return rows.at(family).at("class").dump(); };
  EXPECT_EQ(classes("gpt2"), R"(["decoder"])");
  EXPECT_EQ(classes("t5"), R"(["encoder-decoder"])");
  EXPECT_EQ(rows.at("bert").at("class").front(), "encoder");
  EXPECT_EQ(rows.at("llama").at("class").front(), "decoder");
  EXPECT_EQ(rows.at("deepseek_v3").at("gguf").dump(), R"(["deepseek2"])");
  for (const auto& [name, row] : rows) {
    EXPECT_FALSE(row.at("about").get<std::string>().empty()) << name;
    ASSERT_FALSE(row.at("class").empty()) << name;
    for (const spec::Json& one : row.at("class"))
      EXPECT_TRUE(one == "decoder" || one == "encoder" || one == "encoder-decoder")
          << name << ": " << one;
  }
  size_t listed = 0;
  for (const auto& [name, row] : rows) listed += row.at("models").size();
  // every family of the list of released models exists
  size_t named = 0;
  for (const spec::Json& preset :
       spec::read_json_file(fs::path(TESSERA_SOURCE_DIR) / "src/tessera/cli/presets.json"))
    named += preset.contains("family");
  EXPECT_EQ(listed, named);
  const std::string text = run("list families").out;
  EXPECT_NE(text.find("\nllama                decoder"), std::string::npos);
  EXPECT_NE(text.find("llama3.1-405b (406B)"), std::string::npos);
  EXPECT_NE(text.find("; GGUF: deepseek2\n"), std::string::npos);
}

TEST_F(Cli, OptionsOfGenerateThatWouldDoNothing) {
  const std::string start = "generate " + tiny() + " --input-ids 1,2 ";
  for (const std::string with : {"--lookup 2", "--draft /nowhere"})
    expect_refused(start + with + " --beams 2", 2,
                   "speculative decoding and beam search exclude each other");
  for (const std::string with : {"--temperature 1", "--top-k 3", "--top-p 0.5", "--min-p 0.1",
                                 "--seed 3", "--mirostat 2", "--typical-p 0.9", "--samplers top_k"})
    expect_refused(start + with + " --beams 2", 2, "beam search does not sample");
  for (const std::string with :
       {"--repetition-penalty 1.1", "--dry-multiplier 1", "--logit-bias 3:-2", "--bad-word x",
        "--min-new-tokens 3", "--no-repeat-ngram-size 2", "--early-stopping never"})
    EXPECT_EQ(run(start + with + " --beams 2 --max-new-tokens 3").code, 0) << with;
  expect_refused(start + "--early-stopping true", 2, "expected --beams of 2 or more");
  for (const std::string with : {"--top-k 3", "--top-p 0.5 --temperature 0", "--min-p 0.1",
                                 "--xtc-probability 1", "--mirostat 2", "--top-n-sigma 1"})
    expect_refused(start + with, 2, "expected --temperature above 0");
  expect_refused(start + "--length-penalty 2", 2, "expected --beams of 2 or more");
  expect_refused(start + "--draft-tokens 2", 2, "expected --draft, --lookup, --predictors");
  expect_refused(start + "--branches 2", 2, "expected --draft, --lookup, --predictors");
  for (const std::string bad : {"0", "4x", "-1", "1025", "''", "1e3"})
    expect_refused(start + "--lookup 2 --draft-tokens " + bad, 2, "expected auto, or a number");
  expect_refused(start + "--temperature 1 --mirostat 2 --top-k 3", 2, "top_k with mirostat");
  expect_refused(start + "--temperature 1 --mirostat 1", 2, "expected 0 (off) or 2");
  EXPECT_EQ(run(start + "--max-new-tokens 1 --beams 1 --temperature 0.5 --seed 1").code, 0);
}

TEST_F(Cli, PlansCountAtTheContextOfTheModel) {
  // what the model takes, where that is less than usual
  const auto context = [&](const std::string& arguments) {
    return spec::parse_json(run("plan " + arguments + " --json").out, arguments)["context"];
  };
  EXPECT_EQ(context(tiny()), 64);
  EXPECT_EQ(context(tiny() + "/config.json"), 64);
  EXPECT_EQ(context(tiny() + " --context 128"), 128);
  EXPECT_EQ(context(kZoo + "/mamba2/mamba2-130m.json"), 2048);
}

TEST_F(Cli, SpecErrorsNamePathAndRemedy) {
  const std::string spec = kZoo + "/llama/smollm2-135m.json";
  expect_refused("plan " + spec + " --set layers[0].mixer.n_heads=7", 2,
                 "n_heads = 7 does not divide d_model = 576");
  expect_refused("plan " + spec + " --set layers[0].mixer.n_head=9", 2,
                 "did you mean \"n_heads\"?");
  expect_refused("plan " + spec + " --set layers[0].mixer.position=null", 2,
                 "[layers[0].mixer.position] found null; expected a scheme, or \"none\"");
  expect_refused("plan " + spec + " --kv-type int5", 2, "expected f32|f16|bf16|int8|fp8|int4");
  expect_refused("plan " + spec + " --set norm.eps=tiny", 2,
                 "found a string \"tiny\"; expected a number");
  expect_refused("show " + spec + " --resolved --set ffn.act=sillu", 2, "did you mean \"silu\"?");
}

TEST_F(Cli, FileErrors) {
  expect_refused("generate /nowhere/model.gguf --prompt x", 1, "No such file");
  const std::string cut = folder_.write("cut.gguf", {"GGUF\3\0\0\0\1", 9});
  expect_refused("generate " + cut + " --prompt x", 1, "cut.gguf");
  const std::string noise = folder_.write("noise", "neither this nor that");
  expect_refused("generate " + noise + " --prompt x", 1, "noise");
  expect_refused("eval " + tiny() + " --text /nowhere.txt", 2, "no tokenizer");
  // names out of a file are no commands to the terminal
  const std::string hostile = folder_.write("tokenizer.json", R"({"a\n\u001b[2Jb": 1})");
  expect_refused("tokenize " + hostile + " --text x", 1,
                 R"(key "a\x0a\x1b[2Jb" is not known; expected version)");
}

TEST_F(Cli, TextsComeFromFilesPipesAndStandardInput) {
  const std::string file = folder_.write("a.txt", "ab\ncd"), pipe = (folder_ / "pipe").string();
  for (const std::string& verb :
       {std::string("tokenize bytes --file "), std::string("eval --ngram 2 --train-fraction 0.5 "
                                                           "--json --text ")}) {
    const auto said = [](const Outcome& outcome) {
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      return outcome.out.substr(0, outcome.out.find("tokens_per_s"));
    };
    const std::string expected = said(run(verb + file));
    EXPECT_EQ(said(run(verb + "-", "", "<'" + file + "'")), expected);
    EXPECT_EQ(said(run(verb + "-", "cat '" + file + "' | ", "")), expected);
    EXPECT_EQ(said(run(verb + "/dev/stdin", "cat '" + file + "' | ", "")), expected);
    fs::remove(pipe);
    EXPECT_EQ(
        said(run(verb + pipe, "mkfifo '" + pipe + "'; cat '" + file + "' >'" + pipe + "' & ")),
        expected);
  }
  expect_refused("tokenize bytes --file " + folder_.path().string(), 1,
                 "Is a directory; expected a text");
  expect_refused("eval --ngram 2 --text - --train -", 2, "expected it for one of them");
  // what is mapped must be a file
  fs::remove(pipe);
  const Outcome outcome = run("generate " + pipe + " --prompt x", "mkfifo '" + pipe + "'; ");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("a pipe; expected a regular file"), std::string::npos) << outcome.err;
}

TEST_F(Cli, ATokenizerIsLearntFromTexts) {
  const std::string out = (folder_.path() / "tokens").string(),
                    file =
                        folder_.write("pairs.jsonl",
                                      "{\"en\": \"two dogs, two cats\", \"de\": \"zwei Hunde\"}\n\n"
                                      "{\"en\": \"two men\", \"de\": \"zwei M\u00e4nner\"}\n");
  const Outcome learnt =
      run("train-tokenizer " + file +
          " --key en --key de --vocab 280 --special '<fim>' --json --out " + out);
  ASSERT_EQ(learnt.code, 0) << learnt.err;
  const int64_t tokens = spec::parse_json(learnt.out, "stdout")["tokens"];
  EXPECT_GT(tokens, 261);
  EXPECT_LE(tokens, 280);
  const Outcome ids = run("tokenize " + out + " --json --text 'two zwei'");
  EXPECT_EQ(spec::parse_json(ids.out, "stdout")["tokens"].size(), 3u)
      << ids.out;  // "zwei" stands first
  // special tokens are those tokens, unless told otherwise
  for (const char* flag : {"", " --parse-special"})
    EXPECT_EQ(run("tokenize " + out + flag + " --text '<pad><s></s><mask><fim>'").out,
              "0 1 2 3 4\n");
  const Outcome as_text = run("tokenize " + out + " --no-parse-special '<pad>' --json");
  EXPECT_EQ(spec::parse_json(as_text.out, "stdout")["tokens"].size(), 5u) << as_text.out;
  expect_refused("tokenize " + out + " x --no-parse-special --parse-special", 2, "excludes");
  expect_refused("train-tokenizer " + file + " --out " + out, 2,
                 "holds tokenizer.json, tokenizer_config.json; expected a new or empty folder");
  expect_refused("train-tokenizer " + file + " --key fr --out x", 1, "pairs.jsonl:1]");
  expect_refused("train-tokenizer " + file + " --vocab 100 --out x", 2, "100 tokens");
  expect_refused("train-tokenizer " + folder_.write("none.txt", "") + " --out x", 1, "no text");
  expect_refused("train-tokenizer " + folder_.write("bytes.txt", "ab\xFF\n") + " --out x", 1,
                 "bytes.txt:1]");
  EXPECT_FALSE(fs::exists("x"));
}

TEST_F(Cli, TokenizeGoesOneWay) {
  EXPECT_EQ(run("tokenize bytes ab").out, "97 98\n");
  EXPECT_EQ(run("tokenize ab -m bytes").out, "97 98\n");
  EXPECT_EQ(run("tokenize bytes --text ab").out, "97 98\n");
  expect_refused("tokenize bytes x --decode --ids 97", 2, "--ids");
  EXPECT_EQ(run("tokenize bytes --decode --ids 97,98").out, "ab\n");
  expect_refused("tokenize bytes --ids 97,98", 2, "expected --decode");
  expect_refused("tokenize bytes --text x --decode --ids 97", 2, "--ids");
  expect_refused("tokenize bytes --file x --ids 97", 2, "--ids");
}

TEST_F(Cli, PassagesAreFoundAndStandBeforeAQuestion) {
  const std::string model = folder_.path() / "embedder", index = folder_.path() / "notes.index";
  fs::copy(kGoldens + "/bert/base", model);
  folder_.write("embedder/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\ndog\nsun\nmoon\n");
  fs::create_directory(folder_ / "notes");
  folder_.write("notes/a.txt", "cat dog\n\nsun\n");
  const std::string make = "index '" + folder_.path().string() + "/notes/' --with '" + model +
                           "' --tokens 2 --overlap 0 --json";
  const Outcome made = run(make);
  ASSERT_EQ(made.code, 0) << made.err;
  const spec::Json report = spec::parse_json(made.out, "stdout");
  EXPECT_EQ(report["index"], index);
  EXPECT_EQ(report["passages"], 2);
  EXPECT_EQ(spec::parse_json(run(make).out, "stdout")["kept"], 2);
  const Outcome found = run("search '" + index + "' sun --top 1 --json");
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_EQ(spec::parse_json(found.out, "stdout")[0]["text"], "sun\n");
  const Outcome asked =
      run("generate " + kGoldens + "/llama/gguf/base.gguf --prompt ! --retrieve '" + index +
          "' --passages 1 --max-new-tokens 3 --json");
  ASSERT_EQ(asked.code, 0) << asked.err;
  const spec::Json answer = spec::parse_json(asked.out, "stdout");
  ASSERT_EQ(answer["sources"].size(), 1u);
  EXPECT_EQ(answer["sources"][0]["number"], 1);
  const Outcome plain =
      run("generate " + kGoldens + "/llama/gguf/base.gguf --prompt ! --max-new-tokens 3 --json");
  EXPECT_GT(answer["prompt_tokens"], spec::parse_json(plain.out, "stdout")["prompt_tokens"]);
  expect_refused("search '" + model + "' sun", 1,
                 "no index; expected a folder that `tessera index`");
  expect_refused("index '" + folder_.path().string() + "/nothing' --with '" + model + "'", 1,
                 "not there; expected a text file or a folder of them");
  expect_refused("generate '" + tiny() + "' --input-ids 1 --retrieve '" + index + "'", 2,
                 "--retrieve without a question");
}

TEST_F(Cli, EmbedPutsAPromptBefore) {
  const std::string model = folder_.path() / "model";
  fs::copy(kGoldens + "/bert/base", model);
  std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nquery\n:\ncat\nmask\n[\n]\n";
  folder_.write("model/vocab.txt", words);
  folder_.write("model/modules.json", R"([
      {"path": "", "type": "sentence_transformers.models.Transformer"},
      {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])");
  folder_.write("model/1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  folder_.write("model/config_sentence_transformers.json",
                R"({"prompts": {"query": "query: ", "plain": ""}, "default_prompt_name": null})");
  const auto said = [&](const std::string& how) {
    const Outcome outcome = run("embed " + model + " --json --text " + how);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "stdout");
  };
  const spec::Json plain = said("cat"), asked = said("cat --prompt-name query");
  EXPECT_EQ(plain["tokens"], spec::Json({3}));
  EXPECT_EQ(plain["prompt"], "");
  EXPECT_EQ(asked["prompt"], "query: ");
  EXPECT_EQ(asked["embeddings"], said("'query: cat'")["embeddings"]);
  EXPECT_EQ(asked["embeddings"], said("cat --prompt 'query: '")["embeddings"]);
  EXPECT_NE(asked["embeddings"], plain["embeddings"]);
  // the folder's own, unless told otherwise
  folder_.write("model/config_sentence_transformers.json",
                R"({"prompts": {"query": "query: "}, "default_prompt_name": "query"})");
  EXPECT_EQ(said("cat")["embeddings"], asked["embeddings"]);
  EXPECT_EQ(said("cat --prompt ''")["embeddings"], plain["embeddings"]);
  // [CLS] mask [SEP]: one token, or three
  EXPECT_EQ(said("'[MASK]' --prompt ''")["tokens"], spec::Json({5}));
  EXPECT_EQ(said("'[MASK]' --prompt '' --parse-special")["tokens"], spec::Json({3}));
  // texts, and no list of texts
  EXPECT_EQ(said("'[cat,cat]' --text '{}' --text '' --prompt ''")["tokens"], spec::Json({7, 4, 2}));
  expect_refused("embed " + model + " --text x --prompt-name quer", 2,
                 "the model has no prompt \"quer\"; expected \"query\"");
  folder_.write("model/config_sentence_transformers.json",
                R"({"prompts": {"mask": "[MASK] "}, "default_prompt_name": "mask"})");
  expect_refused("embed " + model + " --text x", 2,
                 "the folder's prompt \"[MASK] \" holds special tokens; expected --parse-special");
  EXPECT_EQ(said("cat --parse-special")["tokens"], spec::Json({4}));
  EXPECT_EQ(said("cat --prompt '[MASK] '")["tokens"], spec::Json({6}));
  folder_.write("model/sentence_bert_config.json", "[]");
  expect_refused("embed " + model + " --text x", 1,
                 "sentence_bert_config.json] found an array; expected an object");
}

TEST_F(Cli, InputErrors) {
  expect_refused("generate " + tiny() + " --input-ids 1,64", 1, "token id 64; expected 0 to 63");
  const std::string gpt2 = kGoldens + "/gpt2/base";
  std::string ids = "1";
  for (int i = 0; i < 2000; ++i) ids += ",1";
  expect_refused("generate " + gpt2 + " --input-ids " + ids, 1, "this model's context is");
  expect_refused("generate " + tiny() + " --input-ids " + ids, 1, "this model's context is");
  expect_refused("generate " + kGoldens + "/llama/gguf/base.gguf --prompt ''", 1, "is empty");
}

TEST_F(Cli, AFolderThatCannotBeMade) {
  const std::string file = folder_.write("file", "x");
  expect_refused("convert " + tiny() + " --out " + file + "/below", 1, "cannot create the folder");
  expect_refused("convert " + tiny() + " --force --out " + file, 1, "cannot create the folder");
  expect_refused("docs --out " + file, 1, "cannot create the folder");
  // longer than any file system takes
  expect_refused("plan /" + std::string(300, 'x'), 1, "[file] /xxx");
  EXPECT_EQ(read_text_file(file), "x");
}

TEST_F(Cli, ConvertLeavesNothingWhenItFails) {
  const fs::path out = folder_ / "out";
  expect_refused("convert /nowhere --out " + out.string(), 1, "/nowhere");
  EXPECT_FALSE(fs::exists(out));
}

/// A file of one named tensor after another.
template <class T>
void write_tensors(
    const std::string& path,
    DType type,
    const std::vector<std::tuple<std::string, std::vector<int64_t>, std::vector<T>>>& all,
    const format::StringMap& metadata = {}) {
  std::vector<format::TensorView> views;
  for (const auto& [name, shape, values] : all)
    views.push_back({name, type, shape, std::as_bytes(std::span(values))});
  format::write_safetensors(path, views, metadata);
}

using Numbers = std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>>;
void write_numbers(const std::string& path, const std::vector<Numbers>& all) {
  write_tensors(path, DType::i64, all);
}

/// A safetensors file with four ids of a source and, of a pair, four of its target.
void write_ids(const std::string& path, bool pair) {
  std::vector<Numbers> all = {{"input_ids", {1, 4}, {1, 5, 9, 3}}};
  if (pair) all.push_back({"decoder_input_ids", {1, 4}, {2, 7, 4, 6}});
  write_numbers(path, all);
}

TEST_F(Cli, ConvertBothWaysKeepsTheLogits) {
  // a golden's input through the folder itself, its tessera folder, and the Hugging Face folder
  // made of that
  const std::string input = (folder_ / "in.safetensors").string();
  for (const std::string family :
       {"llama", "gemma3_text", "mamba2", "bert", "gpt2", "t5", "bart", "marian", "led"}) {
    const bool pair = family == "t5" || family == "bart" || family == "marian" || family == "led";
    write_ids(input, pair);
    const std::string model = kGoldens + "/" + family + "/base";
    const std::string ours = (folder_ / family).string(), theirs = ours + "_hf";
    ASSERT_EQ(run("convert " + model + " --out " + ours).code, 0) << family;
    ASSERT_EQ(run("convert " + ours + " --to hf --out " + theirs).code, 0) << family;
    std::string first;
    for (const std::string& folder : {model, ours, theirs}) {
      const std::string output = (folder_ / "out.safetensors").string();
      const Outcome outcome =
          run("forward " + folder + " --input " + input + " --output " + output + " --threads 1");
      ASSERT_EQ(outcome.code, 0) << family << outcome.err;
      if (first.empty()) first = read_text_file(output);
      EXPECT_EQ(read_text_file(output), first) << folder;
    }
  }
}

TEST_F(Cli, EvalOfACheckpointIsWhatTheRunLoggedAndARunMayBeginFromIt) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("{} ", i % 70);
  std::ofstream(folder_ / "train.txt") << text;
  std::ofstream(folder_ / "valid.txt") << text.substr(0, 500);
  const auto recipe = [&](const char* name, const char* first, const char* steps) {
    std::ofstream(folder_ / name) << fmt::format(
        R"({{{}, "data": {{"train": ["train.txt"], "valid": ["valid.txt"]}},
             "train": {{"steps": {}, "batch": 4, "length": 32}}}})",
        first, steps);
    return (folder_ / name).string();
  };
  const std::string folder = (folder_ / "run").string();
  const Outcome trained = run(
      "train " +
      recipe("a.json",
             R"("spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "layers": [
                     {"mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
                      "ffn": {"type": "glu", "d_hidden": 24}}], "head": "tied"})",
             "30") +
      " --json --out " + folder);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const double logged = spec::parse_json(trained.out, "train")["valid_loss"].get<double>();
  const Outcome evaluated = run("eval " + folder + "/latest --window 33 --json --text " +
                                (folder_ / "valid.txt").string());
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NEAR(spec::parse_json(evaluated.out, "eval")["nll"].get<double>(), logged, 1e-9);

  // the model's spec and tokenizer
  const Outcome tuned = run("train " + recipe("b.json", R"("init": {"from": "run"})", "1") +
                            " --json --out " + (folder_ / "tuned").string());
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_NE(tuned.err.find("parameters loaded"), std::string::npos) << tuned.err;
  EXPECT_LT(spec::parse_json(tuned.out, "train")["loss"].get<double>(), logged + 0.5);
  const Outcome other = run("train " +
                            recipe("c.json",
                                   R"("init": {"from": "run"},
                     "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 32, "layers": [
                     {"mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
                      "ffn": {"type": "glu", "d_hidden": 24}}], "head": "tied"})",
                                   "1") +
                            " --out " + (folder_ / "other").string());
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("the spec wants [256, 32]; the specs differ first at \"spec."),
            std::string::npos)
      << other.err;
}

TEST_F(Cli, DataShowsWhatARunWillReadAndBeAsked) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i) + "\n";
  folder_.write("text.txt", text);
  const auto recipe = folder_.write("recipe.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 300, "d_model": 8, "ffn": {"type": "mlp", "d_hidden": 8},
             "layers": [{"mixer": {"type": "attention", "n_heads": 2, "pattern": "prefix"}}], "head": "tied"},
    "data": {"train": ["text.txt"], "valid_fraction": 0.1},
    "objective": {"type": "span_corruption", "eos": 256},
    "train": {"steps": 1, "batch": 2, "length": 64}})");
  const Outcome shown = run("data '" + recipe + "' --samples 1");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("<299>"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("<256>"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("given"), std::string::npos) << shown.out;
  const Outcome json = run("data '" + recipe + "' --valid --samples 2 --json");
  ASSERT_EQ(json.code, 0) << json.err;
  const spec::Json out = spec::parse_json(json.out, "data");
  ASSERT_EQ(out["samples"].size(), 2u);
  const spec::Json& document = out["samples"][0]["documents"][0];
  EXPECT_EQ(document["targets"].size(), document["reads"]["ids"].size());
  EXPECT_EQ(document["targets"].back(), 256);
  expect_refused("data '" + recipe + "' --valid --first 1000", 2, "validation samples");
  expect_refused("data '" + recipe + "' --set objective.eos=null", 2, "objective.eos] missing");
  expect_refused("data '" + (folder_ / "none.json").string() + "'", 1, "none.json");
}

TEST_F(Cli, ConvertPoolsKeyAndValueHeads) {
  // multi-head attention, trained for a step
  std::ofstream(folder_ / "text.txt") << std::string(400, 'a');
  std::ofstream(folder_ / "recipe.json")
      << R"({"spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "layers": [
             {"repeat": 2, "mixer": {"type": "attention", "n_heads": 4, "position": "rope"},
              "ffn": {"type": "glu", "d_hidden": 24}}], "head": "tied"},
             "data": {"train": ["text.txt"]}, "train": {"steps": 1, "batch": 1, "length": 16}})";
  const std::string trained = (folder_ / "run").string(), mha = trained + "/latest";
  const Outcome outcome = run("train " + (folder_ / "recipe.json").string() + " --out " + trained);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto pooled = [&](const std::string& from, const std::string& flags) {
    const std::string out = fmt::format("{}{}", (folder_ / "pooled").string(), flags.size());
    fs::remove_all(out);
    const Outcome converted = run("convert " + from + " --out " + out + " --kv-heads " + flags);
    EXPECT_EQ(converted.code, 0) << converted.err;
    return out;
  };
  const std::string input = (folder_ / "in.safetensors").string();
  write_ids(input, false);
  const auto logits = [&](const std::string& model) {
    const std::string output = (folder_ / "out.safetensors").string();
    EXPECT_EQ(run("forward " + model + " --input " + input + " --output " + output).code, 0);
    return read_text_file(output);
  };
  for (const std::string flags : {"4", "4 --pool first", "4 --pool random"})
    EXPECT_EQ(logits(pooled(mha, flags)), logits(mha)) << flags;
  for (const std::string flags : {"2", "1 --pool first", "2 --pool random --seed 3"}) {
    const std::string model = pooled(mha, flags);
    EXPECT_NE(logits(model), logits(mha)) << flags;
    EXPECT_EQ(run("generate " + model + " --input-ids 1,2 --max-new-tokens 3").code, 0) << flags;
    const spec::Json spec = spec::read_json_file(model + "/spec.json");
    EXPECT_EQ(
        std::to_string(spec["layers"][0]["branches"][0]["mixer"]["n_kv_heads"].get<int64_t>()),
        flags.substr(0, 1));
  }
  // a Hugging Face folder stays one
  EXPECT_EQ(spec::read_json_file(pooled(tiny(), "1") + "/config.json")["num_key_value_heads"], 1);
  EXPECT_TRUE(fs::exists(pooled(tiny(), "1 --to tessera") + "/spec.json"));
  const std::string out = " --out " + (folder_ / "never").string();
  expect_refused("convert " + mha + out + " --kv-heads 3", 2,
                 "found 3; expected a divisor of the 4 key/value heads");
  expect_refused("convert " + kGoldens + "/mamba2/base --kv-heads 1" + out, 2, "found mamba2");
  expect_refused("convert " + mha + out + " --pool first", 2, "--pool requires --kv-heads");
  EXPECT_FALSE(fs::exists(folder_ / "never"));
}

TEST_F(Cli, ConvertsExperts) {
  const std::string from = kGoldens + "/llama/base", experts = (folder_ / "experts").string(),
                    fewer = (folder_ / "fewer").string(), dense = (folder_ / "dense").string(),
                    use = (folder_ / "use.json").string();
  ASSERT_EQ(run("convert " + from + " --upcycle 4 --experts-per-token 2 --out " + experts).code, 0);
  const auto text = [&](const std::string& model) {
    const Outcome outcome =
        run("generate " + model + " --input-ids 1,2,3,4,5,6,7,8 --max-new-tokens 8 --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "generate");
  };
  const spec::Json said = text(experts), plain = text(from);
  EXPECT_EQ(said["token_ids"], plain["token_ids"]);
  EXPECT_FALSE(plain.contains("experts"));
  ASSERT_TRUE(said.contains("experts"));
  EXPECT_EQ(said["experts"]["layers.0.ffn.router"]["load"].size(), 4U);
  std::ofstream(use) << said.dump();
  const Outcome kept =
      run("convert " + experts + " --keep-experts 2 --expert-use " + use + " --out " + fewer);
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_EQ(text(fewer)["token_ids"], plain["token_ids"]);  // copies of one layer
  const std::string more = (folder_ / "more").string();
  const Outcome grown = run("convert " + experts + " --grow-experts 6 --noise 0 --expert-use " +
                            use + " --out " + more);
  ASSERT_EQ(grown.code, 0) << grown.err;
  EXPECT_EQ(text(more)["token_ids"], plain["token_ids"]);
  ASSERT_EQ(run("convert " + experts + " --merge-experts --out " + dense).code, 0);
  EXPECT_EQ(text(dense)["token_ids"], plain["token_ids"]);
  const std::string out = " --out " + (folder_ / "never").string();
  expect_refused("convert " + experts + " --keep-experts 2" + out, 2,
                 "--keep-experts requires --expert-use");
  expect_refused("convert " + experts + " --grow-experts 4 --expert-use " + use + out, 2,
                 "no mixture of fewer than 4 experts");
  expect_refused("convert " + experts + " --distill-experts" + out, 2,
                 "--distill-experts requires --text");
  expect_refused("convert " + experts + " --text x" + out, 2, "--text requires --distill-experts");
  expect_refused("convert " + from + " --upcycle 2 --experts-per-token 3" + out, 2,
                 "3 of 2 experts");
  expect_refused("convert " + from + " --merge-experts" + out, 2, "no mixture of experts");
  expect_refused("convert " + from + " --upcycle 2 --merge-experts" + out, 2, "excludes");
  expect_refused("convert " + from + " --expert-use " + use + out, 2,
                 "--expert-use has no effect alone");
  expect_refused("convert " + from + " --kv-heads 1 --seed 1" + out, 2,
                 "--seed has no effect without random numbers");
  EXPECT_FALSE(fs::exists(folder_ / "never"));
}

TEST_F(Cli, RunsAreComparedByFolderAndWatchedUntilComplete) {
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a') << std::string(2000, 'b');
  std::ofstream(folder_ / "recipe.json") << R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 8, "head": "tied", "layers": [{}],
             "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
             "ffn": {"type": "glu", "d_hidden": 16}},
    "data": {"train": ["text.txt"], "valid_fraction": 0.1},
    "train": {"steps": 3, "batch": 2, "length": 16, "log_every": 1}})";
  const std::string out = (folder_ / "out").string(), page = (folder_ / "runs.html").string();
  for (const char* name : {"a", "b"})
    ASSERT_EQ(run("train " + (folder_ / "recipe.json").string() + " --out " + out + "/" + name +
                  " --set optimizer.lr=" + (name[0] == 'a' ? "0.1" : "0.01"))
                  .code,
              0);
  const Outcome table = run("runs " + out + " --watch --html " + page);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* words :
       {"\na    complete   3/3", "\nb    complete   3/3", "\noptimizer.lr", "0.01"})
    EXPECT_NE(table.out.find(words), std::string::npos) << words << "\n" << table.out;
  EXPECT_NE(read_text_file(page).find("loss by seconds"), std::string::npos);
  const spec::Json json = spec::parse_json(run("runs " + out + "/b --json").out, "runs");
  EXPECT_EQ(json["runs"][0]["last"]["step"], 3);
  expect_refused("runs " + out + " --watch --json", 2, "--watch with --json");
  expect_refused("runs " + (folder_ / "none").string(), 1, "expected the folder of a run");
}

TEST_F(Cli, ASweepTrainsEveryCombinationAndGoesOn) {
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a') << std::string(2000, 'b');
  std::ofstream(folder_ / "recipe.json") << R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 8, "head": "tied", "layers": [{}],
             "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
             "ffn": {"type": "glu", "d_hidden": 16}},
    "data": {"train": ["text.txt"], "valid_fraction": 0.1},
    "train": {"steps": 4, "batch": 2, "length": 16, "log_every": 1, "eval_every": 2}})";
  const std::string recipe = (folder_ / "recipe.json").string(), out = (folder_ / "sweep").string();
  const std::string grid = " --grid optimizer.lr=0.1,0.0001 --seeds 2";
  const Outcome planned = run("sweep " + recipe + grid + " --plan");
  EXPECT_EQ(planned.out,
            "lr=0.1,seed=1  optimizer.lr=0.1 train.seed=1\n"
            "lr=0.1,seed=2  optimizer.lr=0.1 train.seed=2\n"
            "lr=0.0001,seed=1  optimizer.lr=0.0001 train.seed=1\n"
            "lr=0.0001,seed=2  optimizer.lr=0.0001 train.seed=2\n");
  EXPECT_FALSE(fs::exists(out));
  const Outcome first = run("sweep " + recipe + grid + " --out " + out + " --json");
  ASSERT_EQ(first.code, 0) << first.err;
  const spec::Json result = spec::parse_json(first.out, "sweep");
  // what each run reached is what `runs` says of its folder
  double sum = 0;
  for (const int seed : {1, 2}) {
    const spec::Json one = spec::parse_json(
        run("runs " + out + "/lr=0.1,seed=" + std::to_string(seed) + " --json").out, "runs");
    EXPECT_EQ(result["rows"][0]["runs"][seed - 1], one["runs"][0]["best"]["valid_loss"]);
    sum += one["runs"][0]["best"]["valid_loss"].get<double>();
  }
  EXPECT_EQ(result["rows"][0]["values"]["optimizer.lr"], "0.1");
  EXPECT_DOUBLE_EQ(result["rows"][0]["mean"].get<double>(), sum / 2);
  EXPECT_LT(result["rows"][0]["mean"], result["rows"][1]["mean"]);
  EXPECT_NE(first.err.find("best: optimizer.lr=0.1\n"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("is the greatest of its values; try greater ones"), std::string::npos);
  // what is complete is not trained again, what is missing is
  fs::remove_all(out + "/lr=0.1,seed=2");
  const Outcome again = run("sweep " + recipe + grid + " --out " + out + " --json -v");
  EXPECT_EQ(spec::parse_json(again.out, "sweep"), result) << again.err;
  const size_t step = again.err.find("step ");
  ASSERT_NE(step, std::string::npos);
  EXPECT_GT(step, again.err.find("run 1/4")) << again.err;
  EXPECT_LT(step, again.err.find("run 2/4")) << again.err;
  expect_refused("sweep " + recipe + grid + " --out " + out + " --metric bleu", 2,
                 "has no bleu; expected one of ");
  expect_refused("sweep " + recipe + " --grid optimizer.lrr=1,2 --out " + out, 2,
                 "[optimizer] unknown key \"lrr\"");
  expect_refused("sweep " + recipe, 2, "--out is missing");
}

TEST_F(Cli, ComparesModelsOfEqualSize) {
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a') << std::string(2000, 'b');
  std::ofstream(folder_ / "recipe.json") << R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 8, "head": "tied", "layers": [{}],
             "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"train": ["text.txt"], "valid_fraction": 0.1},
    "train": {"steps": 4, "batch": 2, "length": 16, "log_every": 1}})";
  std::ofstream(folder_ / "mqa.json") << R"({"extends": "recipe.json",
    "spec": {"mixer": {"n_kv_heads": 1}}})";
  const std::string files =
      " " + (folder_ / "recipe.json").string() + " " + (folder_ / "mqa.json").string();
  const std::string out = (folder_ / "study").string();
  const std::string options = " --multiple-of 1 --tolerance 0.02 --learning-rates shared --seeds 2";
  const Outcome planned = run("compare" + files + options + " --dry-run");
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_NE(planned.err.find("minutes of training and evaluation on this machine"),
            std::string::npos);
  EXPECT_NE(planned.err.find("seeds 1, 2"), std::string::npos) << planned.err;
  EXPECT_FALSE(fs::exists(out));
  const Outcome first = run("compare" + files + options + " --json --out " + out);
  ASSERT_EQ(first.code, 0) << first.err;
  const spec::Json report = spec::parse_json(first.out, "compare");
  EXPECT_EQ(report, spec::parse_json(read_text_file(out + "/report.json"), "compare"));
  EXPECT_EQ(report["entries"][1]["solved"], 35);  // 64 numbers less, a unit of width has 24
  EXPECT_EQ(report["entries"][1]["difference"]["pairs"], 2);
  EXPECT_TRUE(report["fair"]);
  EXPECT_NE(read_text_file(out + "/report.html").find("valid loss by FLOPs"), std::string::npos);
  // the same command trains nothing
  const Outcome again = run("compare" + files + options + " --json --out " + out);
  EXPECT_EQ(again.out, first.out) << again.err;
  EXPECT_NE(again.err.find("already trained"), std::string::npos) << again.err;
  // what is unfair has an exit code of its own
  std::ofstream(folder_ / "study.json") << R"({"base": "recipe.json", "seeds": 1,
    "equal": {"key": ""}, "learning_rates": "shared", "budget": {"steps": 2},
    "entries": [{"name": "a"}, {"name": "b", "set": ["spec.ffn.d_hidden=40"]}]})";
  const Outcome unequal =
      run("compare " + (folder_ / "study.json").string() + " --out " + out + "2");
  EXPECT_EQ(unequal.code, 3) << unequal.err;
  EXPECT_NE(unequal.out.find("unfair: b: parameters"), std::string::npos) << unequal.out;
  expect_refused("compare" + files, 2, "--out is missing");
  expect_refused("compare" + files + options + " --tokens 31 --dry-run", 2,
                 "[budget] 31 tokens are less than one step of 32");
  expect_refused("compare" + files + options + " --steps 1 --tokens 1k --dry-run", 2,
                 "several budgets");
  expect_refused("compare" + files + " --tokens many --dry-run", 2, "[--tokens] found \"many\"");
  expect_refused("compare " + (folder_ / "recipe.json").string() + " --dry-run", 2,
                 "1 entry; expected two or more");
}

TEST_F(Cli, CompareFitsScalingLawsAndSearchesLayouts) {
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a') << std::string(2000, 'b');
  std::ofstream(folder_ / "recipe.json") << R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 8, "head": "tied",
             "layers": [{"mixer": {"type": "attention", "n_heads": 2, "position": "rope"}}],
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"train": ["text.txt"], "valid_fraction": 0.1},
    "train": {"steps": 8, "batch": 2, "length": 16, "log_every": 1}})";
  const std::string recipe = " " + (folder_ / "recipe.json").string() +
                             " --learning-rates shared --seeds 1 --multiple-of 1";
  const std::string sizes = " --scaling spec.d_model=8,16,24";
  const std::string out = (folder_ / "law").string();
  const Outcome law = run("compare" + recipe + sizes + " --json --out " + out);
  ASSERT_EQ(law.code, 0) << law.err;
  EXPECT_NE(law.err.find("scaling law: 3 sizes, 3 parts of the budget"), std::string::npos)
      << law.err;
  const spec::Json report = spec::parse_json(law.out, "compare");
  EXPECT_EQ(report["scaling"]["entries"][0]["runs"].size(), 9u);
  EXPECT_TRUE(report["scaling"]["entries"][0].contains("prediction"));
  const Outcome searched = run("compare" + recipe +
                               " --search attention,linear_attention --over "
                               "spec.ffn.act=silu,gelu --tolerance 0.05 --finalists 1 --out " +
                               out + "2");
  ASSERT_EQ(searched.code, 0) << searched.err;
  EXPECT_NE(searched.err.find("layout search: 4 candidates"), std::string::npos) << searched.err;
  EXPECT_NE(searched.out.find("attention,act=silu"), std::string::npos) << searched.out;
  expect_refused("compare" + recipe + sizes + " --search attention,mamba2 --dry-run", 2,
                 "expected one of \"scaling\" and \"search\"");
  expect_refused("compare" + recipe + sizes + " --scaling spec.ffn.d_hidden=8,16 --dry-run", 2,
                 "expected a value for every size");
  expect_refused("compare --dry-run", 2, "no study; expected a study file");
}

TEST_F(Cli, CompareChecksItself) {
  const Outcome found = run("compare --self-check --check 'planted size' --check 'fair study'");
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_NE(found.out.find("pass  planted size: unfair: equality"), std::string::npos) << found.out;
  EXPECT_NE(found.out.find("2 of 2 checks passed"), std::string::npos) << found.out;
  // models that have not learned fail it
  const Outcome failed = run("compare --self-check --check parity --steps 1 --json");
  EXPECT_EQ(failed.code, 1) << failed.err;
  EXPECT_FALSE(spec::parse_json(failed.out, "compare")["passed"].get<bool>());
  EXPECT_NE(failed.err.find("FAIL  parity"), std::string::npos) << failed.err;
  expect_refused("compare --self-check study.json", 2, "expected no file");
}

TEST_F(Cli, PlansASpecOfAGivenSize) {
  const std::string spec = (folder_ / "spec.json").string(), to = (folder_ / "to.json").string();
  std::ofstream(spec) << R"({"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 8,
    "head": "tied", "layers": [{}], "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
    "ffn": {"type": "glu", "d_hidden": 32}})";
  const int64_t before =
      spec::parse_json(run("plan " + spec + " --json").out, "plan")["parameters"];
  const Outcome solved = run("plan " + spec + " --solve ffn.d_hidden --parameters " +
                             std::to_string(before + 24 * 8) + " --out " + to);
  EXPECT_EQ(solved.code, 0) << solved.err;
  EXPECT_EQ(solved.out.substr(0, solved.out.find('\n')),
            "ffn.d_hidden                        40  (solved)");
  EXPECT_EQ(spec::parse_json(run("plan " + to + " --json").out, "plan")["parameters"],
            before + 24 * 8);
  const spec::Json json = spec::parse_json(
      run("plan " + spec + " --solve ffn.d_hidden --parameters 2.5k --tolerance 0.1 --json").out,
      "plan");
  EXPECT_EQ(json["solved"]["key"], "ffn.d_hidden");
  expect_refused("plan " + spec + " --solve ffn.d_hidden --parameters 10 --out " + to, 2,
                 "to.json");  // which has bytes in it
  expect_refused("plan " + spec + " --solve ffn.d_hidden --parameters 10", 2, "is out of reach of");
  expect_refused("plan " + spec + " --solve ffn.d_hidden", 2, "with no goal");
  expect_refused("plan " + spec + " --parameters 10", 2, "without --solve");
  expect_refused("plan " + spec + " --solve ffn.d_hidden --parameters 1M --flops 1M", 2,
                 "with several goals");
  expect_refused("plan " + spec + " --solve ffn.d_hidden --parameters 1X", 2,
                 "[--parameters] found \"1X\"");
}

TEST_F(Cli, DevicesThatAreMissingAreRefused) {
  const std::string generate = "generate " + kGoldens + "/llama/gguf/base.gguf --prompt '!' ",
                    eval = "eval " + kGoldens + "/llama/gguf/base.gguf --text x ",
                    train = "train recipe.json --out " + (folder_ / "run").string() + " ";
  const Outcome plain = run(generate + "--max-new-tokens 4"),
                named = run(generate + "--max-new-tokens 4 --device cpu");
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(named.out, plain.out);
  const std::string model = kGoldens + "/llama/base ";
  const std::vector<std::string> verbs = {
      generate,
      eval,
      train,
      "chat " + model + "-p x ",
      "serve " + model + "--port 0 ",
      "embed " + model + "-p x ",
      "classify " + model + "-p x ",
      "forward " + model + "--input x --out " + (folder_ / "x").string() + " ",
      "finetune " + model + "--data x --out " + (folder_ / "run").string() + " ",
      "compare recipe.json --out " + (folder_ / "run").string() + " ",
      "bench " + model,
      "verify " + model};
  for (const std::string& verb : verbs) {
    expect_refused(verb + "--device tpu", 2, "[device] \"tpu\"; expected cpu, cuda");
    expect_refused(verb + "--device cuda:x", 2, "[device] \"cuda:x\"; expected");
  }
  const Outcome doctor = run("doctor --json");
  const spec::Json report = spec::parse_json(doctor.out, "doctor");
  EXPECT_EQ(report["devices"][0], "cpu");
  if (report["cuda"] == "available") return;
  const Outcome chosen = run(generate + "--max-new-tokens 4 --device auto");
  EXPECT_EQ(chosen.out, plain.out);
  EXPECT_EQ(chosen.err.find("tessera: device auto: cpu, since cuda is not available: " +
                            report["cuda"].get<std::string>() + "\n"),
            0u)
      << chosen.err;
  for (const std::string& verb : verbs)
    expect_refused(verb + "--device cuda", 2,
                   "[device] cuda: " + report["cuda"].get<std::string>());
}

TEST_F(Cli, TheTableOfAttentionSaysWhatItsWordsMean) {
  const spec::Json report = spec::parse_json(run("doctor --forms --json").out, "doctor");
  const Outcome text = run("doctor --forms");
  ASSERT_EQ(text.code, 0) << text.err;
  const spec::Json& meaning = report["attention_properties"];
  std::set<std::string> used;
  for (const spec::Json& row : report["attention"]) {
    for (const char* list : {"serves", "needs"})
      for (const spec::Json& word : row[list]) used.insert(word.get<std::string>());
    if (row["form"] == "fused") EXPECT_EQ(row["needs"], spec::Json::array({"device"}));
  }
  for (const std::string& word : used) EXPECT_TRUE(meaning.contains(word)) << word;
  for (const auto& [word, of] : meaning.items()) {
    EXPECT_TRUE(used.contains(word)) << word << " is in no row";
    EXPECT_FALSE(of.get<std::string>().empty()) << word;
    EXPECT_NE(text.out.find(fmt::format("\n{:<24} {}\n", word, of.get<std::string>())),
              std::string::npos)
        << word;
  }
  EXPECT_NE(text.out.find("; needs device\n"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("needs \n"), std::string::npos) << text.out;
}

TEST_F(Cli, TrainingFindsTheSequencesOfAPass) {
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a') << std::string(2000, 'b');
  std::ofstream(folder_ / "recipe.json") << R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 8, "head": "tied",
             "layers": [{}], "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
             "ffn": {"type": "glu", "d_hidden": 16}},
    "data": {"train": ["text.txt"]}, "train": {"steps": 2, "batch": 2, "accumulate": 3, "length": 16}})";
  const std::string start = "train " + (folder_ / "recipe.json").string() + " ",
                    out = (folder_ / "run").string();
  const Outcome found = run(start + "--find-batch --memory 64G");
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_EQ(found.out, "--set train.batch=6 --set train.accumulate=1\n");
  EXPECT_NE(found.err.find("effective batch size 6, memory limit 64000 MB:\n  micro-batch     1 x  "
                           "  6 accumulation"),
            std::string::npos)
      << found.err;
  ASSERT_EQ(run(start + "--find-batch --memory 64G --out " + out).code, 0);
  const spec::Json made = spec::read_json_file(folder_ / "run/recipe.json");
  EXPECT_EQ(made["train"]["batch"], 6);
  EXPECT_EQ(made["train"]["accumulate"], 1);
  const Outcome resumed = run(start + "--find-batch --memory 1M --resume --out " + out);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed with train.batch = 6, train.accumulate = 1"),
            std::string::npos);
  const Outcome small = run(start + "--find-batch --memory 1M");
  EXPECT_EQ(small.code, 1) << small.err;
  EXPECT_NE(small.err.find("one sequence of 16 tokens takes "), std::string::npos) << small.err;
  expect_refused(start + "--find-batch --memory 8X", 2,
                 "expected a size such as 24GiB, 8G or 500M");
  expect_refused(start + "--memory 8G --out x", 2, "--memory has no meaning without --find-batch");
  expect_refused(start, 2, "--out is missing; expected the folder of the run");
}

/// A run that is killed again and again, each time a little later among its changes to files: in
/// the middle of a line of the log, of a checkpoint, between one and its link, while an old one
/// goes.
TEST_F(Cli, ARunKilledAtAnyMomentGoesOnBitForBit) {
  std::string text;
  for (int i = 0; i < 900; ++i) text += std::to_string(i % 100) + (i % 7 == 6 ? "\n" : " ");
  std::ofstream(folder_ / "text.txt") << text;
  std::ofstream(folder_ / "recipe.json") << R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 8, "head": "tied",
             "layers": [{}], "mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
             "residual": {"type": "pre_norm", "dropout": 0.2}, "ffn": {"type": "glu", "d_hidden": 16}},
    "data": {"train": ["text.txt"], "valid_fraction": 0.1},
    "train": {"steps": 7, "batch": 2, "length": 16, "accumulate": 2, "log_every": 1,
              "eval_every": 2, "eval_batches": 2},
    "watch": {"noise_scale": 2, "norms": 3},
    "optimizer": {"lr": 0.3}, "schedule": {"type": "constant"},
    "checkpoint": {"every": 2, "keep": 1, "best": 1}})";
  const auto train = [&](const std::string& out, int kill_at) {
    return run("train " + (folder_ / "recipe.json").string() + " --resume --threads 1 --out " + out,
               kill_at == 0
                   ? ""
                   : fmt::format("LD_PRELOAD='" TESSERA_KILLER "' TESSERA_KILL_AT={} ", kill_at));
  };
  const auto log = [](const fs::path& out) {
    std::string lines;
    std::ifstream file(out / "log.jsonl");
    for (std::string line; std::getline(file, line);) {
      spec::Json json = spec::parse_json(line, "log");
      for (const char* timing : {"seconds", "tokens_per_s"}) json.erase(timing);
      lines += json.dump() + "\n";
    }
    return lines;
  };
  const fs::path whole = folder_ / "whole", killed = folder_ / "killed";
  ASSERT_EQ(train(whole.string(), 0).code, 0);
  int kills = 0;
  for (int code = -1; code != 0; ++kills) {
    ASSERT_LT(kills, 100);
    const Outcome outcome = train(killed.string(), 1 + 7 * kills);
    code = outcome.code;
    ASSERT_TRUE(code == 0 || code == 128 + 9) << code << outcome.err;
  }
  EXPECT_GT(kills, 10);
  EXPECT_EQ(log(killed), log(whole));
  std::map<std::string, std::string> found, wanted;
  for (const auto& [out, files] : {std::pair{killed, &found}, {whole, &wanted}})
    for (const auto& entry : fs::recursive_directory_iterator(out)) {
      const std::string name = entry.path().lexically_relative(out).string();
      // what holds times or the number of the process
      const bool timed = name.ends_with("trainer.json") || name.ends_with("manifest.json") ||
                         name.starts_with("log.") || name.starts_with("events.") || name == "lock";
      (*files)[name] = entry.is_symlink()                  ? fs::read_symlink(entry.path()).string()
                       : entry.is_regular_file() && !timed ? read_text_file(entry.path())
                                                           : std::string();
    }
  for (const auto& [name, content] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found[name] == content) << name;
  }
  for (const auto& [name, content] : found) EXPECT_TRUE(wanted.contains(name)) << name;
}

/// Programs that save over what is there, killed at every one of their changes to files: what can
/// be read afterwards is the old or the new, and nothing is in the way of the next one.
TEST_F(Cli, WhatIsSavedIsOldOrNewAfterAKillAtAnyMoment) {
  const std::string llama = kGoldens + "/llama/gguf/base.gguf", embedder = folder_ / "embedder",
                    place = folder_ / "place";
  fs::copy(kGoldens + "/bert/base", embedder);
  folder_.write("embedder/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\ndog\nsun\nmoon\n");
  fs::create_directory(folder_ / "notes");
  struct Saver {
    std::string name, save;
    std::function<void()> prepare;      // before the second save
    std::function<std::string()> read;  // what is there
  };
  const auto output = [&](const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::vector<Saver> savers = {
      {"session", "generate " + llama + " --prompt AB --max-new-tokens 2 --session '" + place + "'",
       [] {}, [&] { return read_text_file(place); }},
      {"index",
       "index '" + (folder_ / "notes").string() + "' --with '" + embedder + "' --output '" + place +
           "' --tokens 2 --overlap 0",
       [&] { folder_.write("notes/a.txt", "moon\n\nsun\n"); },
       [&] { return output("search '" + place + "' sun --json"); }}};
  for (const Saver& saver : savers) {
    SCOPED_TRACE(saver.name);
    const std::string old = folder_ / (saver.name + ".old");
    folder_.write("notes/a.txt", "cat dog\n\nsun\n");
    output(saver.save);
    fs::copy(place, old, fs::copy_options::recursive);
    const std::string before = saver.read();
    saver.prepare();
    output(saver.save);
    const std::string after = saver.read();
    ASSERT_NE(before, after);
    int kills = 0, kept = 0;
    for (int code = -1; code != 0;) {
      fs::remove_all(place);
      fs::copy(old, place, fs::copy_options::recursive);
      code = run(saver.save,
                 fmt::format("LD_PRELOAD='" TESSERA_KILLER "' TESSERA_KILL_AT={} ", kills + 1))
                 .code;
      ASSERT_TRUE(code == 0 || code == 128 + 9) << code;
      const std::string found = saver.read();
      EXPECT_TRUE(found == before || found == after) << kills << found;
      kept += found == before ? 1 : 0;
      kills += code == 0 ? 0 : 1;
      // the next one is not in the way of what this one has left
      EXPECT_EQ(run(saver.save).code, 0);
    }
    EXPECT_GE(kills, 4);
    EXPECT_GE(kept, 3);
    EXPECT_LE(kept, kills);
    fs::remove_all(place);
  }
}

TEST_F(Cli, ExpertsComeInTrainingAndBecomeOneLayer) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += std::to_string(i * i % 97) + " ";
  std::ofstream(folder_ / "text.txt") << lines;
  std::ofstream(folder_ / "recipe.json") << R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16,
             "layers": [{"mixer": {"type": "attention", "n_heads": 2, "position": "rope"}}],
             "ffn": {"type": "moe", "n_experts": 3, "expert": {"type": "glu", "d_hidden": 16}},
             "head": {"type": "tied"}},
    "data": {"train": ["text.txt"]}, "train": {"steps": 3, "batch": 2, "length": 16},
    "experts": {"grow": [{"at": 2, "to": 4}]}})";
  const std::string model = (folder_ / "run").string(), text = (folder_ / "text.txt").string(),
                    dense = (folder_ / "distilled").string();
  const Outcome trained = run("train " + (folder_ / "recipe.json").string() + " --out " + model);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("step 2: layers.0.ffn 3 -> 4 experts, copies of "), std::string::npos)
      << trained.err;
  const Outcome distilled = run("convert " + model + "/latest --distill-experts --text " + text +
                                " --distill-steps 20 --out " + dense);
  ASSERT_EQ(distilled.code, 0) << distilled.err;
  EXPECT_NE(distilled.err.find("layers.0.ffn: relative error 0."), std::string::npos)
      << distilled.err;
  const Outcome measured = run("eval " + dense + " --text " + text + " --json");
  ASSERT_EQ(measured.code, 0) << measured.err;
  const spec::Json spec = spec::read_json_file(dense + "/spec.json");
  EXPECT_EQ(spec.dump().find("moe"), std::string::npos);
  std::ofstream(folder_ / "short.txt") << "little";
  expect_refused("convert " + model + "/latest --distill-experts --text " +
                     (folder_ / "short.txt").string() + " --out " + (folder_ / "never").string(),
                 2, "expected at least 128");
  EXPECT_FALSE(fs::exists(folder_ / "never"));
}

TEST_F(Cli, ForwardReadsPrefixesAndAxes) {
  // a model of each: one step of training makes it
  std::ofstream(folder_ / "text.txt") << std::string(400, 'a');
  const auto model_of = [&](const std::string& spec) {
    const std::string recipe = (folder_ / (spec + ".json")).string(),
                      run_folder = (folder_ / spec).string();
    std::ofstream(recipe) << fmt::format(
        R"({{"spec": "{}/{}/tiny-{}.json", "data": {{"train": ["text.txt"]}},
            "train": {{"steps": 1, "batch": 1, "length": 16}}}})",
        kZoo, spec, spec);
    const Outcome outcome = run("train " + recipe + " --out " + run_folder);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return run_folder + "/latest";
  };
  const std::string input = (folder_ / "in").string(), output = (folder_ / "out").string();
  const std::vector<int64_t> ids = {9, 8, 7, 6, 5, 4};
  using Tensors = std::vector<std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>>>;
  const auto said = [&](const std::string& model, const Tensors& more) {
    Tensors all = {{"input_ids", {2, 3}, ids}};
    all.insert(all.end(), more.begin(), more.end());
    write_numbers(input, all);
    const Outcome outcome = run("forward " + model + " --input " + input + " --output " + output);
    return outcome.code == 0 ? read_text_file(output) : outcome.err;
  };
  const std::string prefix = model_of("prefix"), m_rope = model_of("m_rope");
  const std::string causal = said(prefix, {});
  EXPECT_EQ(said(prefix, {{"prefix_lengths", {2}, {0, 1}}}), causal);
  EXPECT_NE(said(prefix, {{"prefix_lengths", {2}, {0, 2}}}), causal);
  EXPECT_NE(said(prefix, {{"prefix_lengths", {2}, {0, 4}}}).find("prefix_lengths[1] is 4"),
            std::string::npos);
  EXPECT_NE(said(m_rope, {{"prefix_lengths", {2}, {0, 1}}}).find("is not an input of this model"),
            std::string::npos);

  std::vector<int64_t> text, image = {0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 2, 0, 1, 1, 0, 1, 2};
  for (int i = 0; i < 3; ++i) text.insert(text.end(), {0, 1, 2, 0, 1, 2});
  const std::string plain = said(m_rope, {});
  EXPECT_EQ(said(m_rope, {{"position_ids", {3, 2, 3}, text}}), plain);
  EXPECT_NE(said(m_rope, {{"position_ids", {3, 2, 3}, image}}), plain);
  text.resize(12);
  EXPECT_NE(said(m_rope, {{"position_ids", {2, 2, 3}, text}}).find("expected [2, 3] as input_ids"),
            std::string::npos);
  EXPECT_NE(said(prefix, {{"position_ids", {3, 2, 3}, image}}).find("no layer has position"),
            std::string::npos);
}

/// A file of named float tensors, their values 0, 0.1, .. 0.6, 0, ...; with a spec a model.
void write_floats(const std::string& path,
                  const std::vector<std::pair<std::string, std::vector<int64_t>>>& all,
                  const std::string& spec = "") {
  std::vector<std::tuple<std::string, std::vector<int64_t>, std::vector<float>>> tensors;
  for (const auto& [name, shape] : all) {
    std::vector<float> values(static_cast<size_t>(format::element_count(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1F * static_cast<float>(i % 7);
    tensors.emplace_back(name, shape, std::move(values));
  }
  format::StringMap metadata;
  if (!spec.empty()) metadata = {{"format", "pt"}, {"tessera_spec", spec}};
  write_tensors(path, DType::f32, tensors, metadata);
}

TEST_F(Cli, ForwardReadsFeaturesAndSound) {
  const fs::path model = folder_ / "sound";
  fs::create_directories(model);
  const char* spec = R"({"tessera": 1, "arch": "encoder", "vocab": 1, "d_model": 2,
      "embed": {"type": "frames", "channels": 2}, "layers": [{"ffn": {"type": "linear"}}]})";
  write_floats((model / "model.safetensors").string(),
               {{"embed.conv0.weight", {2, 6}},
                {"embed.conv0.bias", {2}},
                {"embed.conv1.weight", {2, 6}},
                {"embed.conv1.bias", {2}},
                {"layers.0.ffn_norm.weight", {2}},
                {"layers.0.ffn.out.weight", {2, 2}},
                {"final_norm.weight", {2}}},
               spec);
  const std::string input = (folder_ / "in").string(), output = (folder_ / "out").string();
  const auto forward = [&](const std::string& more) {
    return run("forward " + model.string() + " --output " + output + more);
  };
  const auto complains = [](const Outcome& outcome, int code, const std::string& words) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  };
  write_floats(input, {{"input_features", {2, 2, 9}}});
  const Outcome read = forward(" --input " + input);
  ASSERT_EQ(read.code, 0) << read.err;
  EXPECT_NE(read_text_file(output).find(R"("shape":[2,5,2])"), std::string::npos);
  write_floats(input, {{"input_features", {1, 3, 9}}});
  complains(forward(" --input " + input), 1,
            "input_features of document 0 is float [3, 9]; expected floats [2, frames]");
  write_numbers(input, {{"input_ids", {1, 3}, {9, 8, 7}}});
  complains(forward(" --input " + input), 1, "is not an input of this model");

  std::ofstream(folder_ / "no.wav") << "no sound";
  complains(forward(" --audio " + (folder_ / "no.wav").string()), 1, "no WAV file");
  std::string wav = "RIFF....WAVEfmt ";
  const auto number = [&](uint32_t value, int bytes) {
    wav.append(reinterpret_cast<const char*>(&value), static_cast<size_t>(bytes));
  };
  number(16, 4), number(1, 2), number(1, 2), number(16000, 4), number(32000, 4), number(2, 2);
  number(16, 2), wav += "data", number(3200, 4), wav.append(3200, '\3');
  std::ofstream(folder_ / "a.wav", std::ios::binary) << wav;
  const Outcome heard = forward(" --audio " + (folder_ / "a.wav").string());
  ASSERT_EQ(heard.code, 0) << heard.err;
  EXPECT_NE(read_text_file(output).find(R"("shape":[1,1500,2])"), std::string::npos);
  complains(run("forward " + kGoldens + "/bert/base --output " + output + " --audio " +
                (folder_ / "a.wav").string()),
            2, "--audio with a model that reads no sound");
  expect_refused("forward " + model.string() + " --output " + output, 2,
                 "expected --input or --audio");

  // and what an encoder with a decoder beside it answers
  const std::string audio = " --audio " + (folder_ / "a.wav").string(),
                    say = " --max-new-tokens 4 --answer-prefix 7 --json";
  const Outcome answered = run("generate " + kGoldens + "/whisper/base" + audio + say);
  ASSERT_EQ(answered.code, 0) << answered.err;
  const spec::Json answer = spec::parse_json(answered.out, "generate --json");
  EXPECT_EQ(answer["prompt_tokens"], 1500);
  EXPECT_EQ(answer["token_ids"].size(), 4u);
  EXPECT_EQ(answer["token_ids"][0], 7);
  complains(run("generate " + kGoldens + "/t5/base" + audio), 2,
            "--audio with a model that reads no sound");
  complains(run("generate " + kGoldens + "/whisper/base --input-ids 1"), 2,
            "this model answers input_features [8, frames], not ids");
  complains(run("forward " + kGoldens + "/whisper/base --output " + output + audio), 2,
            "--audio with a model that has a decoder");
}

TEST_F(Cli, ForwardTakesNoInputThatChangesNothing) {
  const std::string input = (folder_ / "in").string();
  const auto said = [&](const std::string& family, const std::string& name) {
    write_numbers(input, {{"input_ids", {1, 3}, {9, 8, 7}}, {name, {1, 3}, {0, 1, 1}}});
    return run("forward " + kGoldens + "/" + family + "/base --input " + input + " --output " +
               (folder_ / "out").string());
  };
  for (const auto& [family, name] :
       {std::pair("llama", "token_type_ids"), std::pair("llama", "global_attention_mask"),
        std::pair("bert", "global_attention_mask"), std::pair("mpnet", "token_type_ids")}) {
    const Outcome outcome = said(family, name);
    EXPECT_EQ(outcome.code, 1) << family;
    EXPECT_NE(outcome.err.find(fmt::format("tensor \"{}\" is not an input of this model", name)),
              std::string::npos)
        << outcome.err;
  }
  EXPECT_EQ(said("bert", "token_type_ids").code, 0);
  EXPECT_EQ(said("longformer", "global_attention_mask").code, 0);
}

TEST_F(Cli, PairsNeedATargetAndAnswerTheirSource) {
  const std::string model = kGoldens + "/t5/v1_1", input = (folder_ / "in.safetensors").string();
  write_ids(input, false);
  const Outcome half =
      run("forward " + model + " --input " + input + " --output " + (folder_ / "o").string());
  EXPECT_EQ(half.code, 1);
  EXPECT_NE(half.err.find("\"decoder_input_ids\" is missing"), std::string::npos) << half.err;
  for (const std::string beams : {"1", "3"}) {
    const Outcome outcome =
        run("generate " + model + " --input-ids 9,5,4 --max-new-tokens 5 --json --beams " + beams);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const spec::Json json = spec::parse_json(outcome.out, "stdout");
    EXPECT_EQ(json["token_ids"].size(), 5u);
    EXPECT_EQ(json["prompt_tokens"], 3);
  }
  const std::string bart = kGoldens + "/bart/base",
                    ids = " --input-ids 9,5,4 --max-new-tokens 3 --json";
  const auto said = [&](const std::string& how) {
    return spec::parse_json(run("generate " + bart + ids + how).out, "stdout")["token_ids"];
  };
  EXPECT_EQ(said(" --answer-prefix 7,40"), spec::Json({7, 40}));  // its config forces the end
  EXPECT_EQ(said(" --answer-prefix 7,40 --ignore-eos").size(), 3u);
  expect_refused("generate " + tiny() + ids + " --answer-prefix 7", 2, "write it into the prompt");
  expect_refused("generate " + bart + ids + " --answer-prefix 99", 1, "forced id 99");
}

TEST_F(Cli, JsonOfGenerate) {
  const Outcome outcome =
      run("generate " + tiny() + " --input-ids 1,2,3 --max-new-tokens 5 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const spec::Json json = spec::parse_json(outcome.out, "stdout");
  for (const char* key : {"text", "token_ids", "prompt_tokens", "finish_reason",
                          "prefill_tokens_per_s", "decode_tokens_per_s"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["token_ids"].size(), 5u);
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST_F(Cli, LinesOfAFileAreAnsweredAsPromptsAre) {
  const std::string model = kGoldens + "/llama/gguf/base.gguf --max-new-tokens 4 --ignore-eos",
                    file = folder_.write("questions.jsonl",
                                         "{\"q\": \"A1\", \"n\": 1}\n\n{\"q\": \"B2C\"}\n"
                                         "{\"q\": \"D\"}\n");
  const std::string lines = "generate " + model + " --at-once 2 --prompts-from " + file;
  const auto answered = [&](const std::string& how) {
    const Outcome outcome = run(lines + how);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::istringstream out(outcome.out);
    std::vector<spec::Json> all;
    for (std::string line; std::getline(out, line);)
      all.push_back(spec::parse_json(line, "stdout"));
    return all;
  };
  const auto apart = answered(" --prompt-key q"),
             joined = answered(" --prompt-key q --answer-key q");
  ASSERT_EQ(apart.size(), 3u);
  ASSERT_EQ(joined.size(), 3u);
  EXPECT_EQ(apart[0]["n"], 1);
  for (size_t i = 0; i < apart.size(); ++i) {
    const auto prompt = apart[i]["q"].get<std::string>();
    const Outcome alone = run("generate " + model + " --json --prompt " + prompt);
    EXPECT_EQ(apart[i]["answer"], spec::parse_json(alone.out, "stdout")["text"]) << prompt;
    EXPECT_EQ(joined[i]["q"], prompt + apart[i]["answer"].get<std::string>());
  }
  // beside what was expected, which here is what is said
  std::string known;
  for (const spec::Json& line : apart)
    known += spec::Json{{"q", line["q"]}, {"wanted", line["answer"]}}.dump() + "\n";
  const Outcome scored =
      run("generate " + model + " --prompt-key q --expected-key wanted --prompts-from " +
          folder_.write("known.jsonl", known));
  EXPECT_NE(scored.err.find(", chrF 100.00, length ratio 1.000"), std::string::npos) << scored.err;
  EXPECT_NE(scored.err.find(", exact match 3 of 3\n"), std::string::npos) << scored.err;
  expect_refused(lines + " --prompt-key q --expected-key wanted", 1, "no text under \"wanted\"");
  expect_refused(lines, 1, "questions.jsonl:1]");
  expect_refused(lines + " --prompt A", 2, "--prompt with --prompts-from");
  expect_refused("generate " + model + " --answer-key a --prompt A", 2, "--prompts-from");
}

TEST_F(Cli, AnswersAreHeldToAForm) {
  // its tokens are single characters from ! to [
  const std::string start =
      "generate " + kGoldens +
      "/llama/gguf/base.gguf --prompt ABC --temperature 2 --max-new-tokens 12 ";
  const auto file = [&](const char* name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return "'" + (folder_ / name).string() + "'";
  };
  const std::string schema = file("schema.json",
                                  R"({"type": "integer", "minimum": 10, "maximum": 500})"),
                    grammar = file("moves.gbnf", "root ::= [A-H] [1-8] (\"-\" [A-H] [1-8])?\n"),
                    braces = file("object.json", R"({"type": "object"})"),
                    recursive = file("left.gbnf", "root ::= root \"A\" | \"B\"");
  std::set<std::string> answers;
  for (int seed = 0; seed < 8; ++seed) {
    const std::string with = start + "--seed " + std::to_string(seed);
    const Outcome number = run(with + " --json-schema " + schema);
    ASSERT_EQ(number.code, 0) << number.err;
    // without the prompt, which is no part of the answer
    const spec::Json value = spec::parse_json(number.out, "stdout");
    EXPECT_TRUE(value.is_number_integer() && value >= 10 && value <= 500) << number.out;
    answers.insert(number.out);
    const Outcome move = run(with + " --grammar " + grammar + " --lookup 2");
    ASSERT_EQ(move.code, 0) << move.err;
    EXPECT_TRUE(move.out.size() == 3 || move.out.size() == 6) << move.out;
    const Outcome yes = run(with + " --regex 'YES|NO'");
    EXPECT_TRUE(yes.out == "YES\n" || yes.out == "NO\n") << yes.out << yes.err;
  }
  EXPECT_GT(answers.size(), 2u);
  const Outcome cut = run(start + "--regex '[A-Z]{20}!' --json");
  EXPECT_EQ(cut.code, 1);
  expect_complaint(cut, 1, "the answer was cut after 12 new tokens; expected more of \"root\"");
  EXPECT_EQ(spec::parse_json(cut.out, "stdout")["cut"],
            "after 12 new tokens; expected more of \"root\"");
  expect_complaint(
      run(start + "--json-schema " + braces), 1,
      "constrained decoding: no token is allowed after 0 new tokens; the grammar expects '{'");
  expect_complaint(run(start + "--grammar " + recursive), 1, "left recursion: root -> root");
  expect_complaint(run(start + "--regex '(?=A)'"), 1, "look-around");
  expect_refused(start + "--regex A --grammar " + grammar, 2, "--grammar");
  expect_refused("generate " + tiny() + " --input-ids 1 --beams 2 --regex A", 2,
                 "--regex with --beams 2");
  expect_complaint(run("generate " + tiny() + " --input-ids 1 --regex A"), 2, "has no tokenizer");
}

TEST_F(Cli, ChoicesAndLikelihoods) {
  const std::string start = "generate " + kGoldens +
                            "/llama/gguf/base.gguf --prompt ABC --max-new-tokens 6 --ignore-eos ";
  const Outcome outcome = run(start + "--temperature 1.5 --choices 3 --json --logprobs 2");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const spec::Json rows = spec::parse_json(outcome.out, "stdout");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_NE(rows[0]["token_ids"], rows[1]["token_ids"]);
  for (const spec::Json& row : rows) {
    ASSERT_EQ(row["logprobs"].size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      const spec::Json& one = row["logprobs"][i];
      EXPECT_EQ(one["id"], row["token_ids"][i]);
      ASSERT_EQ(one["top"].size(), 2u);
      EXPECT_GE(one["top"][0]["logprob"], one["top"][1]["logprob"]);
      EXPECT_GE(one["top"][0]["logprob"], one["logprob"]);
      EXPECT_LT(one["logprob"].get<double>(), 0);
    }
  }
  // a bias has the last word where there is no chance
  const Outcome never = run(start + "--logit-bias 3:100 --json");
  EXPECT_EQ(spec::parse_json(never.out, "stdout")["text"], "!!!!!!");
  expect_refused(start + "--logprobs 2", 2, "--logprobs without --json");
  expect_complaint(run(start + "--choices 2"), 2,
                   "at temperature 0 (greedy decoding) gives equal completions");
  expect_refused(start + "--logit-bias 3", 2, "expected the id of a token and a number");
  expect_refused(start + "--logit-bias 3:x", 2, "expected the id of a token and a number");
  expect_complaint(run(start + "--logit-bias 900:1"), 1, "logit_bias: token id 900");
}

TEST_F(Cli, AFolderSaysHowItsTokensAreChosen) {
  namespace fs = std::filesystem;
  const fs::path model = folder_ / "sampling";
  fs::copy(fs::path(tiny()), model, fs::copy_options::recursive);
  const std::string start =
      "generate '" + model.string() + "' --input-ids 1,2,3 --max-new-tokens 8 --ignore-eos --json ";
  const auto ids = [&](const std::string& flags) {
    const Outcome outcome = run(start + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "stdout")["token_ids"];
  };
  const spec::Json greedy = ids("--generation-config none");
  const spec::Json sampled = ids("--generation-config none --temperature 2 --top-k 30");
  EXPECT_NE(greedy, sampled);
  std::ofstream(model / "generation_config.json") << R"({"do_sample": true, "temperature": 2.0,
      "top_k": 30})";
  EXPECT_EQ(ids(""), sampled);
  EXPECT_EQ(ids("--temperature 0"), greedy);
  EXPECT_EQ(ids("--generation-config none"), greedy);
  std::ofstream(model / "generation_config.json") << R"({"temperature": 2.0, "top_k": 30})";
  EXPECT_EQ(ids(""), greedy);
}

// what decides tokens, and why a text ends
TEST_F(Cli, SaysHowItDecodesAndWhyATextEnds) {
  const std::string start = "generate " + tiny() + " --input-ids 1,2,3 --ignore-eos ";
  const auto err = [&](const std::string& flags) {
    const Outcome outcome = run(start + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  const auto first_line = [&](const std::string& flags) {
    const std::string all = err(flags + " --max-new-tokens 2");
    return all.substr(0, all.find('\n'));
  };
  EXPECT_EQ(first_line("--generation-config none"), "decoding: greedy");
  EXPECT_EQ(first_line("--generation-config none --temperature 0.5 --top-k 3 --seed 4"),
            "decoding: temperature 0.5, top-k 3, seed 4");
  EXPECT_EQ(first_line("--generation-config none --beams 3"), "decoding: beam search with 3 beams");
  EXPECT_NE(first_line("--temperature 1 --seed -1"), first_line("--temperature 1 --seed -1"));
  EXPECT_NE(err("--max-new-tokens 4").find("ended by: 4 new tokens, the maximum\n"),
            std::string::npos);
  EXPECT_NE(err("--max-new-tokens 90 --context 9")
                .find("ended by: the context is full (--context-shift continues)\n"),
            std::string::npos);
  // one token is read with the first that is chosen, so that nothing was measured
  const std::string one = run("generate " + tiny() + " --input-ids 1 --max-new-tokens 1").err;
  EXPECT_EQ(one.find("000000.0 tokens/s"), std::string::npos) << one;
  const auto json = [&](const std::string& flags) {
    return spec::parse_json(run(start + "--json " + flags).out, "stdout");
  };
  EXPECT_EQ(json("--max-new-tokens 3").at("limit"), "max_new_tokens");
  EXPECT_EQ(json("--max-new-tokens 90 --context 9").at("limit"), "context");
  expect_refused(
      start + "--context 2", 1,
      "the prompt has 3 tokens; --context is 2 (the model's is 64): shorten it, or raise");
}

// keys that change the text, beside the flags that do the same; what is not supported is named
TEST_F(Cli, AFolderSaysMoreOfItsDecoding) {
  namespace fs = std::filesystem;
  const fs::path model = folder_ / "decoding";
  fs::copy(fs::path(tiny()), model, fs::copy_options::recursive);
  const std::string start =
      "generate '" + model.string() + "' --input-ids 5,9,10,10,9,5,20,7 --json ";
  const auto with = [&](const std::string& config, const std::string& flags = "") {
    std::ofstream(model / "generation_config.json") << config;
    const Outcome outcome = run(start + "--max-new-tokens 20 " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return std::pair(spec::parse_json(outcome.out, "stdout")["token_ids"], outcome.err);
  };
  const spec::Json plain = with("{}").first;
  const int64_t first = plain[0];
  const auto alike = [&](const std::string& config, const std::string& flags) {
    const auto [got, err] = with(config);
    EXPECT_EQ(got, with("{}", flags).first) << config;
    EXPECT_NE(got, plain) << config;
    EXPECT_NE(err.find("(generation_config.json)"), std::string::npos) << err;
  };
  alike(R"({"repetition_penalty": 1.3})", "--repetition-penalty 1.3");
  alike(R"({"no_repeat_ngram_size": 1})", "--no-repeat-ngram-size 1");
  alike(fmt::format(R"({{"suppress_tokens": [{}]}})", first),
        fmt::format("--logit-bias {}:-inf", first));
  alike(fmt::format(R"({{"bad_words_ids": [[{}]]}})", first),
        fmt::format("--logit-bias {}:-inf", first));
  alike(fmt::format(R"({{"sequence_bias": [[[7, {}], -50.0]]}})", first),
        fmt::format("--logit-bias 7,{}:-50", first));
  const auto [beams, err] = with(R"({"num_beams": 3})");
  EXPECT_EQ(beams, with("{}", "--beams 3").first);
  EXPECT_NE(err.find("decoding: beam search with 3 beams"), std::string::npos) << err;
  // flags win
  EXPECT_EQ(with(R"({"num_beams": 3})", "--temperature 0").first, plain);
  EXPECT_NE(
      with(R"({"num_beams": 3})", "--temperature 0").second.find("without effect: num_beams = 3"),
      std::string::npos);
  EXPECT_EQ(with(R"({"repetition_penalty": 1.3})", "--repetition-penalty 1").first, plain);
  EXPECT_EQ(with(R"({"repetition_penalty": 1.3})", "--generation-config none").first, plain);
  EXPECT_NE(with(R"({"guidance_scale": 3, "max_time": 1.5})")
                .second.find("tessera: generation_config.json: without effect: max_time = 1.5, "
                             "guidance_scale = 3\n"),
            std::string::npos);
  std::ofstream(model / "generation_config.json") << R"({"max_new_tokens": 5})";
  EXPECT_EQ(spec::parse_json(run(start).out, "stdout")["token_ids"].size(), 5u);
  std::ofstream(model / "generation_config.json") << R"({"max_length": 11})";
  EXPECT_EQ(spec::parse_json(run(start).out, "stdout")["token_ids"].size(), 3u);
  std::ofstream(model / "generation_config.json") << R"({"max_length": 8})";
  expect_refused(start, 2, "with max_length 8, which counts these; expected --max-new-tokens");
}

TEST_F(Cli, ASessionGoesOn) {
  for (const std::string family : {"llama", "mamba2", "t5"}) {
    const std::string model = kGoldens + "/" + family + (family == "t5" ? "/v1_1" : "/base");
    const std::string file = (folder_ / family).string();
    const std::string how =
        "generate " + model + " --ignore-eos --temperature 0.9 --json --max-new-tokens ";
    const auto ids = [&](const std::string& arguments) {
      const Outcome outcome = run(how + arguments);
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      return outcome.code == 0 ? spec::parse_json(outcome.out, "stdout")["token_ids"]
                               : spec::Json::array();
    };
    const spec::Json want = ids("12 --input-ids 9,5,4 --seed 3");
    ASSERT_EQ(want.size(), 12u);
    spec::Json got = ids("5 --input-ids 9,5,4 --seed 3 --session " + file);
    for (const auto& id : ids("7 --session " + file)) got.push_back(id);  // with its own seed
    EXPECT_EQ(got, want) << family;
    for (const auto& entry : fs::directory_iterator(fs::path(file).parent_path()))
      EXPECT_FALSE(entry.path().string().ends_with(".partial")) << entry.path();
  }
}

TEST_F(Cli, SessionErrors) {
  const std::string file = (folder_ / "tale").string(), with = " --session " + file;
  const std::string ids = " --input-ids 1,2,3 --max-new-tokens 2 --no-echo";
  expect_refused("generate " + tiny() + with, 2, "nothing to continue");
  expect_refused("generate " + tiny() + ids + " --session " + (folder_ / "no/tale").string(), 2,
                 "there is no folder");
  ASSERT_EQ(run("generate " + tiny() + ids + with).code, 0);
  const std::string before = read_text_file(file);
  expect_refused("generate " + kGoldens + "/llama/mlp_bias" + ids + with, 1,
                 "made by another model: it differs in");
  expect_refused("generate " + tiny() + ids + with + " --beams 2", 2, "a session has one sequence");
  expect_refused("generate " + tiny() + with + " --input-ids 1,64", 1, "token id 64");
  EXPECT_EQ(read_text_file(file), before);
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_refused("generate " + tiny() + ids + with, 1, file);
  EXPECT_EQ(read_text_file(file), before.substr(0, before.size() - 1));
  std::ofstream(file) << "not a session";
  expect_refused("generate " + tiny() + ids + with, 1, file);
  expect_refused("generate " + tiny() + ids + " --session " + folder_.path().string(), 1,
                 "regular file");
}

TEST_F(Cli, APrefixCacheSharesWork) {
  const std::string model = kGoldens + "/llama/gguf/base.gguf";
  // its tokens are single characters from ! to [
  const std::string prompts =
      " --prompt ABCDEFGHIJKLMNOPQRSTU01 --prompt ABCDEFGHIJKLMNOPQRSTU23 "
      "--prompt ABCDEFGHIJKLMNOPQRSTU01 --max-new-tokens 4 --json";
  const Outcome plain = run("generate " + model + prompts);
  const Outcome cached = run("generate " + model + prompts + " --prefix-cache 1");
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(cached.code, 0) << cached.err;
  const spec::Json want = spec::parse_json(plain.out, "stdout"),
                   got = spec::parse_json(cached.out, "stdout");
  int64_t shared = 0;
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(got[r]["token_ids"], want[r]["token_ids"]);
    EXPECT_EQ(want[r]["cached_tokens"], 0);
    shared += got[r]["cached_tokens"].get<int64_t>();
  }
  EXPECT_GT(shared, 0);
  EXPECT_EQ(got[0]["prefix_cache"]["cached_tokens"], shared);
  EXPECT_EQ(got[0]["prefix_cache"]["budget_bytes"], 1 << 20);
  expect_refused("generate " + model + prompts + " --prefix-cache 0", 2, "--prefix-cache");
  expect_refused("generate " + model + prompts + " --snapshot-every 8", 2, "--prefix-cache");
  // what is sorted by content leaves nothing to go on from
  expect_refused("generate " + kGoldens + "/reformer/base --input-ids 1 --prefix-cache 1", 2,
                 "cannot continue from what another prompt has left");
}

TEST_F(Cli, EvalOfAnNgram) {
  const std::string text = (kSource / "examples/data/shakespeare.txt").string();
  const Outcome outcome =
      run("eval --ngram 3 --text " + text + " --train-fraction 0.9 --max-tokens 2000 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const spec::Json json = spec::parse_json(outcome.out, "stdout");
  EXPECT_EQ(json["tokens"], 2000);
  EXPECT_NEAR(json["bits_per_byte"].get<double>(), json["nll"].get<double>() / std::log(2.0), 1e-9);
  expect_refused("eval --text " + text, 2, "expected a MODEL or --ngram");
  expect_refused("eval --ngram 3 --text " + text, 2, "--train-fraction between 0 and 1");
  expect_refused("eval " + tiny() + " --ngram 3 --text " + text, 2, "excludes");
}

TEST_F(Cli, VerifyNamesThePlaceAboveTheBound) {
  const std::string mamba2 = kGoldens + "/mamba2/base";
  const Outcome good = run("verify " + mamba2 + " --tokens 40 --json");
  EXPECT_EQ(good.code, 0) << good.out << good.err;
  const spec::Json json = spec::parse_json(good.out, "stdout");
  EXPECT_TRUE(json["holds"]);
  EXPECT_EQ(json["logits"].size(), 4u);
  const Outcome bad = run("verify " + mamba2 + " --tokens 40 --bound 1e-12");
  EXPECT_EQ(bad.code, 3) << bad.out << bad.err;
  EXPECT_NE(bad.out.find("DOES NOT HOLD"), std::string::npos) << bad.out;
  EXPECT_NE(bad.out.find("at layers."), std::string::npos) << bad.out;
  const Outcome encoder = run("verify " + kGoldens + "/bert/base --tokens 20");
  EXPECT_EQ(encoder.code, 0) << encoder.out << encoder.err;
  EXPECT_NE(encoder.out.find("in a batch"), std::string::npos) << encoder.out;
  expect_refused("verify " + tiny() + " --text /nowhere.txt", 2, "no tokenizer");
}

TEST_F(Cli, VerifySaysWhatItChecks) {
  const auto said = [&](const std::string& arguments) {
    const Outcome outcome = run("verify " + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome.out;
  };
  const auto says = [](const std::string& out, const std::string& words) {
    EXPECT_NE(out.find(words), std::string::npos) << out;
  };
  says(said(kGoldens + "/gpt2/base --tokens 50"), "32 of 50 tokens: this model's context length");
  const std::string text = folder_.write("short.txt", "ABCDEFGH");
  const std::string gguf = kGoldens + "/llama/gguf/base.gguf";
  says(said(gguf + " --text " + text), "8 of 200 tokens: length of the text");
  const std::string changing = said(changing_angles() + " --tokens 40");
  says(changing, "16 of 40 tokens in every form except \"recomputed\": all angles change after");
  says(changing, "logits    recomputed");
  says(said(kGoldens + "/reformer/base --tokens 20"),
       "not compared: chunked, recurrent, rolled back; the model has no state to "
       "continue from: lsh_attention");
  const spec::Json json =
      spec::parse_json(said(changing_angles() + " --tokens 40 --json"), "stdout");
  EXPECT_EQ(json["continued_tokens"], 16);
  EXPECT_EQ(json["tokens"], 40);
}

TEST_F(Cli, BenchChecksEveryDepthFirst) {
  const std::string gpt2 = "bench " + kGoldens + "/gpt2/base --repeats 1 ";
  expect_refused(gpt2 + "--prefill 8 --decode 2 --depth 0,30", 2,
                 "--depth 30 and --prefill 8 are 38 tokens; this model has positions for 32");
  expect_refused("bench " + changing_angles() + " --prefill 8 --decode 4 --depth 0,14", 2,
                 "--depth 14 and --prefill 8 are 22 tokens, and all angles of this model change "
                 "after 16");
  const std::string lsh = "bench " + kGoldens + "/reformer/base --repeats 1 --prefill 8 ";
  const Outcome outcome = run(lsh + "--json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("no decode: this model cannot continue"), std::string::npos);
  const spec::Json row = spec::parse_json(outcome.out, "stdout")["rows"][0];
  EXPECT_GT(row["prefill_tokens_per_s"], 0);
  EXPECT_FALSE(row.contains("decode_tokens_per_s"));
  expect_refused(lsh + "--depth 4", 2, "needs a model with a state, but lsh_attention");
  // a limit is named where speed comes near one
  const Outcome speeds = run(gpt2 + "--prefill 8 --decode 2 --matrices --json");
  ASSERT_EQ(speeds.code, 0) << speeds.err;
  const spec::Json measured = spec::parse_json(speeds.out, "stdout"), rows = measured["rows"];
  // every kind of matrix once, the head too, which is the table of embeddings here
  std::set<std::string> kinds;
  for (const spec::Json& matrix : measured["matrices"]) {
    EXPECT_TRUE(kinds.insert(matrix["name"]).second) << matrix;
    EXPECT_EQ(matrix["types"], spec::Json::array({"f32"})) << matrix;
    EXPECT_GT(matrix["bytes"], 0) << matrix;
    EXPECT_GT(matrix["read_share"], 0) << matrix;
  }
  EXPECT_EQ(kinds.count("head"), 1u);
  EXPECT_EQ(kinds.count("mixer.o"), 1u);
  for (const char* what : {"prefill_limits", "decode_limits"}) {
    const spec::Json& at = rows[0][what];
    const double read = at["read_share"], done = at["flops_share"];
    EXPECT_EQ(at["limited_by"], read < 0.3 && done < 0.3 ? "neither"
                                : read >= done           ? "reading"
                                                         : "arithmetic")
        << at;
  }
}

TEST_F(Cli, KvTypesWhereNothingIsRounded) {
  expect_refused("plan " + kZoo + "/mamba2/mamba2-130m.json --kv-type int8", 2,
                 "[kv-type] int8, but no layer of this model keeps keys and values");
  const std::string text = folder_.write("kv.txt", "1 2 3");
  for (const auto& [verb, rest] :
       {std::pair<std::string, std::string>{"generate ", " --input-ids 1,2"},
        {"eval ", " --text " + text},
        {"bench ", " --repeats 1"}})
    for (const auto& [model, why] :
         {std::pair{"/mamba2/base", "[kv-type] fp8, but no layer of this model keeps"},
          std::pair{"/reformer/base", "[kv-type] fp8 for a model that keeps no keys and values"}})
      expect_refused(verb + kGoldens + model + rest + " --kv-type fp8", 2, why);
  expect_refused("plan " + kZoo + "/reformer/reformer-crime-and-punishment.json --kv-type int8", 2,
                 "keeps no keys and values: lsh_attention");
  const std::string hybrid = folder_.write("hybrid.json", R"({"tessera": 1, "arch": "decoder",
      "vocab": 9, "d_model": 8, "ffn": null, "layers": [
      {"mixer": {"type": "attention", "n_heads": 2}},
      {"mixer": {"type": "hyena", "max_length": 64}}]})");
  const Outcome plan = run("plan " + hybrid + " --kv-type int8");
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("f32 stays in layers.1.mixer (hyena)"), std::string::npos) << plan.out;
}

TEST_F(Cli, KeysAndValuesHaveNoMoreBitsThanTheWeightsUnlessAsked) {
  const auto type_of = [this](const std::string& model, const std::string& flags) {
    const Outcome bench =
        run("bench " + model + " --prefill 4 --decode 2 --repeats 1 --json" + flags);
    EXPECT_EQ(bench.code, 0) << bench.err;
    return spec::parse_json(bench.out, "bench")["rows"][0]["kv_type"].get<std::string>();
  };
  const std::string plain = kGoldens + "/llama/base", half = (folder_ / "half").string();
  fs::create_directories(half);
  fs::copy_file(plain + "/config.json", half + "/config.json");
  const format::TensorFile file = format::open_safetensors(plain + "/model.safetensors");
  std::vector<format::TensorView> views;
  std::list<std::vector<uint16_t>> halves;
  for (const format::TensorView& view : file.tensors()) {
    ASSERT_EQ(view.dtype, DType::f32);
    const auto* from = reinterpret_cast<const float*>(view.data.data());
    auto& to = halves.emplace_back(view.data.size() / sizeof(float));
    std::transform(from, from + to.size(), to.begin(), float_to_f16);
    views.push_back({view.name, DType::f16, view.shape, std::as_bytes(std::span(to)), {}});
  }
  format::write_safetensors(half + "/model.safetensors", views, {{"format", "pt"}});
  EXPECT_EQ(type_of(plain, ""), "f32");
  EXPECT_EQ(type_of(half, ""), "f16");
  EXPECT_EQ(type_of(half, " --exact"), "f32");
  EXPECT_EQ(type_of(half, " --kv-type f32"), "f32");
  EXPECT_EQ(type_of(half, " --kv-type int8 --exact"), "int8");
  // what keeps no keys and values has none to round
  EXPECT_EQ(type_of(kGoldens + "/mamba2/base", ""), "f32");
}

TEST_F(Cli, ProductsInDigitsOrNot) {
  const std::string plain = kGoldens + "/llama/gguf/base.gguf",
                    blocks = kGoldens + "/gpt_oss/mxfp4";
  for (const std::string verb : {"generate ", "embed ", "bench ", "eval "}) {
    const std::string rest = verb == "generate " ? " --prompt x"
                             : verb == "bench "  ? ""
                             : verb == "eval "   ? " --text " + folder_.write("text", {"ab", 2})
                                                 : " --text x";
    expect_refused(verb + plain + rest + " --fast", 2,
                   "[fast] no weight of this model is quantized, and its float weights are "
                   "multiplied in float32 on this processor; expected a quantized model");
    expect_refused(verb + plain + rest + " --fast --exact", 2, "--exact");
    expect_refused(verb + plain + rest + " --blocks q8", 2,
                   "\"q8\"; expected a block type that quantize writes, as q8_0 or q4_k");
    expect_refused(verb + blocks + rest + " --blocks q4_k", 2,
                   "[blocks] no matrix of this model can be rounded to q4_k");
  }
  expect_refused("eval --ngram 2 --text x --exact", 2, "--exact");
  expect_refused("eval --ngram 2 --text x --blocks q8_0", 2, "--blocks");
  for (const auto& [flag, name] :
       {std::pair{"", "two_digits"}, {" --exact", "exact"}, {" --fast", "one_digit"}}) {
    const Outcome bench =
        run("bench " + blocks + " --prefill 4 --decode 2 --repeats 1 --json" + flag);
    ASSERT_EQ(bench.code, 0) << bench.err;
    EXPECT_EQ(spec::parse_json(bench.out, "stdout")["rows"][0]["products"], name);
  }
}

TEST_F(Cli, ARingIsCheckedBeforeTheRunBegins) {
  const std::string out = (folder_ / "ring").string(),
                    start = "train " + (kSource / "examples/recipes/shakespeare.json").string() +
                            " --out " + out + " --sequence-parallel ";
  for (const std::string split : {"''", "0", "x", "4:", "4:rings", ":ring", "1025"})
    expect_refused(start + split, 2, "expected a number of ranks up to 1024");
  expect_refused(start + "4 --set train.windows=carried --set train.carry_limit=512", 2,
                 "expected \"isolated\"");
  expect_refused(start + "4 --set " + R"('spec.layers[0].mixer={"type": "short_conv"}')", 2,
                 "no mixer is \"attention\"");
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Cli, AnInterruptEndsGenerationCleanly) {
  // 2 ^ 30 tokens would take days: the interrupt ends it with what there is, and 130
  const Outcome outcome =
      run("generate " + tiny() +
              " --ignore-eos --input-ids 1,2,3 --max-new-tokens 1073741824 --context 1073741824",
          "timeout --foreground --preserve-status -s INT 2 ");
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.out, "");
  EXPECT_NE(outcome.err.find("stopped on request"), std::string::npos) << outcome.err;
}

/// What the verbs of the next tests read.
class CliOutput : public Cli {
 protected:
  void SetUp() override {
    folder_.write("text.txt", std::string(400, 'a'));
    recipe_ = folder_.write("recipe.json", R"({"spec": {"tessera": 1, "arch": "decoder",
        "vocab": 256, "d_model": 16, "layers": [{"mixer": {"type": "attention", "n_heads": 2},
        "ffn": {"type": "glu", "d_hidden": 24}}], "head": "tied"},
        "data": {"train": ["text.txt"]}, "train": {"steps": 1, "batch": 1, "length": 16}})");
    measured_ = folder_.write("run.json", R"({"command": "c", "cpu": "p", "target": "avx2",
        "threads": 1, "repeats": 1, "width": 64, "fit_from": 1, "rows": [{"slot": "pattern",
        "mechanism": "window", "config": {}, "passes": [{"pass": "forward", "points": [
        {"length": 1024, "seconds": 0.001, "peak_bytes": 1048576},
        {"length": 2048, "seconds": 0.002, "peak_bytes": 2097152},
        {"length": 4096, "seconds": 0.004, "peak_bytes": 4194304}]}]}]})");
    input_ = (folder_ / "in.safetensors").string();
    write_ids(input_, false);
  }

  /// Ends with 1, and one line of complaint that holds these words.
  void expect_complaint(const std::string& how, const Outcome& outcome, const std::string& words) {
    EXPECT_EQ(outcome.code, 1) << how << "\n" << outcome.err;
    std::istringstream lines(outcome.err);
    int complaints = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.find("tessera: [") == std::string::npos) continue;
      ++complaints;
      EXPECT_NE(line.find(words), std::string::npos) << how << "\n" << line;
    }
    EXPECT_EQ(complaints, 1) << how << "\n" << outcome.err;
  }
  void expect_nothing_half_written() {
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
  }

  /// Every verb that prints its result.
  std::vector<std::string> printing() const {
    const std::string spec = kZoo + "/gpt2/gpt2.json",
                      text = " --text " + (folder_ / "text.txt").string();
    return {"--help",
            "--version",
            "show --help",
            "list mechanisms",
            "show " + spec + " --resolved",
            "plan " + spec,
            "tokenize bytes --text x",
            "doctor",
            "generate " + tiny() + " --input-ids 1,2,3 --max-new-tokens 4",
            "generate " + kGoldens + "/llama/gguf/base.gguf --prompt '!' --max-new-tokens 4",
            "embed " + kGoldens + "/llama/gguf/base.gguf --pooling mean --text '!'",
            "eval --ngram 2 --train-fraction 0.5" + text,
            "train " + recipe_ + " --out " + (folder_ / "trained").string(),
            "verify " + tiny() + " --tokens 8",
            "bench " + tiny() + " --repeats 1 --prefill 8 --decode 2",
            "bench mixers --from " + measured_};
  }
  /// Every verb that writes files, with the one or the folder that it writes in `where`.
  std::vector<std::string> writing(const std::string& where) const {
    const std::string mixers = "bench mixers --from " + measured_;
    std::string texts;
    for (const char* text : {"!", "#", "%", "&", "(", ")"})
      texts += fmt::format(" --text '{}'", text);
    return {
        "forward " + tiny() + " --input " + input_ + " --output " + where + "/logits",
        "embed " + kGoldens + "/llama/gguf/base.gguf --pooling mean" + texts + " --output " +
            where + "/vectors.npy",
        "convert " + tiny() + " --out " + where + "/ours",
        "convert " + tiny() + " --to hf --out " + where + "/theirs",
        "docs --out " + where + "/pages",
        "train " + recipe_ + " --out " + where + "/run",
        "generate " + tiny() + " --input-ids 1,2,3 --max-new-tokens 4 --session " + where + "/tale",
        mixers + " --svg " + where + "/a.svg",
        mixers + " --out " + where + "/cost"};
  }

  std::string recipe_, measured_, input_;
};

TEST_F(CliOutput, AFullDiskIsSaid) {
  if (!fs::exists("/dev/full")) GTEST_SKIP();
  for (const std::string& arguments : printing())
    expect_complaint(arguments, run(arguments + " > /dev/full"), "cannot write");
}

TEST_F(CliOutput, AReaderThatLeftIsNoError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  constexpr int kClosed = 9;  // the shell names one digit
  ASSERT_EQ(dup2(ends[1], kClosed), kClosed);
  for (const std::string& arguments : printing()) {
    const Outcome outcome = run(arguments + " >&9");
    EXPECT_EQ(outcome.code, 141) << arguments << outcome.err;
    EXPECT_EQ(outcome.err.find("cannot write"), std::string::npos) << arguments << outcome.err;
  }
  EXPECT_EQ(run("--help >&9").code, 141);
  close(ends[1]);
  close(kClosed);
}

TEST_F(CliOutput, AFullDiskLeavesNoHalfFile) {
  fs::create_directory(folder_ / "full");
  // files end after 512 bytes
  for (const std::string& arguments : writing((folder_ / "full").string()))
    expect_complaint(arguments, run(arguments, "ulimit -f 1; "), "cannot");
  expect_nothing_half_written();
}

TEST_F(CliOutput, AReadOnlyFolderIsSaid) {
  const std::string where = (folder_ / "shut").string();
  fs::create_directory(where);
  fs::permissions(where, fs::perms::owner_read | fs::perms::owner_exec);
  // root may write anywhere, unless it lays that power down
  std::string as_user;
  if (geteuid() == 0) {
    as_user = "setpriv --bounding-set=-dac_override --inh-caps=-dac_override ";
    if (std::system((as_user + "true 2>/dev/null").c_str()) != 0) GTEST_SKIP() << "no setpriv";
  }
  for (const std::string& arguments : writing(where)) {
    expect_complaint(arguments, run(arguments, as_user), "ermission denied");
    EXPECT_TRUE(fs::is_empty(where)) << arguments;
  }
  fs::permissions(where, fs::perms::owner_all);
}

TEST_F(CliOutput, WhatStandsAtAPathIsWrittenThrough) {
  const std::string forward = "forward " + tiny() + " --input " + input_ + " --output ";
  const std::string plain = (folder_ / "plain").string(), link = (folder_ / "link").string(),
                    target = folder_.write("target", "old");
  expect_refused(forward + target, 2, "is a file of 3 bytes");
  ASSERT_EQ(run(forward + plain).code, 0);
  const std::string want = read_text_file(plain);
  fs::create_symlink("target", link);
  ASSERT_EQ(run(forward + link + " --force").code, 0);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_text_file(target), want);
  // by a link of the test's own, so that a program that is wrong replaces that alone
  fs::create_symlink("/dev/stdout", folder_ / "out");
  EXPECT_EQ(run(forward + (folder_ / "out").string()).out, want);
  // through a FIFO, and into a device
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const Outcome piped = run(forward + fifo, "cat '" + fifo + "' & ");
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(piped.out, want);
  EXPECT_TRUE(fs::is_fifo(fifo));
  if (!fs::exists("/dev/full")) return;
  fs::create_symlink("/dev/full", folder_ / "full");  // renaming would replace the link alone
  expect_complaint("a device", run(forward + (folder_ / "full").string()), "No space left");
  EXPECT_TRUE(fs::is_symlink(folder_ / "full") && fs::is_character_file("/dev/full"));
  expect_nothing_half_written();
}

TEST_F(CliOutput, TrainingSaysOnceWhatSelectsByLaterTokens) {
  const auto said = [&](const std::string& mixer) {
    const std::string run_folder = (folder_ / ("run_" + mixer)).string();
    const Outcome outcome = run("train " + recipe_ + " --out " + run_folder +
                                " --set spec.layers[0].mixer.type=" + mixer);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    size_t times = 0;
    for (size_t at = 0; (at = outcome.err.find("later tokens included", at)) != std::string::npos;
         ++at)
      ++times;
    return times;
  };
  EXPECT_EQ(said("lsh_attention"), 1u);
  EXPECT_EQ(said("attention"), 0u);
}

TEST_F(Cli, BenchMixersReportsWhatItMeasured) {
  EXPECT_NE(run("bench mixers --help").out.find("Examples:"), std::string::npos);
  expect_refused("bench", 2, "model is required");
  expect_refused("bench mixers --only windw", 2, "did you mean \"window\"?");
  expect_refused("bench mixers --forward --backward", 2, "excludes");
  const fs::path out = folder_ / "cost";
  const Outcome outcome = run(
      "bench mixers --only short_conv,pattern/window --lengths 64,16,32 --fit-from 16 --width 32 "
      "--limit 600 --repeats 1 --json --out " +
      out.string());
  const spec::Json json = spec::parse_json(outcome.out, "stdout");
  // times so short are mostly noise: what they say must agree with the exit code
  EXPECT_EQ(outcome.code, json["holds"] == true ? 0 : 3) << outcome.err;
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["slot"], "pattern");
  EXPECT_EQ(json["rows"][0]["config"]["mixer"]["pattern"]["type"], "window");
  EXPECT_EQ(json["rows"][1]["mechanism"], "short_conv");
  EXPECT_EQ(json["rows"][1]["step"]["constant_state"], true);
  for (const spec::Json& row : json["rows"]) {
    ASSERT_EQ(row["passes"].size(), 2u);
    for (const spec::Json& pass : row["passes"]) {
      ASSERT_EQ(pass["points"].size(), 3u);
      EXPECT_EQ(pass["points"][0]["length"], 16);
      for (const spec::Json& point : pass["points"]) {
        EXPECT_GT(point["seconds"], 0.0);
        EXPECT_GE(point["peak_bytes"], point["length"].get<int64_t>() * 32 * 4);
      }
    }
    for (const spec::Json& check : row["checks"])
      EXPECT_TRUE(check.contains("measured") && check.contains("claimed")) << check;
  }
  for (const char* name : {"cost.md", "cost.csv", "cost_forward_time.svg", "cost_backward_time.svg",
                           "cost_forward_memory.svg", "cost_backward_memory.svg"})
    EXPECT_GT(fs::file_size(out / name), 100u) << name;
  EXPECT_EQ(spec::parse_json(read_text_file(out / "cost.json"), "cost.json"), json);
}

TEST_F(Cli, BenchMixersFailsOnAClaimThatDoesNotHold) {
  // measurements of a window whose time grows as the square
  spec::Json run_of = spec::parse_json(
      R"({"command": "c", "cpu": "p", "target": "avx2", "threads": 1, "repeats": 1, "width": 64,
          "fit_from": 1, "rows": [{"slot": "pattern", "mechanism": "window", "config": {},
          "passes": [{"pass": "forward", "points": []}]}]})",
      "test");
  const std::string file = (folder_ / "run.json").string();
  const auto report = [&](double exponent) {
    spec::Json& points = run_of["rows"][0]["passes"][0]["points"];
    points = spec::Json::array();
    for (const int64_t length : {1024, 2048, 4096})
      points.push_back({{"length", length},
                        {"seconds", 1e-6 * std::pow(length, exponent)},
                        {"peak_bytes", 256 * length}});
    std::ofstream(file) << run_of;
    return run("bench mixers --from " + file + " --svg " + (folder_ / "a.svg").string());
  };
  const Outcome holds = report(1.1);
  EXPECT_EQ(holds.code, 0) << holds.err;
  EXPECT_NE(holds.out.find("T^1.10"), std::string::npos) << holds.out;
  const Outcome fails = report(2);
  EXPECT_EQ(fails.code, 3) << fails.err;
  EXPECT_NE(fails.err.find("[pattern/window] forward time grows as T^2.00; claimed T"),
            std::string::npos)
      << fails.err;
  EXPECT_NE(read_text_file(folder_ / "a.svg").find("</svg>"), std::string::npos);
  expect_refused("bench mixers --from " + kZoo + "/gpt2/gpt2.json", 1, "gpt2.json");
}

TEST_F(Cli, BenchOfSamplingAndOfRowsSideBySide) {
  const Outcome sampling = run("bench sampling --vocab 50,300 --repeats 3 --json");
  ASSERT_EQ(sampling.code, 0) << sampling.err;
  const spec::Json rows = spec::parse_json(sampling.out, "stdout")["rows"];
  ASSERT_EQ(rows.size(), 28u);
  for (const spec::Json& row : rows) EXPECT_GT(row["ms_per_token"], 0);
  expect_refused("bench sampling --vocab 0", 2, "--vocab");
  const Outcome side = run("bench " + tiny() + " --prefill 0 --decode 4 --rows 3 --json");
  ASSERT_EQ(side.code, 0) << side.err;
  EXPECT_EQ(spec::parse_json(side.out, "stdout")["rows"][0]["rows"], 3);
}

TEST_F(Cli, BenchFillsADepthWithoutReadingAllOfIt) {
  const auto row = [this](const std::string& model, const std::string& flags) {
    const Outcome outcome =
        run("bench " + model + " --prefill 0 --decode 2 --depth 3000 --repeats 1 --json" + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "bench").at("rows").at(0);
  };
  for (const char* keep : {"", " --keep-last 50"}) {
    const std::string model = kGoldens + "/llama/gguf/base.gguf" + keep;
    const spec::Json all = row(model, ""), some = row(model, " --fill 100");
    EXPECT_EQ(some.at("state_bytes"), all.at("state_bytes"));
    EXPECT_EQ(some.at("computed_of_depth"), 1024);
    EXPECT_FALSE(all.contains("computed_of_depth"));
    EXPECT_GT(some.at("depth_seconds"), 0);
  }
  expect_refused("bench " + kGoldens + "/mamba2/base --depth 9 --fill 4", 2,
                 "depends on all tokens");
}

TEST_F(Cli, BenchOfGuessesSaysWhatTheyGive) {
  std::ofstream(folder_ / "text.txt") << "ABCABCABCABC";
  const std::string start = "bench guesses " + kGoldens + "/llama/gguf/base.gguf --text '" +
                            (folder_ / "text.txt").string() + "' --repeats 1 --max-new-tokens 12 ";
  const Outcome outcome = run(start + "--draft-tokens 2 --branches 2 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const spec::Json rows = spec::parse_json(outcome.out, "stdout")["rows"];
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0]["way"], "plain");
  EXPECT_EQ(rows[0]["times"], 1);
  EXPECT_EQ(rows[3]["way"], "draft 2, branches 2");
  for (const spec::Json& row : rows) EXPECT_GT(row["tokens_per_s"], 0);
  expect_refused(start + "--predictors", 2, "no predictors");
  expect_refused("bench guesses " + tiny(), 2, "--text is required");
}

TEST_F(Cli, PlanOfAHugeModelIsInstant) {
  const Outcome outcome = run("plan " + kZoo + "/llama/llama3.1-405b.json --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(spec::parse_json(outcome.out, "stdout")["parameters"], 405'853'388'800);
}

TEST_F(Cli, AChatSaysWhatIsMissing) {
  expect_refused("chat '" + tiny() + "'", 2, "has no tokenizer");
  expect_refused("chat /no/such/model", 1, "/no/such/model");
  expect_refused("chat /no/such/model --guesses 3", 2,
                 "--draft-tokens needs a source of draft tokens");
  expect_refused("serve /no/such/model --branches 3", 2,
                 "--branches needs a source of draft tokens");
  expect_refused("serve /no/such/model --lookup 3 --guesses x", 2,
                 "--draft-tokens x; expected auto");
  expect_refused("serve /no/such/model --tool-format xml", 2, "--tool-format");
}

/// SmolLM2 (TESSERA_SMOLLM2), whose prompts are known.
class ChatCli : public Cli {
 protected:
  void SetUp() override {
    const char* path = std::getenv("TESSERA_SMOLLM2");
    if (path == nullptr) GTEST_SKIP() << "TESSERA_SMOLLM2 does not name the GGUF file";
    model_ = path;
  }
  Outcome chat(const std::string& said, const std::string& options = "") {
    const std::string file = folder_.write("said", said);
    const bool greedy = options.find("--temperature") == std::string::npos;
    return run("chat '" + model_ + "' --max-new-tokens 12 --system 'Be brief.' " +
                   (greedy ? "--temperature 0 " : "") + options,
               "", "<'" + file + "'");
  }
  /// What the model goes on with, control tokens and all.
  std::string continued(const std::string& prompt) {
    const Outcome outcome =
        run("generate '" + model_ +
            "' --max-new-tokens 12 --parse-special --no-special --no-echo --json " + "--prompt '" +
            prompt + "'");
    return spec::Json::parse(outcome.out)["text"].get<std::string>() + "\n";
  }
  const std::string system_ = "<|im_start|>system\nBe brief.<|im_end|>\n";
  std::string model_;
};

TEST_F(ChatCli, AnswersAreWhatTheModelSaysAfterTheTemplate) {
  const std::string first =
      system_ + "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n";
  const std::string answer = continued(first);
  const std::string second =
      first + answer.substr(0, answer.size() - 1) +
      "<|im_end|>\n<|im_start|>user\nAnother.<|im_end|>\n<|im_start|>assistant\n";
  const Outcome outcome = chat("Name a colour.\nAnother.\n");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, answer + continued(second));
  EXPECT_EQ(chat("Name a colour.\nAnother.\n", "--prefix-cache 0").out, outcome.out);
  EXPECT_EQ(chat("Name a colour.\nAnother.\n", "--lookup 2 --draft-tokens 3").out, outcome.out);
}

TEST_F(Cli, WhatWasLearntByHeartIsAnsweredInAChat) {
  // a tokenizer of its own, a template by name: what a run leaves converses by itself
  std::string lines;
  const std::vector<std::pair<std::string, std::string>> talks = {
      {"Hi", "Yo"}, {"2+2=", "4"}, {"Bye", "See you"}, {"Who?", "I"}, {"Red?", "No"}};
  for (const auto& [question, answer] : talks)
    lines += spec::Json{{"messages",
                         {{{"role", "user"}, {"content", question}},
                          {{"role", "assistant"}, {"content", answer}}}}}
                 .dump() +
             "\n";
  const std::string data = folder_.write("talks.jsonl", lines),
                    tokens = (folder_ / "tokens").string(), out = (folder_ / "talker").string();
  const Outcome learnt = run("train-tokenizer " + data + " --vocab 300 --json --out " + tokens +
                             " --special '<|im_start|>' --special '<|im_end|>'");
  ASSERT_EQ(learnt.code, 0) << learnt.err;
  const int64_t vocab = spec::parse_json(learnt.out, "stdout")["tokens"];
  const spec::Json recipe = {
      {"spec",
       {{"tessera", 1},
        {"arch", "decoder"},
        {"vocab", vocab},
        {"d_model", 32},
        {"norm", {{"type", "rms_norm"}}},
        {"layers",
         {{{"repeat", 2},
           {"mixer",
            {{"type", "attention"},
             {"n_heads", 2},
             {"position", {{"type", "rope"}, {"theta", 10000}}}}}}}},
        {"ffn", {{"type", "glu"}, {"act", "silu"}, {"d_hidden", 64}}},
        {"head", {{"type", "tied"}}}}},
      {"data", {{"train", {data}}, {"format", "jsonl"}, {"tokenizer", tokens}}},
      {"objective", {{"type", "chat"}, {"format", "chatml"}}},
      {"train", {{"steps", 150}, {"batch", 5}, {"length", 40}, {"seed", 1}}},
      {"optimizer", {{"lr", 0.01}}}};
  const Outcome trained =
      run("train " + folder_.write("talk.json", recipe.dump()) + " --out " + out);
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const auto& [question, answer] : talks)
    EXPECT_EQ(run("chat " + out + "/latest --temperature 0", "",
                  "<'" + folder_.write("said", question + "\n") + "'")
                  .out,
              answer + "\n")
        << question;
}

TEST_F(ChatCli, CommandsHaveTheNamesOfOtherPrograms) {
  const Outcome outcome = chat("/?\nName a colour.\n/clear\n/tokens\n/bye\nnever read\n");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("/reset, /clear "), std::string::npos);
  // of the system prompt alone
  const Outcome empty = chat("/tokens\n");
  EXPECT_TRUE(outcome.out.ends_with(empty.out)) << outcome.out;
}

TEST_F(ChatCli, AConversationGoesOnFromItsFile) {
  const std::string file = (folder_.path() / "talk").string();
  const Outcome whole = chat("Name a colour.\nAnother.\n");
  const Outcome first = chat("Name a colour.\n/save " + file + "\n");
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out + chat("Another.\n", "--load '" + file + "'").out, whole.out);
  // a message a line
  const std::string saved = read_text_file(file);
  EXPECT_EQ(std::count(saved.begin(), saved.end(), '\n'), 3);
  // what is forgotten has no say, and what is taken back neither
  EXPECT_EQ(chat("Name a colour.\n/reset\nName a colour.\n").out, first.out + first.out);
  EXPECT_EQ(chat("/load " + file + "\n/undo\nName a colour.\n").out, first.out);
  EXPECT_EQ(chat("Name a colour.\n/retry\n").out, first.out + first.out);
  EXPECT_EQ(chat("\"\"\"Name a\ncolour.\"\"\"\n/tokens\n/exit\nnever read\n").code, 0);
}

TEST_F(ChatCli, AQuestionOfTheCommandLineIsAnsweredAlone) {
  const Outcome first = chat("Name a colour.\n");
  const std::string options = "' --temperature 0 --max-new-tokens 12 --system 'Be brief.'";
  const Outcome alone = run("chat '" + model_ + "' 'Name a colour." + options);
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.out, first.out);
  // all of a pipe is one question
  const std::string file = folder_.write("question", "Name\na colour.");
  EXPECT_EQ(run("chat '" + model_ + "' '-" + options, "", "<'" + file + "'").out,
            chat("\"\"\"Name\na colour.\"\"\"\n").out);
  EXPECT_NE(run("chat '" + model_ + "' '-" + options, "", "</dev/null").code, 0);
  // the last question in other words
  EXPECT_EQ(
      chat("Name a town.\n/edit Name a colour.\n").out.substr(chat("Name a town.\n").out.size()),
      first.out);
}

/// `tessera chat` on a terminal of its own.
class ChatTerminal {
 public:
  ChatTerminal(const std::string& model, const std::string& state) {
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ != 0) return;
    setenv("XDG_STATE_HOME", state.c_str(), 1);
    setenv("TERM", "xterm", 1);
    execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "chat", model.c_str(), "--max-new-tokens", "8",
          nullptr);
    _exit(127);
  }
  ~ChatTerminal() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    close(terminal_);
  }
  void type(const std::string& keys) {
    ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), std::ssize(keys));
  }
  /// Reads until these words have come, behind what was read before.
  bool shows(const std::string& words) {
    for (int i = 0; i < 600; ++i) {
      if (const size_t at = shown_.find(words); at != std::string::npos) {
        shown_.erase(0, at + words.size());
        return true;
      }
      pollfd of{terminal_, POLLIN, 0};
      if (poll(&of, 1, 100) != 1) continue;
      std::array<char, 4096> bytes{};
      const ssize_t n = ::read(terminal_, bytes.data(), bytes.size());
      if (n <= 0) break;
      shown_.append(bytes.data(), static_cast<size_t>(n));
    }
    ADD_FAILURE() << "waits for " << words << " behind " << shown_;
    return false;
  }
  int ended() {
    int status = 0;
    waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t child_ = -1;
  int terminal_ = -1;
  std::string shown_;
};

TEST_F(ChatCli, ATerminalEditsPastesAndRemembers) {
  const std::string state = (folder_ / "state").string(), file = (folder_ / "talk").string();
  {
    ChatTerminal terminal(model_, state);
    ASSERT_TRUE(terminal.shows("Ctrl-D: quit."));
    ASSERT_TRUE(terminal.shows("> "));
    // ends of lines within what is pasted are no end of the question
    terminal.type("\x1b[200~Name a\ncolour, é.\x1b[201~");
    ASSERT_TRUE(terminal.shows("\u21B5"));
    terminal.type("\r");
    ASSERT_TRUE(terminal.shows("\x1b[?2004h"));
    terminal.type("/edit\r");
    ASSERT_TRUE(terminal.shows("colour, é."));
    terminal.type(" Now.\r");
    ASSERT_TRUE(terminal.shows("\x1b[?2004h"));
    terminal.type("/save " + file + "\r");
    ASSERT_TRUE(terminal.shows("\x1b[?2004h"));
    terminal.type("/exit\r");
    EXPECT_EQ(terminal.ended(), 0);
  }
  const std::string saved = read_text_file(file);
  const spec::Json first = spec::Json::parse(saved.substr(0, saved.find('\n')));
  EXPECT_EQ(first["content"], "Name a\ncolour, é. Now.");
  EXPECT_EQ(std::count(saved.begin(), saved.end(), '\n'), 2);
  const std::string history = state + "/tessera/chat_history";
  EXPECT_EQ(read_text_file(history).substr(0, 6), "Name a");
  struct stat about {};
  ASSERT_EQ(stat(history.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600);
  // another day the lines are there again
  ChatTerminal terminal(model_, state);
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("\x1b[A");
  EXPECT_TRUE(terminal.shows("/exit"));
  terminal.type("\x1b[A");
  EXPECT_TRUE(terminal.shows("/save"));
  terminal.type("\x15\x04");
  EXPECT_EQ(terminal.ended(), 0);
}

TEST_F(ChatCli, MistakesAreOneLine) {
  const std::string broken = folder_.write("broken", "{\"role\": \"tool\", \"content\": \"\"}\n");
  for (const auto& [said, words] :
       std::vector<std::pair<std::string, std::string>>{{"/sett", "did you mean /set?"},
                                                        {"/set top-p 2", "top_p"},
                                                        {"/set colour red", "expected temperature"},
                                                        {"/set seed x", "expected a whole number"},
                                                        {"/set top-k 2.5", "a whole number"},
                                                        {"/set typical-p 2", "typical_p = 2"},
                                                        {"/set mirostat 1", "(off) or 2"},
                                                        {"/retry", "expected a question first"},
                                                        {"/edit", "expected a question first"},
                                                        {"/set samplers topk", "mean top_k?"},
                                                        {"/save", "expected the name of a file"},
                                                        {"/load " + broken, "line 1] role"},
                                                        {"\"\"\"no end", "does not end"}}) {
    const Outcome outcome = chat(said + "\n");
    EXPECT_NE(outcome.code, 0) << said;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << said << outcome.err;
    // behind the line that says how the model decodes
    EXPECT_TRUE(outcome.err.starts_with("decoding: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2) << outcome.err;
  }
}

TEST_F(ChatCli, ProbabilitiesAreThoseOfTheAnswer) {
  const Outcome outcome = chat("Name a colour.\n", "--probabilities");
  EXPECT_EQ(outcome.out, chat("Name a colour.\n").out);
  EXPECT_NE(outcome.err.find(" %  \""), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace tessera
