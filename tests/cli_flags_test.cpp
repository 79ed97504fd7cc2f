// Options as people type them who know llama.cpp, vLLM or transformers: other names, prompts from
// everywhere, the nearest option of one that is not there, and the help.
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "cli_testing.h"
#include "tessera/infer/sampling/decoding_fields.h"
#include "tessera/spec/json.h"

namespace tessera {
namespace {

/// All of them.
const std::vector<std::string>& verbs() {
  static const std::vector<std::string> all = {
#define TESSERA_PLAIN_VERB(name, typed, group, summary) typed,
#define TESSERA_TENSOR_VERB(name, typed, group, summary) typed,
#define TESSERA_SPLIT_VERB(name, typed, group, summary, add) typed,
#include "tessera/cli/verbs.def"
  };
  return all;
}

class CliFlags : public CliRunner {
 protected:
  /// A GGUF file with a tokenizer of single characters.
  static std::string model() { return kGoldens + "/llama/gguf/base.gguf"; }
  /// The tokens that a run of `generate` makes.
  spec::Json tokens(const std::string& arguments,
                    const std::string& before = "",
                    const std::string& after = "</dev/null") {
    const Outcome outcome = run("generate " + arguments + " --json", before, after);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    return outcome.code == 0 ? spec::parse_json(outcome.out, arguments)["token_ids"] : nullptr;
  }
  std::string help(const std::string& verb) {
    const Outcome outcome = run(verb + " --help");
    EXPECT_EQ(outcome.code, 0) << verb << outcome.err;
    return outcome.out;
  }
  /// "--name" of the lines of options.
  static std::vector<std::string> long_options(const std::string& help) {
    std::vector<std::string> out;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("--");
      if (!line.starts_with("  -") || at == std::string::npos) continue;
      out.push_back(line.substr(at, line.find_first_of(" ,\n", at) - at));
    }
    return out;
  }
  /// The headings, in order.
  static std::vector<std::string> groups(const std::string& help) {
    std::vector<std::string> out;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);)
      if (line.ends_with(':') && !line.starts_with(' '))
        out.push_back(line.substr(0, line.size() - 1));
    return out;
  }
};

TEST_F(CliFlags, OtherNamesAreTheSameOptions) {
  const std::string start = model() + " --ignore-eos ";
  const std::string own = start + "--prompt ABC --max-new-tokens 6 ";
  const spec::Json greedy = tokens(own);
  ASSERT_EQ(greedy.size(), 6u);
  for (const char* same : {"-p ABC -n 6", "--prompt=ABC --n-predict 6", "-p ABC --predict 6",
                           "-pABC -n6", "--prompt ABC --max-tokens 6 -t 1", "-p ABC -n 6 -c 32",
                           "-p ABC --max_new_tokens 6 --ctx_size=32", "ABC -n 6"})
    EXPECT_EQ(tokens(start + same), greedy) << same;
  EXPECT_EQ(tokens("-m " + start + "-p ABC -n 6"), greedy);
  EXPECT_EQ(tokens("ABC -n 6 --ignore-eos --model " + model()), greedy);
  EXPECT_EQ(tokens("ABC -n 6 --ignore-eos -m" + model()), greedy);
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"--temperature 1.5 --seed 3", "--temp 1.5 -s 3"},
      {"--temperature 1.5 --repetition-penalty 1.8", "--temp 1.5 --repeat-penalty 1.8"},
      {"--temperature 1.5 --typical-p 0.5", "--temp 1.5 --typical 0.5"},
      {"--temperature 1.5 --top-n-sigma 1", "--temp 1.5 --top-nsigma 1"},
      {"--temperature 1.5 --mirostat 2 --mirostat-tau 2 --mirostat-eta 0.3",
       "--temp 1.5 --mirostat 2 --mirostat-ent 2 --mirostat-lr 0.3"},
      {"--temperature 1.5 --top-k 3 --min-p 0.01", "--temp 1.5 --top_k 3 --min_p 0.01"},
      {"--kv-type int8", "-ctk int8 -ctv int8"},
      {"--kv-type int8", "--cache-type-k int8"},
      {"--kv-type int8", "-ctk q8_0 -ctv q8_0"},
      {"--kv-type int8", "--cache-type-k=q8_0"},
      {"--kv-type int8", "-ctv q8_0"},
      {"--lookup 2 --draft-tokens 3", "--lookup 2 --draft-max 3"},
      {"--lookup 2 --draft-tokens 3", "--lookup 2 --guesses 3"},
      {"--draft " + model() + " --draft-tokens 3", "-md " + model() + " --draft-n 3"},
      {"--keep-last 3 --keep-first 1", "--keep-last 3 --keep 1"},
      {"--beams 2", "--num-beams 2"}};
  for (const auto& [ours, theirs] : pairs)
    EXPECT_EQ(tokens(own + ours), tokens(own + theirs)) << theirs;
  const std::string several = own + "--temp 1.5 ";
  EXPECT_EQ(run("generate " + several + "--choices 2 --json").out.size() > 0, true);
  EXPECT_EQ(run("generate " + several + "--num-return-sequences 2").out,
            run("generate " + several + "--choices 2").out);
  expect_refused("generate " + own + "-ctk q8_0 -ctv f16", 2,
                 "--cache-type-k q8_0 with --cache-type-v f16: keys and values have one type");
  expect_refused("generate " + own + "-ctk q5_1 -ctv q5_1", 2, "q5_1");
  expect_refused("generate " + own + "-ctk int8 -ctk f16", 2, "is given 2 times; expected once");
  expect_refused("generate " + own + "--draft 8", 2,
                 "the number of draft tokens is --draft-tokens 8");
  // of rows of 12 numbers, which 4 bits do not take
  EXPECT_NE(run("generate " + model() + " ABC -ctv q4_0").err.find("kv-type int4"),
            std::string::npos);
}

