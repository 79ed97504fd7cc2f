// Models by name through the program: in a cache that is made up here, and downloaded from a hub on
// the loopback.
#include <csignal>
#include <fstream>
#include <map>
#include <regex>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>

#include "cli_testing.h"
#include "tessera/hub/testing_hub.h"
#include "tessera/spec/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

class ModelsByName : public CliRunner {
 protected:
  ModelsByName() {
    for (const char* name :
         {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE",
          "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN",
          "HF_TOKEN_PATH", "https_proxy", "http_proxy"})
      unsetenv(name);
    setenv("HF_HOME", folder_.path().c_str(), 1);
  }
  ~ModelsByName() override { unsetenv("HF_HOME"); }

  fs::path cache() const { return folder_ / "hub"; }
  fs::path snapshot(const std::string& folder) const {
    return cache() / folder / "snapshots" / kCommit;
  }
  /// A file of a model of the cache: a blob, and the link to it.
  void put(const std::string& folder, const std::string& path, const fs::path& from) const {
    const fs::path blob =
                       cache() / folder / "blobs" / std::to_string(std::hash<std::string>()(path)),
                   link = snapshot(folder) / path;
    fs::create_directories(blob.parent_path());
    fs::create_directories(link.parent_path());
    fs::copy_file(from, blob);
    fs::create_symlink(fs::relative(blob, link.parent_path()), link);
    folder_.write("hub/" + folder + "/refs/main", kCommit);
  }
  /// org/tiny: a folder; org/tiny-gguf: two GGUF files.
  void fill() const {
    for (const char* file : {"config.json", "model.safetensors"})
      put("models--org--tiny", file, fs::path(tiny()) / file);
    put("models--org--tiny-gguf", "tiny-F32.gguf", gguf());
    put("models--org--tiny-gguf", "tiny-Q8_0.gguf", kGoldens + "/llama/gguf/attention_bias.gguf");
  }
  static fs::path gguf() { return kGoldens + "/llama/gguf/base.gguf"; }
  spec::Json json(const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    return outcome.code == 0 ? spec::parse_json(outcome.out, arguments) : nullptr;
  }
  /// A name does what its path does.
  void expect_same(const std::string& with_name, const std::string& with_path) {
    const Outcome named = run(with_name), path = run(with_path);
    EXPECT_EQ(named.code, 0) << with_name << "\n" << named.err;
    // but for how fast it did
    static const std::regex speed(R"("[a-z_]*tokens_per_s": [0-9.e+-]+)");
    EXPECT_EQ(std::regex_replace(named.out, speed, ""), std::regex_replace(path.out, speed, ""))
        << with_name;
    EXPECT_NE(named.out, "") << with_name;
  }
};

TEST_F(ModelsByName, ANameIsItsPath) {
  fill();
  const std::string path = gguf().string(), name = "org/tiny-gguf:F32";
  expect_same("show org/tiny", "show " + tiny());
  expect_same("plan org/tiny", "plan " + tiny());
  expect_same("plan org/tiny@" + kCommit.substr(0, 8), "plan " + tiny());
  expect_same("plan " + (cache() / "models--org--tiny").string(), "plan " + tiny());
  expect_same("show " + name + " --metadata", "show " + path + " --metadata");
  expect_same("tokenize org/tiny-gguf:f32 --text ABC", "tokenize " + path + " --text ABC");
  expect_same("tokenize org/tiny-gguf:tiny-F32.gguf --text ABC",
              "tokenize " + path + " --text ABC");
  expect_same("generate -m " + name + " ABC -n 6 --ignore-eos",
              "generate " + path + " ABC -n 6 --ignore-eos");
  expect_same("generate " + path + " ABC -n 6 --ignore-eos --draft " + name + " --json --seed 1",
              "generate " + path + " ABC -n 6 --ignore-eos --draft " + path + " --json --seed 1");
  // a path that exists wins
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "org");
  fs::copy_file(kGoldens + "/llama/gguf/tie_word_embeddings.gguf", folder_ / "org/tiny");
  fs::current_path(folder_.path());
  expect_same("show org/tiny", "show " + kGoldens + "/llama/gguf/tie_word_embeddings.gguf");
  fs::current_path(before);
  expect_refused("generate org/tiny-gguf x", 1,
                 "[model] org/tiny-gguf has 2 GGUF files; expected one of org/tiny-gguf:F32, "
                 "org/tiny-gguf:Q8_0");
  expect_refused("plan org/tiny@v2", 1,
                 "no revision v2 in the cache; there: main, 0123456789ab; `tessera pull org/tiny "
                 "--revision v2` downloads it");
}

