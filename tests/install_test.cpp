// What is installed works where it lies: a prefix in a folder of its own, programs in C and C++
// built against it by find_package and by pkg-config, commands, pages and completion, and the
// Python module.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/testing.h"

namespace {

namespace fs = std::filesystem;

struct Ran {
  int status = 0;
  std::string out;
};

/// A command line with both outputs.
Ran run(const std::string& command) {
  Ran ran;
  FILE* const pipe = popen(("(" + command + ") 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen"};
  std::array<char, 4096> piece{};
  for (size_t n = 0; (n = fread(piece.data(), 1, piece.size(), pipe)) > 0;)
    ran.out.append(piece.data(), n);
  const int status = pclose(pipe);
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One installation for all tests, gone when they end; a tiny untrained model in it.
class Install : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new tessera::test::TemporaryFolder;
    prefix_ = (folder_->path() / "prefix").string();
    const Ran installed =
        run("cmake --install '" TESSERA_BINARY_DIR "' --prefix '" + prefix_ + "'");
    ASSERT_EQ(installed.status, 0) << installed.out;
    const std::string spec = folder_->write("spec.json", R"({
      "tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 32, "norm": "rms_norm",
      "layers": [{"repeat": 2, "mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}}],
      "head": "tied"})");
    model_ = (folder_->path() / "model").string();
    const Ran made =
        run("'" + prefix_ + "/bin/tessera' init '" + spec + "' --out '" + model_ + "'");
    ASSERT_EQ(made.status, 0) << made.out;
    const Ran text = run("'" + prefix_ + "/bin/tessera' generate '" + model_ +
                         "' 'Once' -n 64 --temperature 0 --no-echo 2>/dev/null");
    ASSERT_EQ(text.status, 0) << text.out;
    expected_ = text.out;
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string tessera(const std::string& arguments) {
    return "'" + prefix_ + "/bin/tessera' " + arguments;
  }
  static fs::path folder_of(const std::string& name) { return folder_->path() / name; }
  static Ran build(const std::string& name) {
    const std::string folder = folder_of(name).string();
    return run("cmake -S '" + folder + "' -B '" + folder + "/build' -DCMAKE_PREFIX_PATH='" +
               prefix_ + "' && cmake --build '" + folder + "/build'");
  }
  /// The sources of `tessera new SLOT NAME`, built against the installation: the plugin's path.
  static std::string made(const std::string& slot, const std::string& name) {
    const std::string plugin = (folder_of(name) / "build" / (name + ".so")).string();
    if (fs::exists(plugin)) return plugin;
    const Ran written =
        run(tessera("new " + slot + " " + name + " --out '" + folder_of(name).string() + "'"));
    EXPECT_EQ(written.status, 0) << written.out;
    const Ran built = build(name);
    EXPECT_EQ(built.status, 0) << built.out;
    EXPECT_EQ(built.out.find("warning"), std::string::npos) << built.out;
    return plugin;
  }
  /// One line on standard error, with that exit code.
  static void expect_refused(const std::string& arguments, int status, const std::string& part) {
    const Ran ran = run(tessera(arguments));
    EXPECT_EQ(ran.status, status) << arguments << "\n" << ran.out;
    EXPECT_NE(ran.out.find(part), std::string::npos) << arguments << "\n" << ran.out;
    EXPECT_EQ(ran.out.find('\n'), ran.out.size() - 1) << ran.out;
  }

  static tessera::test::TemporaryFolder* folder_;
  static std::string prefix_, model_, expected_;
};
tessera::test::TemporaryFolder* Install::folder_ = nullptr;
std::string Install::prefix_, Install::model_, Install::expected_;

TEST_F(Install, HasCommandsPagesAndCompletion) {
  const Ran version = run("'" + prefix_ + "/bin/tessera' --version");
  EXPECT_EQ(version.out.rfind("tessera ", 0), 0u) << version.out;
  // bash completes verbs and options of a verb by the program's own help
  const std::string script = prefix_ + "/share/bash-completion/completions/tessera";
  const auto completed = [&](const std::string& words, int word) {
    return run("PATH='" + prefix_ + "/bin':$PATH bash -c 'source " + script + "; COMP_WORDS=(" +
               words + "); COMP_CWORD=" + std::to_string(word) +
               "; _tessera; echo ${COMPREPLY[@]}'")
        .out;
  };
  EXPECT_EQ(completed("tessera gen", 1), "generate\n");
  EXPECT_EQ(completed("tessera tokenize --dec", 2), "--decode\n");
  EXPECT_TRUE(fs::exists(prefix_ + "/share/zsh/site-functions/_tessera"));
  EXPECT_TRUE(fs::exists(prefix_ + "/share/fish/vendor_completions.d/tessera.fish"));
  const Ran page = run("cmake --build '" TESSERA_BINARY_DIR
                       "' --target man && cmake --install '" TESSERA_BINARY_DIR "' --prefix '" +
                       prefix_ + "' && cat '" + prefix_ + "/share/man/man1/tessera-tokenize.1'");
  EXPECT_EQ(page.status, 0) << page.out.substr(0, 2000);
  EXPECT_NE(page.out.find("\\-\\-decode"), std::string::npos);
}

// The program alone in a folder: nothing that links libtorch is there to be started.
TEST_F(Install, VerbsWithoutTensorsStartWithoutLibtorch) {
  const Ran linked = run("ldd '" + prefix_ + "/bin/tessera'");
  EXPECT_EQ(linked.out.find("torch"), std::string::npos) << linked.out;
  fs::create_directories(folder_->path() / "alone");
  fs::copy_file(prefix_ + "/bin/tessera", folder_->path() / "alone/tessera");
  const std::string alone = "HF_HUB_CACHE='" + (folder_->path() / "hub").string() +
                            "' HF_HUB_OFFLINE=1 '" + (folder_->path() / "alone/tessera").string() +
                            "' ",
                    spec = "'" + (folder_->path() / "spec.json").string() + "'";
  const std::pair<std::string, std::string> verbs[] = {
      {"list", "mamba2"},
      {"show " + spec + " --resolved", "d_state"},
      {"plan " + spec, "parameters"},
      {"tokenize '" + model_ + "' Once", "79"},
      {"models", ""},
      {"runs '" + folder_->path().string() + "'", ""},
      {"convert --help", "--reference"}};
  for (const auto& [verb, part] : verbs) {
    const Ran ran = run(alone + verb);
    EXPECT_EQ(ran.out.find("tessera-tensors"), std::string::npos) << verb << "\n" << ran.out;
    EXPECT_NE(ran.out.find(part), std::string::npos) << verb << "\n" << ran.out;
  }
  EXPECT_NE(run(alone + "pull org/name").out.find("[pull] HF_HUB_OFFLINE is set"),
            std::string::npos);
  EXPECT_NE(run(alone + "generate '" + model_ + "' Once").out.find("tessera-tensors"),
            std::string::npos);
}

TEST_F(Install, ProgramsBuildAndRunOnIt) {
  const std::string work = (folder_->path() / "programs").string();
  const Ran built = run("cmake -S '" TESSERA_SOURCE_DIR "/examples/library' -B '" + work +
                        "' -DCMAKE_PREFIX_PATH='" + prefix_ + "' && cmake --build '" + work + "'");
  ASSERT_EQ(built.status, 0) << built.out;
  for (const char* program : {"story", "story_c"}) {
    const Ran ran = run("'" + work + "/" + program + "' '" + model_ + "' Once 2>/dev/null");
    EXPECT_EQ(ran.status, 0) << program << ran.out;
    EXPECT_EQ(ran.out, expected_) << program;
  }
  const Ran wrong = run("'" + work + "/story_c' '" + model_ + "/none' Once");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_NE(wrong.out.find("none"), std::string::npos) << wrong.out;
  EXPECT_EQ(wrong.out.find('\n'), wrong.out.size() - 1) << wrong.out;
}

TEST_F(Install, PkgConfigSaysHowToCompile) {
  const std::string program = (folder_->path() / "by_pkg_config").string();
  const Ran built = run("PKG_CONFIG_PATH=$(dirname $(find '" + prefix_ +
                        "' -name tessera.pc)) && export PKG_CONFIG_PATH && cc '" TESSERA_SOURCE_DIR
                        "/examples/library/story_c.c' $(pkg-config --cflags --libs tessera) -o '" +
                        program + "'");
  ASSERT_EQ(built.status, 0) << built.out;
  const Ran ran = run("LD_LIBRARY_PATH=$(dirname $(find '" + prefix_ + "' -name libtessera.so)) '" +
                      program + "' '" + model_ + "' Once");
  EXPECT_EQ(ran.out, expected_);
}

TEST_F(Install, TheLibraryShowsItsOwnSymbolsAlone) {
  const Ran symbols =
      run("nm -D --defined-only $(find '" + prefix_ + "' -name libtessera.so) | sed 's/.* //'");
  ASSERT_EQ(symbols.status, 0);
  EXPECT_NE(symbols.out.find("_ZNK7tessera5Model8generate"), std::string::npos);
  // those of a library that is compiled in would meet another version of it in the program
  std::istringstream names(symbols.out);
  for (std::string name; std::getline(names, name);)
    EXPECT_TRUE(name.starts_with("tessera_") || name.find("7tessera") != std::string::npos) << name;
}

TEST_F(Install, PythonHasTheSame) {
  if (run("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'").status != 0)
    GTEST_SKIP() << "no Python";
  const std::string script = folder_->write("story.py", R"(import sys, threading
import tessera
model = tessera.load(sys.argv[1])
completion = model.generate("Once", max_new_tokens=64, temperature=0)
print("".join(completion))
assert completion.finish_reason in ("stop", "length"), completion.finish_reason
ids = model.tokenize("Once")
assert ids == [79, 110, 99, 101], ids
assert model.detokenize(ids) == "Once"
logits = model.logits(ids)
assert logits.shape == (4, 256) and len(logits[3]) == 256
assert max(range(256), key=lambda i: logits[3][i]) == completion.token_ids[0]
assert model.embed(["a", "b"], pooling="mean").shape == (2, 32)
assert tessera.plan(model.spec, context=64)["parameters"] > 0
# an iterator that is left early ends the answer, and the model goes on
for piece in model.generate("Once", max_new_tokens=100000, temperature=0):
    break
twice = model.generate("Once", max_new_tokens=4)
"".join(twice)
assert list(twice) == []
for call in (lambda: model.tokenize("a\0b"), lambda: model.detokenize([2**64 + 97]), lambda: tessera.set_threads(-5),
             lambda: model.generate("Once", temperature=float("nan")).text):
    try:
        call()
    except tessera.Error:
        pass
    else:
        raise SystemExit("no error")
# an answer that still runs when the program ends
left = model.generate("Once", max_new_tokens=10**7)
try:
    model.generate("Once", tempratur=1).text
except tessera.Error as error:
    assert "temperature" in str(error) and error.code == "usage", error
else:
    raise SystemExit("no error")
)");
  const Ran ran = run("PYTHONPATH='" TESSERA_SOURCE_DIR "/python' TESSERA_LIBRARY=$(find '" +
                      prefix_ + "' -name libtessera.so) python3 '" + script + "' '" + model_ + "'");
  EXPECT_EQ(ran.status, 0) << ran.out;
  EXPECT_EQ(ran.out, expected_);
}

TEST_F(Install, APluginGetsFromNewToATrainedModel) {
  const auto start = std::chrono::steady_clock::now();
  const std::string plugin = made("mixer", "my_mean");
  const std::string folder = folder_of("my_mean").string();
  const std::string with = " --plugin '" + plugin + "'";
  // a run of 300 steps on Shakespeare; its loss of bytes begins at ln 256 = 5.5
  const Ran trained =
      run(tessera("train '" + folder + "/recipe.json' --out '" + folder + "/run'" + with));
  ASSERT_EQ(trained.status, 0) << trained.out;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 300);
  std::smatch loss;
  ASSERT_TRUE(std::regex_search(trained.out, loss, std::regex("300/300 .* valid ([0-9.]+)")))
      << trained.out;
  EXPECT_LT(std::stod(loss[1]), 2.3);
  // every verb that reads specs knows it, by option or environment
  const std::string spec = "'" + folder + "/spec.json'", text = "'" + folder + "/shakespeare.txt'";
  const std::pair<std::string, std::string> verbs[] = {
      {"list", "mixer         my_mean "},
      {"plan " + spec, "228 k"},
      {"show " + spec + " --resolved", "\"chunk\": 64"},
      {"generate '" + folder + "/run' ROMEO: -n 8 --temperature 0", "ROMEO:"},
      {"eval '" + folder + "/run' --text " + text + " --max-tokens 2000", "perplexity"},
      {"docs --out '" + folder + "/docs'", "mixer.md"},
      {"verify '" + folder + "/run' --tokens 32", "holds"}};
  for (const auto& [verb, part] : verbs) {
    const Ran ran = run(tessera(verb + with));
    EXPECT_EQ(ran.status, 0) << verb << "\n" << ran.out;
    EXPECT_NE(ran.out.find(part), std::string::npos) << verb << "\n" << ran.out;
  }
  EXPECT_NE(run("TESSERA_PLUGINS='" + plugin + "' " + tessera("plan " + spec)).out.find("228 k"),
            std::string::npos);
  EXPECT_NE(bytes_of(folder + "/docs/mechanisms/mixer.md").find("## my_mean"), std::string::npos);
  EXPECT_NE(bytes_of(folder + "/docs/spec.schema.json").find("my_mean"), std::string::npos);
  expect_refused("plan " + spec, 2, "of a plugin: --plugin FILE.so or TESSERA_PLUGINS");
}

TEST_F(Install, PluginsAreTestedByTheContractSuite) {
  for (const auto& [slot, name] : {std::pair{"mixer", "my_mean"}, std::pair{"ffn", "my_square"},
                                   std::pair{"norm", "my_norm"}}) {
    const std::string plugin = made(slot, name);
    const Ran ran =
        run(tessera(std::string("verify --mechanism ") + name + " --plugin '" + plugin + "'"));
    EXPECT_EQ(ran.status, 0) << ran.out;
    EXPECT_NE(ran.out.find("20 of 20 checks hold"), std::string::npos) << ran.out;
  }
  // a mixer that forgets its state in the kernels alone
  ASSERT_EQ(
      run(tessera("new mixer forgetful --out '" + folder_of("forgetful").string() + "'")).status,
      0);
  const fs::path source = folder_of("forgetful") / "forgetful.cpp";
  std::string text = bytes_of(source);
  const std::string state = "(*rows)[i]->fixed_in_place(kH)";
  ASSERT_NE(text.find(state), std::string::npos);
  text.replace(text.find(state), state.size(), "at::zeros({config_.width}, a.options())");
  std::ofstream(source) << text;
  const Ran built = build("forgetful");
  ASSERT_EQ(built.status, 0) << built.out;
  const std::string plugin = (folder_of("forgetful") / "build/forgetful.so").string();
  const Ran ran = run(tessera("verify --mechanism forgetful --plugin '" + plugin + "'"));
  EXPECT_EQ(ran.status, 1) << ran.out;
  for (const char* check : {"same_bits", "state", "generate"})
    EXPECT_TRUE(std::regex_search(ran.out, std::regex(std::string(check) + " .*DOES NOT HOLD")))
        << check << "\n"
        << ran.out;
  EXPECT_TRUE(std::regex_search(ran.out, std::regex("gradients .* holds"))) << ran.out;
}

TEST_F(Install, PluginsOfAnotherBuildAreRefused) {
  const std::string plugin = made("norm", "my_norm");
  const std::string bytes = bytes_of(plugin), magic("tessera plugin\n", 16);
  const size_t record = bytes.find(magic);
  ASSERT_NE(record, std::string::npos);
  // fields of the record in nn/plugin.h: version, libtorch, compiler ABI, layout of the headers
  const std::tuple<size_t, std::string, const char*> others[] = {
      {16, std::string("9.9.9\0", 6), "built with tessera 9.9.9; expected "},
      {40, std::string("1.13.1\0", 7), "built with libtorch 1.13.1; expected "},
      {64, std::string("\1\0\0\0", 4), "built with compiler ABI 1; expected "},
      {68, std::string("\7\0\0\0", 4), "built with headers of tessera with layout 7; expected "}};
  for (const auto& [at, value, message] : others) {
    std::string other = bytes;
    other.replace(record + at, value.size(), value);
    const std::string file = folder_->write("other.so", other);
    expect_refused("list --plugin '" + file + "'", 1, "[plugin] " + file + ": " + message);
  }
  // a damaged list of segments, which the dynamic linker would follow
  std::string damaged = bytes;
  damaged.replace(64, 8, "AAAAAAAA");
  const std::string broken = folder_->write("damaged.so", damaged);
  expect_refused("list --plugin '" + broken + "'", 1,
                 "[plugin] " + broken + ": not a plugin of tessera; expected");
  // a patch release of libtorch is the same release
  std::string patched = bytes;
  patched[patched.find('\0', record + 40) - 1] = '9';
  const Ran listed = run(tessera("list --plugin '" + folder_->write("patched.so", patched) + "'"));
  EXPECT_NE(listed.out.find("my_norm"), std::string::npos) << listed.out;
  const std::string none = (folder_->path() / "none.so").string();
  expect_refused("list --plugin '" + none + "'", 1,
                 "[plugin] " + none + ": no such file; expected");
  const std::string library = run("find '" + prefix_ + "' -name libtessera.so").out;
  for (const std::string& file :
       {folder_->write("text.so", "no library"), folder_->write("empty.so", ""),
        folder_->path().string(), library.substr(0, library.size() - 1)})
    expect_refused("list --plugin '" + file + "'", 1,
                   "[plugin] " + file + ": not a plugin of tessera; expected");
  // cut at any place, also after the record
  for (const size_t size : {size_t{20}, size_t{100}, record, record + 100, bytes.size() / 2}) {
    const std::string torn = folder_->write("torn.so", bytes.substr(0, size));
    expect_refused("list --plugin '" + torn + "'", 1, "[plugin] " + torn + ": not a plugin");
  }
  // a name that exists, in a file of another name
  fs::copy_file(plugin, folder_->path() / "copy.so");
  expect_refused(
      "list --plugin '" + plugin + "' --plugin '" + (folder_->path() / "copy.so").string() + "'", 1,
      "my_norm is registered twice");
  // twice the same file is once
  EXPECT_EQ(
      run("TESSERA_PLUGINS='" + plugin + "::' " + tessera("list --plugin '" + plugin + "'")).status,
      0);
}

// The same files, by a program in C++ and one in C, and in Python: by a call and by the
// environment.
TEST_F(Install, ProgramsAndPythonLoadPlugins) {
  const std::string plugin = made("mixer", "my_mean"), norm = made("norm", "my_norm");
  const std::string folder = folder_of("my_mean").string(), model = folder + "/model";
  const Ran init = run(
      tessera("init '" + folder + "/spec.json' --out '" + model + "' --plugin '" + plugin + "'"));
  ASSERT_EQ(init.status, 0) << init.out;
  const Ran text =
      run(tessera("generate '" + model + "' Once -n 16 --temperature 0 --no-echo --plugin '" +
                  plugin + "' 2>/dev/null"));
  ASSERT_EQ(text.status, 0) << text.out;
  folder_->write("load.cpp", R"program(#include <iostream>
#include <tessera/tessera.h>
int main(int argc, char** argv) {
  try {
    for (int i = 2; i < argc; ++i) tessera::load_plugin(argv[i]);
    const tessera::Model model(argv[1]);
    std::cout << model.generate("Once", R"({"max_new_tokens": 16, "temperature": 0})").text << "\n";
  } catch (const tessera::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
)program");
  folder_->write("load.c", R"(#include <stdio.h>
#include <tessera.h>
static int on_text(const char* text, int64_t bytes, void* user) {
  (void)user;
  return fwrite(text, 1, bytes, stdout) == (size_t)bytes;
}
int main(int argc, char** argv) {
  tessera_model* model;
  int i;
  for (i = 2; i < argc; ++i)
    if (tessera_load_plugin(argv[i]) != 0) return fprintf(stderr, "%s\n", tessera_error()), 1;
  model = tessera_load(argv[1], NULL);
  if (model == NULL) return fprintf(stderr, "%s\n", tessera_error()), 1;
  tessera_free(tessera_generate(model, "Once", "{\"max_new_tokens\": 16, \"temperature\": 0}", on_text, NULL));
  tessera_close(model);
  puts("");
  return 0;
}
)");
  folder_->write("load.py", R"(import sys
import tessera
try:
    for plugin in sys.argv[2:]:
        tessera.load_plugin(plugin)
    print(tessera.load(sys.argv[1]).generate("Once", max_new_tokens=16, temperature=0))
except tessera.Error as error:
    sys.exit(str(error))
)");
  const std::string at = folder_->path().string();
  const Ran built =
      run("PKG_CONFIG_PATH=$(dirname $(find '" + prefix_ +
          "' -name tessera.pc)) && export PKG_CONFIG_PATH && FLAGS=$(pkg-config --cflags "
          "--libs tessera) && cd '" +
          at + "' && c++ -std=c++17 load.cpp $FLAGS -o load_cpp && cc load.c $FLAGS -o load_c");
  ASSERT_EQ(built.status, 0) << built.out;
  const std::string library = "$(find '" + prefix_ + "' -name libtessera.so)";
  std::vector<std::string> programs = {
      "LD_LIBRARY_PATH=$(dirname " + library + ") '" + at + "/load_cpp'",
      "LD_LIBRARY_PATH=$(dirname " + library + ") '" + at + "/load_c'"};
  if (run("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'").status == 0)
    programs.push_back("PYTHONPATH='" TESSERA_SOURCE_DIR "/python' TESSERA_LIBRARY=" + library +
                       " python3 '" + at + "/load.py'");
  // a file of another version, made as PluginsOfAnotherBuildAreRefused does
  std::string bytes = bytes_of(norm);
  bytes.replace(bytes.find(std::string("tessera plugin\n", 16)) + 16, 6, std::string("9.9.9\0", 6));
  const std::string other = folder_->write("of_another_version.so", bytes);
  for (const std::string& program : programs) {
    SCOPED_TRACE(program);
    const std::string call = program + " '" + model + "'";
    const Ran by_call = run(call + " '" + norm + "' '" + plugin + "' '" + plugin + "'");
    EXPECT_EQ(by_call.status, 0) << by_call.out;
    EXPECT_EQ(by_call.out, text.out);
    const Ran by_environment = run("export TESSERA_PLUGINS='" + norm + ":" + plugin + "'; " + call);
    EXPECT_EQ(by_environment.out, text.out);
    // one line, the same as the command's
    const std::pair<std::string, std::string> refused[] = {
        {call, "of a plugin: --plugin FILE.so or TESSERA_PLUGINS"},
        {call + " '" + other + "'", "[plugin] " + other + ": built with tessera 9.9.9; expected "},
        {call + " '" + at + "/none.so'", "[plugin] " + at + "/none.so: no such file; expected "},
        {call + " '" + at + "/load.c'", "[plugin] " + at + "/load.c: not a plugin of tessera; "},
        {"export TESSERA_PLUGINS='" + at + "/none.so'; " + call, "/none.so: no such file"}};
    for (const auto& [command, part] : refused) {
      const Ran ran = run(command);
      EXPECT_EQ(ran.status, 1) << command << "\n" << ran.out;
      EXPECT_NE(ran.out.find(part), std::string::npos) << ran.out;
      EXPECT_EQ(ran.out.find('\n'), ran.out.size() - 1) << ran.out;
    }
  }
}

TEST_F(Install, NewAndVerifyRefuseNames) {
  expect_refused("new router my_router", 2,
                 "no template for slot \"router\"; expected one of: ffn, mixer, norm");
  expect_refused("new mixer attention", 2, "mixer \"attention\" exists");
  for (const char* name : {"My_mixer", "2d", "a-b", "../a", "_a"})
    expect_refused(std::string("new mixer ") + name, 2, "is not a name for specs");
  folder_->write("full/file", "x");
  expect_refused("new mixer full_one --out '" + (folder_->path() / "full").string() + "'", 2,
                 "--force");
  expect_refused("verify", 2, "neither a model nor --mechanism");
  expect_refused("verify --mechanism mamba_2", 2, "did you mean \"mamba2\"?");
}

// the wheel next to a torch, as pip lays them
// scripts/try_deb.sh installs it in a fresh Debian
TEST_F(Install, ADebianPackageBringsItsLibtorch) {
  if (run("command -v dpkg-deb dpkg-shlibdeps patchelf").status != 0)
    GTEST_SKIP() << "no dpkg-dev or patchelf (scripts/setup.sh package)";
  const std::string root = (folder_->path() / "root").string(),
                    out = (folder_->path() / "deb").string();
  const Ran made = run("TESSERA_DEB_LEVEL=1 '" TESSERA_SOURCE_DIR
                       "/scripts/package_deb.sh' '" TESSERA_BINARY_DIR "' '" +
                       out + "' && dpkg-deb -x '" + out + "'/tessera_*.deb '" + root + "'");
  ASSERT_EQ(made.status, 0) << made.out;
  // every library is one of the package's own, or of Debian
  const Ran linked = run("env -u LD_LIBRARY_PATH ldd '" + root +
                         "/usr/bin/tessera-tensors' | sed -n "
                         "'s/.* => \\([^ ]*\\).*/\\1/p' | xargs -n 1 readlink -f | grep -v -e '^" +
                         root + "/usr/lib/tessera/' -e '^/usr/lib/' -e '^/lib/'");
  EXPECT_EQ(linked.out, "");
  const Ran text = run("env -i '" + root + "/usr/bin/tessera' generate '" + model_ +
                       "' Once -n 64 --temperature 0 --no-echo 2>/dev/null");
  EXPECT_EQ(text.out, expected_);
  const Ran fields = run("dpkg-deb -f '" + out + "'/tessera_*.deb Depends Architecture");
  EXPECT_NE(fields.out.find("libsimdjson"), std::string::npos) << fields.out;
  const Ran parts =
      run("python3 -c 'import json, sys; bom = json.load(open(sys.argv[1])); "
          "print(bom[\"bomFormat\"], *[c[\"name\"] for c in bom[\"components\"]])' '" +
          root + "/usr/share/doc/tessera/sbom.cdx.json'");
  EXPECT_EQ(parts.out.rfind("CycloneDX libtorch fmt ", 0), 0u) << parts.out;
}

TEST_F(Install, AWheelHasTheCommandAndTheModule) {
  const char* const python = std::getenv("TESSERA_PACKAGE_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "TESSERA_PACKAGE_PYTHON is not set (scripts/setup.sh package)";
  const std::string site = (folder_->path() / "site").string();
  const Ran made = run("'" TESSERA_SOURCE_DIR "/scripts/package.sh' '" TESSERA_BINARY_DIR "' '" +
                       std::string(python) + "' '" + site + "' && python3 -m zipfile -e '" + site +
                       "'/tessera-*.whl '" + site + "' && chmod +x '" + site +
                       "'/tessera/bin/* && ln -s '" TESSERA_TORCH_FOLDER "' '" + site + "/torch'");
  ASSERT_EQ(made.status, 0) << made.out;
  const Ran text =
      run("cd / && PYTHONPATH='" + site +
          "' python3 -c 'import sys, tessera; print(tessera.load(sys.argv[1]).generate("
          "\"Once\", max_new_tokens=64, temperature=0))' '" +
          model_ + "'");
  EXPECT_EQ(text.out, expected_);
  const Ran command =
      run("cd / && PYTHONPATH='" + site +
          "' python3 -c 'import sys; from tessera.command import main; main()' generate '" +
          model_ + "' Once -n 64 --temperature 0 --no-echo 2>/dev/null");
  EXPECT_EQ(command.out, expected_);
  for (const char* file : {"bin/tessera-tensors", "lib/libtessera.so"}) {
    const Ran dynamic = run("readelf -d '" + site + "/tessera/" + file + "'");
    EXPECT_NE(dynamic.out.find("$ORIGIN/../../torch/lib]"), std::string::npos) << dynamic.out;
    // every library is torch's, the wheel's own, or on every Linux
    const Ran others =
        run("env -u LD_LIBRARY_PATH ldd '" + site + "/tessera/" + file +
            "' | sed -nE 's/.* => (\\/[^ ]*) .*/\\1/p' | grep -v -e \"^" + site +
            "/\" -e /nvidia/ -e \"^$(readlink -f '" + site +
            "/torch')/\" | xargs -n 1 basename | grep -v -E "
            "'^(libc|libm|libdl|librt|libpthread|libutil|libstdc\\+\\+|libgcc_s|libgomp)\\.so'");
    EXPECT_EQ(others.out, "");
  }
  // a plugin, from `tessera new` of the wheel to a plan and a step of training in Python
  const std::string python_path = "cd / && export PYTHONPATH='" + site + "'; ",
                    wheel_command = "python3 -c 'from tessera.command import main; main()' ",
                    folder = folder_of("of_wheel").string();
  const Ran written =
      run(python_path + wheel_command + "new mixer of_wheel --out '" + folder + "'");
  ASSERT_EQ(written.status, 0) << written.out;
  const std::string prefix =
      run(python_path + "python3 -c 'import tessera; print(tessera.cmake_prefix(), end=\"\")'").out;
  EXPECT_EQ(prefix, site + "/tessera");
  EXPECT_NE(written.out.find("-DCMAKE_PREFIX_PATH=" + prefix), std::string::npos) << written.out;
  const Ran built = run("cd '" + folder + "' && cmake -B build -DCMAKE_PREFIX_PATH='" + prefix +
                        "' && cmake --build build");
  ASSERT_EQ(built.status, 0) << built.out;
  EXPECT_EQ(built.out.find("warning"), std::string::npos) << built.out;
  const std::string script = folder_->write("of_wheel.py", R"(import sys
import tessera
folder = sys.argv[1]
tessera.load_plugin(folder + "/build/of_wheel.so")
print(tessera.plan(folder + "/spec.json", context=64)["parameters"])
checkpoint = tessera.train(folder + "/recipe.json", folder + "/run", set=["train.steps=2"])
print(len(tessera.load(checkpoint).generate("ROMEO:", max_new_tokens=4, ignore_eos=True).token_ids))
)");
  const Ran trained = run(python_path + "python3 '" + script + "' '" + folder + "'");
  EXPECT_EQ(trained.status, 0) << trained.out;
  EXPECT_TRUE(trained.out.ends_with("\n4\n")) << trained.out;
}

// types for editors and checkers (py.typed): every function, method and property of the module
TEST(PythonModule, HasTypesAndDocumentation) {
  if (run("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'").status != 0)
    GTEST_SKIP() << "no Python";
  const tessera::test::TemporaryFolder folder;
  const std::string script = folder.write("types.py", R"PY(import ast, pathlib, re, sys
source = pathlib.Path(sys.argv[1])
page = (source / "docs/guide/library.md").read_text()
faults = []


def is_public(name):
    return not name.startswith("_")


def check(node, place, public, in_class):
    for item in node.body:
        if isinstance(item, ast.ClassDef):
            check(item, f"{place}.{item.name}", public and is_public(item.name), True)
        if not isinstance(item, (ast.ClassDef, ast.FunctionDef)):
            continue
        name = f"{place}.{item.name}"
        if public and is_public(item.name) and not ast.get_docstring(item):
            faults.append(f"{name}: no docstring")
        if isinstance(item, ast.FunctionDef):
            given = item.args.posonlyargs + item.args.args + item.args.kwonlyargs
            given = given[1:] if in_class and not any(getattr(d, "id", "") == "staticmethod" for d in item.decorator_list) else given
            given += [a for a in (item.args.vararg, item.args.kwarg) if a]
            missing = [a.arg for a in given if a.annotation is None]
            if missing or (item.returns is None and item.name != "__init__"):
                faults.append(f"{name}: no type of {missing or 'the result'}")


package = source / "python/tessera"
assert (package / "py.typed").exists()
for path in sorted(package.glob("*.py")):
    tree = ast.parse(path.read_text())
    check(tree, path.stem, path.stem in ("__init__", "nn"), False)
    exported = [ast.literal_eval(item.value) for item in tree.body
                if isinstance(item, ast.Assign) and getattr(item.targets[0], "id", "") == "__all__"]
    defined = {item.name for item in tree.body if isinstance(item, (ast.FunctionDef, ast.ClassDef))}
    for name in exported[0] if exported else []:
        if name not in defined and name != "Drawing":
            faults.append(f"{path.stem}: {name} is exported and not defined")
        if not re.search(rf"`[^`]*\b{name}\b", page) and f".{name}(" not in page:
            faults.append(f"{path.stem}: {name} is not in docs/guide/library.md")
    public = {name for name in defined if is_public(name)}
    if exported and public - set(exported[0]):
        faults.append(f"{path.stem}: {public - set(exported[0])} not exported")
print("\n".join(faults), end="")
)PY");
  const Ran ran = run("python3 '" + script + "' '" TESSERA_SOURCE_DIR "'");
  EXPECT_EQ(ran.status, 0) << ran.out;
  EXPECT_EQ(ran.out, "");
}

}  // namespace