TEST_F(CliFlags, PromptsComeFromEverywhere) {
  const std::string start = model() + " --ignore-eos -n 6 ";
  const spec::Json expected = tokens(start + "-p ABC");
  EXPECT_EQ(tokens(start + "ABC"), expected);
  EXPECT_EQ(tokens(start + "-p -", "printf 'ABC\\n' | ", ""), expected);
  EXPECT_EQ(tokens(start + "-", "printf ABC | ", ""), expected);
  const std::string file = folder_.write("prompt.txt", "ABC\n");
  for (const char* option : {"-f ", "--prompt-file ", "--file=", "--prompt_file "})
    EXPECT_EQ(tokens(start + option + file), expected) << option;
  // what is within stays
  EXPECT_EQ(tokens(start + "-f " + folder_.write("two.txt", "AB\nC\n")),
            tokens(start + "-p \"$(printf 'AB\\nC')\""));
  // a value is a value, whatever it looks like
  const Outcome dashes = run("generate " + start + "-p --top_k --json");
  EXPECT_EQ(dashes.code, 0) << dashes.err;
  EXPECT_EQ(spec::parse_json(dashes.out, "stdout")["prompt_tokens"],
            spec::parse_json(run("generate " + start + "--prompt=--top_k --json").out,
                             "stdout")["prompt_tokens"]);
  expect_refused("generate " + start + "ABC -p ABC", 2, "excludes");
  expect_refused("generate " + start + "-f /no/such/file", 1, "/no/such/file");
  expect_refused("generate " + start + "-f " + file + " -p A", 2, "excludes");
  expect_refused("generate " + start + "once upon a time", 2, "unexpected argument \"upon\"");
  expect_refused("generate " + start, 2, "expected a prompt");
  // as many as there is room for
  const Outcome all = run("generate " + model() + " ABC -n -1 -c 24 --ignore-eos --json");
  ASSERT_EQ(all.code, 0) << all.err;
  const spec::Json json = spec::parse_json(all.out, "stdout");
  EXPECT_GE(json["token_ids"].size() + json["prompt_tokens"].get<size_t>(), 24u);
  expect_refused("generate " + start + "ABC --n-predict -2", 2, "or -1 (no limit)");
}