/// Every option that takes a model.
TEST_F(ModelsByName, EveryVerbLooksInTheCacheAndDownloadsNothing) {
  const std::string m = gguf().string(), none = "org/none", out = (folder_ / "out").string();
  const std::string text = folder_.write("a.txt", "ABC\n");
  for (const std::string& arguments :
       {"generate " + none + " x",
        "chat " + none,
        "serve " + none + " --port 0",
        "serve " + m + " --port 0 --adapter a=" + none,
        "embed " + none + " --text x",
        "classify " + none + " --text x",
        "eval " + none + " --text " + text,
        "bench " + none,
        "verify " + none + " --text " + text,
        "forward " + none + " --input none --out " + out,
        "convert " + none + " --out " + out,
        "quantize " + none + " --type Q8_0 --out " + out,
        "plan " + none,
        "show " + none,
        "init " + none + " --out " + out,
        "tokenize " + none + " --text x",
        "finetune " + none + " --data " + text + " --out " + out,
        "index " + text + " --with " + none + " --out " + out,
        "search idx q --with " + none,
        "generate " + m + " x --draft " + none,
        "generate " + m + " x --adapter " + none,
        "generate " + m + " x --retrieve idx --retrieve-with " + none,
        "generate " + m + " x --retrieve idx --rerank-with " + none,
        "chat " + m + " --draft " + none,
        "eval " + m + " --text " + text + " --adapter " + none,
        "convert " + m + " --tokenizer " + none + " --out " + out,
        "convert " + m + " --merge-adapter " + none + " --out " + out,
        "convert " + m + " --unmerge-adapter " + none + " --out " + out,
        "convert " + m + " --export-adapter " + none + " --out " + out,
        "quantize " + m + " --type Q8_0 --tokenizer " + none + " --out " + out,
        "init " + m + " --tokenizer " + none + " --out " + out,
        "bench speculative " + none + " --text " + text,
        "bench quant " + none + " --text " + text,
        "bench grammar " + none})
    expect_refused(arguments, 1, "`tessera pull org/none` downloads it");
  EXPECT_FALSE(fs::exists(cache()));
  EXPECT_FALSE(fs::exists(out));
  // what is no name stays a path
  expect_refused("generate nothing.gguf x", 1, "nothing.gguf: No such file or directory");
}

TEST_F(ModelsByName, RecipesNameModels) {
  fill();
  folder_.write("t.txt", "ABCABCABCABCABC\n");
  const std::string recipe = folder_.write("recipe.json", R"({
    "init": {"from": "org/tiny-gguf:F32"}, "data": {"train": ["t.txt"]},
    "train": {"steps": 1, "batch": 1, "length": 8}})");
  expect_same("show " + recipe + " --resolved", "show " + gguf().string() + " --resolved");
}