// as in transformers, llama.cpp and vLLM
TEST_F(CliFlags, RawPromptsSpellSpecialTokens) {
  const std::string start = "generate " + model() + " --ignore-eos -n 1 --json ";
  const auto read = [&](const std::string& how) {
    const Outcome outcome = run(start + how);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return std::pair(spec::parse_json(outcome.out, "stdout")["prompt_tokens"].get<int64_t>(),
                     outcome.err);
  };
  const int64_t plain = read("-p AB").first;
  EXPECT_EQ(read("-p 'A</s>B'").first, plain + 1);
  EXPECT_EQ(read("-p 'A</s>B' --parse-special").first, plain + 1);
  EXPECT_GT(read("-p 'A</s>B' --no-parse-special").first, plain + 2);
  expect_refused(start + "-p A --parse-special --no-parse-special", 2, "excludes");
  EXPECT_EQ(read("-p '<s>AB'").second.find("warning"), std::string::npos);
  // where the tokenizer puts <s> in front, a text that has it too is warned of once
  const std::string folder = (folder_ / "hf").string();
  ASSERT_EQ(run("convert " + model() + " --to hf --out " + folder).code, 0);
  spec::Json tokenizer = spec::read_json_file(folder + "/tokenizer.json");
  const spec::Json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                   a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                   b = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", spec::Json::array({bos, a})},
      {"pair", spec::Json::array({bos, a, b})},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", spec::Json::array({"<s>"})}}}}}};
  folder_.write("hf/tokenizer.json", tokenizer.dump());
  const auto said = [&](const std::string& how) {
    const Outcome outcome = run("generate " + folder + " -n 1 " + how);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  const std::string warning =
      "warning: the prompt begins with <s>, which the tokenizer adds as well";
  const std::string both = said("-p '<s>A' -p '<s>B'");
  EXPECT_EQ(both.find(warning), both.rfind(warning));
  EXPECT_NE(both.find(warning), std::string::npos) << both;
  for (const char* once : {"-p AB", "-p '<s>AB' --no-special", "-p '<s>AB' --no-parse-special"})
    EXPECT_EQ(said(once).find("warning"), std::string::npos) << once;
}

TEST_F(CliFlags, EmptyValuesAreErrors) {
  for (const char* number : {"--top-p", "--temperature", "--top-k", "--repeat-penalty"})
    expect_refused("generate " + model() + " x " + number + " ''", 2, "empty; expected a number");
  for (const char* text : {"--regex", "--grammar", "--json-schema", "--stop", "--bad-word",
                           "--samplers", "--dry-sequence-breaker"})
    expect_refused("generate " + model() + " x " + text + " ''", 2, "empty; expected a text");
  expect_refused("bench " + model() + " --decode ''", 2, "expected a number from 0");
}

TEST_F(CliFlags, NumbersBeyond64BitsAreErrors) {
  const std::string large = "99999999999999999999";
  expect_refused("generate " + model() + " x --temp 1 --top-k " + large, 2, large + "; expected");
  expect_refused("generate " + model() + " x --temp 1 --top-k -" + large, 2, large + "; expected");
}

TEST_F(CliFlags, ValuesAreRefusedWithWhatWasExpected) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"generate m p --max-new-tokens 1.5",
       "[generate] --max-new-tokens: 1.5; expected a whole number; see `tessera generate --help`"},
      {"generate m p -n 1e3", "[generate] --max-new-tokens: 1e3; expected a whole number;"},
      {"generate m p --threads 1.5",
       "[generate] --threads: 1.5; expected a whole number from 0 to 4096;"},
      {"serve m --port x", "[serve] --port: x; expected a whole number from 0 to 65535;"},
      {"chat m --branches 65", "[chat] --branches: 65; expected a whole number from 1 to 64;"},
      {"bench mixers --repeats 0.5",
       "[bench mixers] --repeats: 0.5; expected a whole number from 1 to 1000;"},
      {"convert m --to x --out y", "[convert] --to: x; expected one of tessera, hf, gguf;"},
      {"quantize m --type Q4_0 --out y --damping x", "[quantize] --damping: x; expected a number"}};
  for (const auto& [arguments, words] : refused) expect_refused(arguments, 2, words);
}

TEST_F(CliFlags, ConstraintsAreFilesOrTheTextItself) {
  const std::string start = model() + " ABC -n 8 --temp 1 ";
  const std::string schema = R"({"enum": [12, 345]})";
  const std::string grammar = "root ::= \"YES\" | \"NO\"";
  const std::string schema_file = folder_.write("s.json", schema),
                    grammar_file = folder_.write("g.gbnf", grammar);
  const auto same = [&](const std::string& a, const std::string& b) {
    const Outcome one = run("generate " + start + a), other = run("generate " + start + b);
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(one.out, other.out) << b << other.err;
    EXPECT_NE(one.out, "");
  };
  same("--json-schema " + schema_file, "--json-schema '" + schema + "'");
  same("--json-schema " + schema_file, "-j '" + schema + "'");
  same("--json-schema " + schema_file, "-jf " + schema_file);
  same("--grammar " + grammar_file, "--grammar '" + grammar + "'");
  same("--grammar " + grammar_file, "--grammar-file " + grammar_file);
  // in the option's own name
  expect_refused("generate " + start + "-j '{\"type\": \"strin\"}'", 1, "[--json-schema");
  expect_refused("generate " + start + "-j '{'", 1, "--json-schema");
  expect_refused("generate " + start + "--grammar 'root ::= root \"A\"'", 1, "left recursion");
}

TEST_F(CliFlags, AnUnknownOptionGetsTheNearest) {
  for (const std::string& verb : verbs()) {
    const std::vector<std::string> options = long_options(help(verb));
    ASSERT_FALSE(options.empty()) << verb;
    // with a letter too many
    std::string name = options.front() == "--help" ? options.back() : options.front(), typed = name;
    typed.insert(4, 1, 'x');
    const Outcome outcome = run(verb + " " + typed);
    EXPECT_EQ(outcome.code, 2) << verb;
    EXPECT_NE(
        outcome.err.find("[" + verb + "] there is no option " + typed + "; did you mean " + name),
        std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find("; see `tessera " + verb + " --help`"), std::string::npos);
  }
  // before whatever else is wrong, in the order in which it was typed
  expect_refused("generate --temprature 1 -p x", 2,
                 "there is no option --temprature; did you mean --temperature?");
  expect_refused("generate " + model() + " -p x --tempp=0.5 --top-kk 3", 2, "did you mean --temp?");
  expect_refused("plan x -n 5", 2, "[plan] there is no option -n; see `tessera plan --help`");
  expect_refused("bench mixers --lenghts 4", 2,
                 "[bench mixers] there is no option --lenghts; did you mean --lengths?");
  expect_refused("--verison", 2, "[tessera] there is no option --verison; did you mean --version?");
  expect_refused("plan", 2, "[plan] spec is required");
  expect_refused("generate", 2, "[generate] model is required");
  expect_refused("generate m --max-new-tokens", 2, "--max-new-tokens needs a value");
  expect_refused("generate m -n 3 -n 4", 2, "--max-new-tokens is given 2 times; expected once");
}

TEST_F(CliFlags, OptionsOfOtherProgramsSayWhatToDo) {
  const std::map<std::string, std::string> said = {
      {"generate m -ngl 99 -p x",
       "-ngl: expected --device cuda, which computes all layers on a GPU"},
      {"serve m --n_gpu_layers 99", "--n-gpu-layers: expected --device cuda"},
      {"index m --n-gpu-layers 99", "--n-gpu-layers: index computes on the CPU; leave it out"},
      {"chat m -sm row", "-sm: a model computes on one device; expected --device cuda:N"},
      {"chat m -cmoe", "-cmoe: weights and KV cache are on one device (--device); leave it out"},
      {"serve m -fa", "-fa: attention never stores all scores"},
      {"generate m --flash-attn on", "--flash-attn: attention never stores all scores"},
      {"generate m --mlock", "--mlock: weights are memory-mapped"},
      {"chat m --no-mmap", "--no-mmap: weights are memory-mapped"},
      {"generate m -b 512", "-b: tessera chooses how many tokens of a prompt are read at once"},
      {"serve m -ub 512", "-ub: tessera chooses how many tokens"},
      {"chat m --mmproj f.gguf", "--mmproj: text generation reads no images"},
      {"generate m --rope-scaling yarn",
       "--rope-scaling: positions are scaled as the model's files"},
      {"generate m -tb 4", "-tb: --threads is for prompts and for decoding"},
      {"generate m -cnv", "use `tessera chat`"},
      {"chat m -cnv", "`tessera chat` is a conversation; leave it out"},
      {"chat m -no-cnv", "-no-cnv: use `tessera generate`"},
      {"serve m --embedding",
       "--embedding: what a model can do follows from its files; leave it out"},
      {"finetune m --bf16", "--bf16: expected --set train.precision=bf16 or fp16"},
      {"generate m -v", "-v: standard output has the text alone"},
      {"generate m -st", "expected the question on standard input"},
      {"generate m -p x -e", "-e: prompts are taken as they are"},
      {"chat m --jinja", "--jinja: chat templates of models (Jinja) are always used"},
      {"generate m --color", "output has no colours"},
      {"chat -hf some/model", "-hf: expected `tessera pull ORG/NAME` once"},
      {"quantize m --tensor-type a=q8_0", "expected --rule NAMES=TYPE"},
      {"convert m --outtype f16", "`tessera quantize --type TYPE`"}};
  for (const auto& [arguments, words] : said) expect_refused(arguments, 2, words);
  expect_refused("generate " + model() + " -p x -dev tpu", 2,
                 "[device] \"tpu\"; expected cpu, cuda, cuda:N or auto");
  // a verb's own option of that name is its own
  expect_refused("bench /no/such/model -b 2", 1, "/no/such/model");
  const Outcome served = run("serve /no/such/model --jinja --api-key secret -np 2 --timeout 9");
  expect_complaint(served, 1, "/no/such/model");
  EXPECT_NE(served.err.find("--api-key can be seen by other users"), std::string::npos)
      << served.err;
}