TEST_F(ModelsByName, TheCacheIsListed) {
  expect_refused("models x", 2, "unexpected argument");
  EXPECT_EQ(run("models").out, "0 bytes in " + cache().string() + "\n");
  fill();
  folder_.write("hub/models--org--broken/refs/main", kCommit);
  put("models--org--broken", "config.json", folder_.write("c.json", R"({"model_type": "nope"})"));
  put("models--org--lora", "adapter_config.json",
      folder_.write("a.json", R"({"peft_type": "LORA", "base_model_name_or_path": "org/tiny"})"));
  put("models--org--no-weights", "config.json", tiny() + "/config.json");
  folder_.write("hub/models--org--begun/blobs/x.incomplete", "abc");
  fs::create_directories(cache() / "models--org--begun/snapshots");
  fs::create_directories(cache() / "datasets--org--data/snapshots");
  put("models--org--out", "config.json", tiny() + "/config.json");
  fs::create_symlink(folder_.write("secret", "x"),
                     snapshot("models--org--out") / "model.safetensors");
  const spec::Json all = json("models --json");
  std::map<std::string, spec::Json> rows;
  for (const spec::Json& row : all["models"]) rows[row["name"]] = row;
  ASSERT_EQ(rows.size(), 8u) << all.dump(1);
  const spec::Json& tiny_row = rows["org/tiny"];
  EXPECT_EQ(tiny_row["type"], "llama");
  EXPECT_EQ(tiny_row["runs"], true) << tiny_row.dump();
  EXPECT_EQ(tiny_row["parameters"], json("plan " + tiny() + " --json")["parameters"]);
  EXPECT_EQ(tiny_row["bytes"],
            fs::file_size(tiny() + "/config.json") + fs::file_size(tiny() + "/model.safetensors"));
  EXPECT_EQ(tiny_row["commit"], kCommit);
  EXPECT_EQ(tiny_row["path"], snapshot("models--org--tiny").string());
  EXPECT_EQ(rows["org/tiny-gguf:F32"]["storage"], "F32");
  EXPECT_EQ(rows["org/tiny-gguf:F32"]["runs"], true) << rows["org/tiny-gguf:F32"].dump();
  EXPECT_EQ(rows["org/tiny-gguf:F32"]["type"], "llama");
  EXPECT_EQ(rows["org/tiny-gguf:Q8_0"]["bytes"],
            fs::file_size(kGoldens + "/llama/gguf/attention_bias.gguf"));
  const auto why = [&](const std::string& name) {
    EXPECT_EQ(rows[name]["runs"], false) << name;
    return rows[name].value("why", "");
  };
  EXPECT_THAT(why("org/broken"), HasSubstr("nope"));
  EXPECT_THAT(why("org/lora"), HasSubstr("give it as --adapter, with its base model org/tiny"));
  EXPECT_THAT(why("org/no-weights"), HasSubstr("model.safetensors"));
  EXPECT_GT(rows["org/no-weights"]["parameters"].get<int64_t>(), 0);
  EXPECT_THAT(why("org/begun"), HasSubstr("`tessera pull org/begun` resumes"));
  EXPECT_EQ(rows["org/begun"]["bytes"], 3);
  EXPECT_THAT(why("org/out"), HasSubstr("outside of the cache"));
  const std::string table = run("models").out;
  EXPECT_THAT(table, HasSubstr("\norg/tiny "));
  EXPECT_THAT(table, HasSubstr(" in " + cache().string() + "\n"));
  // every name of the table is one
  for (const auto& [name, row] : rows)
    if (row["runs"] == true) EXPECT_EQ(run("plan " + name).code, 0) << name;
}

TEST_F(ModelsByName, ModelsAreRemoved) {
  fill();
  expect_refused("rm org/tiny", 2, "expected --yes where standard input is no terminal");
  EXPECT_TRUE(fs::exists(snapshot("models--org--tiny")));
  expect_refused("rm org/none --yes", 1, "org/none: not in the cache");
  for (const char* name : {"../x", "/etc", ".", "org/tiny:F32", "models--org--tiny"})
    expect_refused(std::string("rm '") + name + "' --yes", 2, "expected ORG/NAME");
  EXPECT_THAT(run("rm org/tiny --yes").out, HasSubstr("org/tiny: 2 files, "));
  EXPECT_FALSE(fs::exists(cache() / "models--org--tiny"));
  EXPECT_EQ(run("plan org/tiny-gguf:F32").code, 0);
  const std::string victim = folder_.write("mine/snapshots/x", "x");
  fs::create_directory_symlink(folder_ / "mine", cache() / "models--org--link");
  expect_refused("rm org/link --yes", 2, "is a link or a file; expected a folder of the cache");
  EXPECT_TRUE(fs::exists(victim));
}

// --- pull ---------------------------------------------------------------------------------------

std::vector<test::HubFile> tiny_files() {
  std::vector<test::HubFile> files;
  for (const char* name : {"config.json", "model.safetensors"})
    files.push_back({name, read_text_file(kGoldens + "/llama/base/" + name),
                     std::string(name) == "model.safetensors"});
  files.push_back({"large-F32.gguf", std::string(1'000'000, 'x'), true});
  return files;
}

TEST_F(ModelsByName, WhatIsPulledRuns) {
  const test::Hub hub(tiny_files());
  setenv("HF_ENDPOINT", hub.endpoint().c_str(), 1);
  const Outcome pulled = run("pull org/name");
  EXPECT_EQ(pulled.code, 0) << pulled.err;
  EXPECT_EQ(pulled.out, snapshot("models--org--name").string() + "\n");
  EXPECT_THAT(pulled.err, HasSubstr("tessera: org/name: 2 files, "));
  expect_same("show org/name", "show " + tiny());
  EXPECT_EQ(json("pull org/name:F32 --json")["downloaded"], 1'000'000);
  EXPECT_EQ(json("pull org/name --quant F32 --json")["downloaded"], 0);
  expect_refused("pull org/name --include '*.md'", 2, "no file fits --include \"*.md\"");
  expect_refused("pull org/name --quant Q4_K_M", 2, "there: --quant F32 (1.0 MB)");
  expect_refused("pull ./x", 2, "expected ORG/NAME");
  expect_refused("pull org/name --revision ../x", 2, "--revision \"../x\"");
  expect_refused("pull org/other", 1, "HTTP 404");
  expect_refused("pull org/name --revision v2", 1, "no revision v2");
  const Outcome offline = run("pull org/name", "HF_HUB_OFFLINE=1 ");
  expect_complaint(offline, 2, "HF_HUB_OFFLINE is set");
  // nothing is printed of a token
  const Outcome token = run("pull org/name", "HF_TOKEN=hf_secret ");
  EXPECT_EQ(token.code, 0) << token.err;
  EXPECT_THAT(token.out + token.err, Not(HasSubstr("hf_secret")));
  EXPECT_EQ(hub.requests().back().header("authorization"), "Bearer hf_secret");
  unsetenv("HF_ENDPOINT");
}