TEST_F(CliFlags, EveryVerbThatWritesHasOneNameForIt) {
  std::set<std::string> writes;
  for (const std::string& verb : verbs()) {
    const std::string text = help(verb);
    if (text.find("\n  -o, --out ") == std::string::npos) {
      EXPECT_EQ(text.find("\n  --out"), std::string::npos) << verb;
      continue;
    }
    writes.insert(verb);
    // its other name stands behind it, wherever the line is broken
    EXPECT_TRUE(text.find("--output)") != std::string::npos ||
                text.find("--output,") != std::string::npos)
        << verb;
  }
  EXPECT_EQ(writes,
            (std::set<std::string>{"advise", "compare", "convert", "data", "docs", "embed", "eval",
                                   "finetune", "forward", "index", "init", "new", "plan",
                                   "quantize", "sweep", "train", "train-tokenizer"}));
  int made = 0;
  for (const char* option : {"--out ", "-o ", "--output ", "--outfile ", "--output="}) {
    const std::string to = (folder_ / fmt::format("made{}", made++)).string();
    EXPECT_EQ(run("convert " + tiny() + " " + option + to).code, 0) << option;
    EXPECT_TRUE(std::filesystem::exists(to)) << option;
  }
  // a file of GGUF where its name says so
  const std::string file = (folder_ / "made.gguf").string();
  EXPECT_EQ(run("convert " + model() + " --out " + file).code, 0);
  EXPECT_TRUE(std::filesystem::is_regular_file(file));
}

TEST_F(CliFlags, NoVerbWritesOverWhatIsNotItsOwn) {
  namespace fs = std::filesystem;
  const std::string gguf = kGoldens + "/llama/gguf/base.gguf";
  const std::string text =
                        folder_.write("text.txt", "ABC\nDEF\nABC DEF\nAAA\nBBB\nCCC\nDDD\nEEE\n"),
                    recipe = folder_.write("recipe.json", R"({
      "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "layers": [
          {"mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
           "ffn": {"type": "glu", "d_hidden": 24}}], "head": "tied"},
      "data": {"train": ["text.txt"]}, "train": {"steps": 1, "batch": 1, "length": 8}})");
  // into a folder, or to a file of that name
  const std::vector<std::pair<std::string, std::string>> verbs_to = {
      {"convert " + tiny(), ""},
      {"convert " + tiny() + " --to hf", ""},
      {"convert " + gguf + " --to gguf", ".gguf"},
      {"quantize " + gguf + " --type Q8_0 --requantize", ".gguf"},
      {"init " + recipe, ""},
      {"train-tokenizer " + text + " --vocab 260", ""},
      {"train " + recipe, ""},
      {"finetune " + gguf + " --steps 1 --batch 1 --length 8 --valid-fraction 0 --data " + text,
       ""},
      {"embed " + gguf + " --pooling mean --text ABC", ".npy"},
      {"embed " + gguf + " --pooling mean --text ABC", ".safetensors"}};
  int number = 0;
  for (const auto& [call, ending] : verbs_to) {
    SCOPED_TRACE(call + " --out " + ending);
    const std::string name = fmt::format("there{}{}", number++, ending),
                      place = (folder_ / name).string();
    const std::string foreign = folder_.write(ending.empty() ? name + "/thesis.txt" : name, "mine");
    const auto there = [&] {
      return ending.empty() ? std::distance(fs::directory_iterator(place), {}) : 1;
    };
    expect_refused(call + " --out " + place, 2,
                   ending.empty() ? place +
                                        " holds thesis.txt; expected a new or empty folder, or "
                                        "--force to write into it"
                                  : place +
                                        " is a file of 4 bytes; expected a new name, or "
                                        "--force to write over it");
    EXPECT_EQ(read_text_file(foreign), "mine");
    EXPECT_EQ(there(), 1);
    const Outcome forced = run(call + " --force --out " + place);
    EXPECT_EQ(forced.code, 0) << forced.err;
    if (ending.empty())
      EXPECT_GT(there(), 1);
    else
      EXPECT_NE(read_text_file(place), "mine");
    // an empty folder and an empty file are nobody's
    const std::string fresh = (folder_ / ("fresh" + name)).string();
    if (ending.empty())
      fs::create_directory(fresh);
    else
      folder_.write("fresh" + name, "");
    const Outcome first = run(call + " --out " + fresh);
    EXPECT_EQ(first.code, 0) << first.err;
    // tables of vectors are written again as they were
    const Outcome again = run(call + " --out " + fresh);
    EXPECT_EQ(again.code, call.starts_with("embed") ? 0 : 2) << again.err;
  }
  // shards have other names than the one that is given
  const std::string shards = (folder_ / "shards.gguf").string(),
                    in_parts = "convert " + gguf + " --to gguf --part-mib 1 --out " + shards;
  folder_.write("shards-00001-of-00002.gguf", "mine");
  expect_refused(in_parts, 2, "shards-00001-of-00002.gguf is a file of 4 bytes");
  // a run that is there is resumed, or said to be one, and its page written again
  const std::string out = (folder_ / "run").string();
  ASSERT_EQ(run("train " + recipe + " --out " + out).code, 0);
  const Outcome second = run("train " + recipe + " --out " + out);
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.err.find("resume that run"), std::string::npos) << second.err;
  EXPECT_EQ(run("train " + recipe + " --resume --set train.steps=2 --out " + out).code, 0);
  const std::string page = (folder_ / "page.html").string();
  EXPECT_EQ(run("runs " + out + " --html " + page).code, 0);
  EXPECT_EQ(run("runs " + out + " --html " + page).code, 0);
  expect_refused("runs " + out + " --html " + text, 2, "expected a new name, or --force");
}

// a config whose key another family gives a meaning opens by --ignore-key alone, in every verb
TEST_F(CliFlags, EveryVerbThatOpensAModelTakesIgnoreKey) {
  namespace fs = std::filesystem;
  // an encoder's folder does for most of them
  const auto with_key = [&](const std::string& from, const char* to) {
    const fs::path folder = folder_ / to;
    fs::copy(from, folder, fs::copy_options::recursive);
    spec::Json config = spec::read_json_file(folder / "config.json");
    config["logit_scale"] = 0.5;
    fs::remove(folder / "config.json");
    folder_.write(std::string(to) + "/config.json", config.dump());
    return folder.string();
  };
  const std::string decoder = with_key(tiny(), "decoder"),
                    sentences = (kSource / "tests/golden/sentence/base").string(),
                    encoder = with_key(sentences, "encoder");
  const std::string notes = folder_.write("notes.md", "the cat\n\na dog\n"),
                    text = folder_.write("text.txt", std::string(200, 'a')),
                    scored = folder_.write("sts.csv", "text,text_b,score\na,b,1.5\nthe,a,2\n"),
                    out = (folder_ / "out").string();
  const std::string index = (folder_ / "notes.index").string();
  ASSERT_EQ(
      run("index " + notes + " --tokens 40 --overlap 0 --with " + sentences + " --out " + index)
          .code,
      0);
  const auto recipe = [&](const char* name, const spec::Json& more) {
    spec::Json json = {{"data", {{"train", {text}}, {"tokenizer", "bytes"}}},
                       {"train", {{"steps", 1}, {"batch", 1}, {"length", 8}}},
                       {"optimizer", {{"type", "adamw"}, {"lr", 1e-4}}}};
    json.update(more);
    return folder_.write(name, json.dump());
  };
  const std::string begins = recipe("init.json", {{"init", {{"from", decoder}}}});
  const std::string learns =
      recipe("teacher.json", {{"init", {{"from", tiny()}}},
                              {"objective", {{"type", "distillation"}, {"teacher", decoder}}}});
  // what each opens the model by, and the exit code once it has it
  const std::vector<std::pair<std::string, std::string>> opens = {
      {"generate", decoder + " --input-ids 1,2 -n 1"},
      {"chat", decoder},
      {"serve", decoder + " --port 0"},
      {"embed", encoder + " --text 'the cat'"},
      {"index", notes + " --rebuild --tokens 40 --overlap 0 --with " + encoder + " --out " + index},
      {"search", index + " cat --with " + encoder},
      {"finetune", decoder + " --recipe --data " + text},
      {"train", begins + " --out " + out + "1"},
      {"train", learns + " --out " + out + "2"},
      {"sweep", begins + " --out " + out + "6"},
      {"data", begins},
      {"init", decoder + " --out " + out + "3"},
      {"eval", decoder + " --text " + text},
      {"eval", encoder + " --data " + scored},
      {"classify", encoder + " --text a"},
      {"bench", decoder + " --prefill 4 --decode 1 --repeats 1"},
      {"bench guesses", decoder + " --text " + text},
      {"bench quant", decoder + " --text " + text},
      {"verify", decoder + " --text " + text},
      {"convert", decoder + " --out " + out + "4"},
      {"quantize", decoder + " --type Q8_0 --out " + out + ".gguf"},
      {"plan", decoder},
      {"plan", begins},
      {"show", decoder},
      {"forward", decoder + " --input " + decoder + "/model.safetensors --out " + out + "5"}};
  std::set<std::string> walked;
  for (const auto& [verb, arguments] : opens) {
    SCOPED_TRACE(verb + " " + arguments);
    walked.insert(verb.substr(0, verb.find(' ')));
    const char* const before = verb == "serve" ? "timeout 5 " : "";  // which runs until it is told
    const Outcome refused = run(verb + " " + arguments, before);
    EXPECT_NE(refused.code, 0);
    EXPECT_NE(refused.err.find("--ignore-key logit_scale"), std::string::npos) << refused.err;
    // whatever else it may lack
    const Outcome opened = run(verb + " " + arguments + " --ignore-key logit_scale", before);
    EXPECT_EQ(opened.err.find("logit_scale"), std::string::npos) << opened.err;
    EXPECT_EQ(opened.err.find("there is no option"), std::string::npos) << opened.err;
  }
  for (const std::string& verb : verbs())
    EXPECT_EQ(help(verb).find("--ignore-key") != std::string::npos, walked.contains(verb)) << verb;
}