/// The program in the background.
pid_t begin_pull(const fs::path& err) {
  const pid_t child = fork();
  if (child == 0) {
    const int file = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execl(TESSERA_PROGRAM, "tessera", "pull", "org/name:F32", nullptr);
    _exit(127);
  }
  return child;
}
int end_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
void wait_for_bytes(const fs::path& file, uint64_t bytes) {
  std::error_code none;
  for (int i = 0; i < 1000 && (!fs::exists(file) || fs::file_size(file, none) < bytes); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST_F(ModelsByName, ASignalLeavesWhatTheNextPullResumes) {
  test::Hub hub(tiny_files());
  setenv("HF_ENDPOINT", hub.endpoint().c_str(), 1);
  const fs::path part =
      cache() / "models--org--name/blobs" / (hub.file("large-F32.gguf").hash() + ".incomplete");
  for (const auto& [signal, bytes] : {std::pair{SIGINT, 262'144u}, {SIGKILL, 524'288u}}) {
    hub.faults([stall = size_t{bytes}](const test::HubRequest& request, test::HubReply& reply) {
      const size_t begin = 1'000'000 - reply.body.size();
      if (!request.store) return;
      reply.stall_at = stall - begin;
      reply.stall = std::chrono::seconds(20);
    });
    const pid_t child = begin_pull(folder_ / "pull.txt");
    wait_for_bytes(part, bytes);
    kill(child, signal);
    EXPECT_EQ(end_of(child), 128 + signal);
    EXPECT_EQ(fs::file_size(part), bytes);
    EXPECT_FALSE(fs::exists(snapshot("models--org--name")));
    EXPECT_EQ(run("plan org/name").code, 1);
    if (signal == SIGINT) {
      EXPECT_THAT(read_text_file(folder_ / "pull.txt"), HasSubstr("the same command resumes"));
    }
  }
  hub.faults({});
  EXPECT_EQ(json("pull org/name:F32 --json")["downloaded"], 1'000'000 - 524'288);
  EXPECT_EQ(read_text_file(snapshot("models--org--name") / "large-F32.gguf"),
            hub.file("large-F32.gguf").content);
  unsetenv("HF_ENDPOINT");
}

TEST_F(ModelsByName, TwoProcessesPullOnce) {
  test::Hub hub(tiny_files());
  setenv("HF_ENDPOINT", hub.endpoint().c_str(), 1);
  hub.faults([](const test::HubRequest& request, test::HubReply& reply) {
    if (request.store) reply.each_64k = std::chrono::milliseconds(50);
  });
  const pid_t one = begin_pull(folder_ / "one.txt"), two = begin_pull(folder_ / "two.txt");
  EXPECT_EQ(end_of(one), 0) << read_text_file(folder_ / "one.txt");
  EXPECT_EQ(end_of(two), 0) << read_text_file(folder_ / "two.txt");
  EXPECT_EQ(hub.requests("?signed").size(), 1u);
  unsetenv("HF_ENDPOINT");
}

TEST_F(ModelsByName, OnlyPullOpensTheLibraryOfConnections) {
  const test::Hub hub(tiny_files());
  const std::string watched = "LD_DEBUG=files HF_ENDPOINT=" + hub.endpoint() + " ";
  EXPECT_THAT(run("pull org/name", watched).err, HasSubstr("libcurl"));
  for (const char* arguments : {"models", "plan org/name", "list families", "rm org/name --yes"}) {
    const Outcome outcome = run(arguments, watched);
    EXPECT_EQ(outcome.code, 0) << arguments;
    EXPECT_THAT(outcome.err, Not(HasSubstr("libcurl"))) << arguments;
  }
}

}  // namespace
}  // namespace tessera