TEST_F(CliFlags, QuantizeTakesWhatLlamaQuantizeTakes) {
  const auto size = [&](const std::string& arguments, const std::string& to) {
    const Outcome outcome = run("quantize " + model() + " " + arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << outcome.err;
    return outcome.code == 0 ? read_text_file(to) : arguments;
  };
  const std::string a = (folder_ / "a.gguf").string(), b = (folder_ / "b.gguf").string();
  EXPECT_EQ(size("--type Q4_0 --out " + a + " --requantize", a),
            size(b + " Q4_0 --allow-requantize", b));
  EXPECT_EQ(run("quantize " + model() + " Q4_0 --dry-run --requantize").code, 0);
  expect_refused("quantize " + model(), 2, "--type is required");
  expect_refused("quantize " + model() + " " + b + " Q4_0 --type Q8_0", 2, "excludes");
}

TEST_F(CliFlags, FinetuneTakesTheNamesOfTrainers) {
  const std::string data =
      folder_.write("data.txt", "ABC\nDEF\nABC DEF\nAAA\nBBB\nCCC\nDDD\nEEE\n");
  const std::string start = "finetune " + model() + " --data " + data + " --recipe ";
  const Outcome theirs = run(start +
                             "--lora-r 4 --lora_alpha 16 --learning-rate 1e-3 --max-steps 3 "
                             "--per_device_train_batch_size 2 --max-seq-length 8");
  ASSERT_EQ(theirs.code, 0) << theirs.err;
  EXPECT_EQ(
      theirs.out,
      run(start + "--lora 4 --set adapter.alpha=16 --lr 1e-3 --steps 3 --batch 2 --length 8").out);
  const spec::Json recipe = spec::parse_json(theirs.out, "stdout");
  EXPECT_EQ(recipe["adapter"]["alpha"], 16);
  EXPECT_EQ(recipe["optimizer"]["lr"], 1e-3);
  EXPECT_EQ(recipe["train"]["batch"], 2);
  expect_refused(start + "--lora-alpha 16", 2, "expected --lora RANK");
}

TEST_F(CliFlags, TheHelpHasGroupsInTheirOrder) {
  const std::map<std::string, std::vector<std::string>> expected = {
      {"generate",
       {"Examples", "Arguments", "Input", "Output", "Length and stopping", "Sampling",
        "Constrained decoding", "Beam search", "Speculative decoding", "Context and KV cache",
        "Caching and sessions", "Retrieval (RAG)", "Batch files", "Encoder-decoder and speech",
        "Precision and performance", "Model", "Plugins", "Help"}},
      {"chat",
       {"Examples", "Arguments", "Conversation", "Sampling", "Constrained decoding",
        "Speculative decoding", "Context and KV cache", "Retrieval (RAG)",
        "Precision and performance", "Model", "Plugins", "Help"}},
      {"serve",
       {"Examples", "Arguments", "Models", "Network and access", "Scheduling and memory",
        "API defaults", "Speculative decoding", "KV cache", "Retrieval (RAG)",
        "Limits and timeouts", "Logging and metrics", "Precision and performance", "Plugins",
        "Help"}},
      {"finetune",
       {"Examples", "Arguments", "Data", "Task", "Method", "Hyperparameters", "Run", "Plugins",
        "Help"}},
      {"train",
       {"Examples", "Arguments", "Run", "Batch size and memory", "Parallelism", "Plugins", "Help"}},
      {"eval",
       {"Examples", "Arguments", "Input", "Labelled data", "Tasks", "Windows", "KV cache",
        "n-gram baseline", "Precision and performance", "Plugins", "Help"}}};
  for (const auto& [verb, names] : expected) EXPECT_EQ(groups(help(verb)), names) << verb;
  std::vector<std::string> all = verbs();
  for (const char* below : {"mixers", "quant", "sampling", "grammar", "guesses"})
    all.push_back(std::string("bench ") + below);
  EXPECT_EQ(run("bench speculative --help").out, help("bench guesses"));
  EXPECT_EQ(run("bench quantization --help").out, help("bench quant"));
  for (const std::string& verb : all) {
    // examples first, then groups that are named
    const std::vector<std::string> names = groups(help(verb));
    ASSERT_GE(names.size(), 2u) << verb;
    EXPECT_EQ(names.front(), "Examples") << verb;
    EXPECT_EQ(std::count(names.begin(), names.end(), "Options"), 0) << verb;
    EXPECT_EQ(names.back(), verb == "bench"      ? "Benchmarks"
                            : verb == "families" ? "Commands"
                                                 : "Help")
        << verb;
    std::istringstream lines(help(verb));
    for (std::string line; std::getline(lines, line);)
      if (!line.starts_with("  tessera") && !line.starts_with("  curl") &&
          line.find("| tessera") == std::string::npos) {
        EXPECT_LE(line.size(), 110u) << verb << ": " << line;
      }
  }
}

// a flag of `generate` alone, or of the list alone, is an omission
TEST_F(CliFlags, OptionsOfDecodingAreThoseOfTheList) {
  std::istringstream words(help("generate"));
  std::string all;  // without line breaks
  for (std::string word; words >> word;) all += (all.empty() ? "" : " ") + word;
  std::set<std::string> listed;
  for (const infer::DecodingField& option : infer::decoding_fields()) {
    if ((option.accepted & infer::in_flags) == 0) continue;
    listed.insert(option.flag());
    EXPECT_NE(all.find(option.doc), std::string::npos) << option.name;
    std::istringstream names(option.flag_names());
    for (std::string name; std::getline(names, name, ',');)
      EXPECT_NE(all.find(name), std::string::npos) << name;
  }
  std::istringstream lines(help("generate"));
  const std::set<std::string> of_decoding = {
      "Length and stopping:", "Sampling:", "Constrained decoding:", "Beam search:"};
  bool here = false;
  int seen = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with(':') && !line.starts_with(' ')) here = of_decoding.contains(line);
    if (!here) continue;
    for (const std::string& flag : long_options(line)) {
      ++seen;
      EXPECT_TRUE(listed.contains(flag) || flag == "--generation-config")
          << flag << " is not in infer/sampling/decoding_fields.h";
    }
  }
  EXPECT_GT(seen, 40);
}

TEST_F(CliFlags, TheProgramListsItsVerbsInGroups) {
  const std::string text = help("");
  EXPECT_EQ(groups(text),
            (std::vector<std::string>{"Examples", "Options", "Text generation",
                                      "Embeddings and retrieval", "Training", "Evaluation",
                                      "Models and files", "Hugging Face cache", "Installation"}));
  for (const std::string& verb : verbs())
    EXPECT_NE(text.find("\n  " + verb + " "), std::string::npos) << verb;
  EXPECT_EQ(run("help").out, text);
  EXPECT_EQ(run("help generate").out, help("generate"));
  EXPECT_EQ(run("help plan").out, help("plan"));
  expect_refused("", 2, "a verb is required");
}

}  // namespace
}  // namespace tessera
