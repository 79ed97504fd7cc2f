// The house: a layer includes only itself and the layers above it in cmake/layers.txt, plain layers
// and every header of a mechanism stay free of torch, and no model's name stands in the code.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;
const fs::path kSource = TESSERA_SOURCE_DIR;

struct Layer {
  int order = 0;
  bool torch = false;
};

std::map<std::string, Layer> read_layers() {
  std::map<std::string, Layer> layers;
  std::ifstream file(kSource / "cmake/layers.txt");
  int order = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, kind;
    if (line.empty() || line[0] == '#' || !(words >> name >> kind) ||
        (kind != "plain" && kind != "torch"))
      continue;
    layers[name] = {order++, kind == "torch"};
  }
  return layers;
}

struct Include {
  fs::path file;
  std::string layer, target;
};

std::vector<Include> read_includes() {
  static std::vector<Include> includes;
  if (!includes.empty()) return includes;
  const std::regex pattern(R"(^\s*#include\s*[<"]([^>"]+)[>"])");
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "src/tessera")) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp") continue;
    const std::string layer = fs::relative(entry.path(), kSource / "src/tessera").begin()->string();
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);)
      if (std::smatch match; std::regex_search(line, match, pattern))
        includes.push_back({entry.path(), layer, match[1]});
  }
  return includes;
}

TEST(Layers, IncludeOnlyWhatStandsAbove) {
  const auto layers = read_layers();
  ASSERT_GE(layers.size(), 10u);
  const auto includes = read_includes();
  ASSERT_GT(includes.size(), 100u);
  for (const Include& include : includes) {
    ASSERT_TRUE(layers.count(include.layer))
        << include.file << " lies in no layer of cmake/layers.txt";
    if (include.target.rfind("tessera/", 0) != 0) continue;
    const std::string target = include.target.substr(8, include.target.find('/', 8) - 8);
    ASSERT_TRUE(layers.count(target)) << include.file << " includes " << include.target;
    EXPECT_LE(layers.at(target).order, layers.at(include.layer).order)
        << include.file << " (" << include.layer << ") includes " << include.target
        << " of a layer below it";
  }
}

bool is_torch(const std::string& header) {
  return header.rfind("torch/", 0) == 0 || header.rfind("ATen/", 0) == 0 ||
         header.rfind("c10/", 0) == 0 || header == "tessera/ops/tensor.h";
}

/// The headers that mechanisms.def names, and what they include from nn.
std::set<fs::path> mechanism_headers(const std::vector<Include>& includes) {
  std::set<fs::path> headers;
  const std::regex line("TESSERA_MECHANISM\\(([a-z_]+), ([a-z0-9_]+),.*");
  std::ifstream file(kSource / "src/tessera/nn/mechanisms.def");
  std::smatch match;
  for (std::string text; std::getline(file, text);)
    if (std::regex_match(text, match, line))
      for (const auto& entry :
           fs::recursive_directory_iterator(kSource / "src/tessera/nn" / match[1].str()))
        if (entry.path().filename() == match[2].str() + ".h") headers.insert(entry.path());
  for (size_t before = 0; before != headers.size();) {
    before = headers.size();
    for (const Include& include : includes)
      if (headers.count(include.file) && include.target.rfind("tessera/nn/", 0) == 0)
        headers.insert(kSource / "src" / include.target);
  }
  return headers;
}

TEST(Layers, PlainLayersAndMechanismHeadersAreFreeOfTorch) {
  const auto layers = read_layers();
  const auto includes = read_includes();
  const auto headers = mechanism_headers(includes);
  ASSERT_GT(headers.size(), 50u);
  for (const fs::path& header : headers) ASSERT_TRUE(fs::exists(header)) << header;
  for (const Include& include : includes) {
    const bool mechanism_header = headers.count(include.file) > 0;
    if (layers.at(include.layer).torch && !mechanism_header) continue;
    EXPECT_FALSE(is_torch(include.target)) << include.file << " includes " << include.target;
    if (mechanism_header) {
      EXPECT_NE(include.target.rfind("tessera/ops/", 0), 0u)
          << include.file << " includes " << include.target;
    }
  }
}

/// Whether a file includes a torch header, directly or through headers of the project.
class ReachesTorch {
 public:
  explicit ReachesTorch(const std::vector<Include>& includes) {
    for (const Include& include : includes) includes_[include.file].push_back(include.target);
  }
  bool operator()(const fs::path& file) {
    const auto [known, first] = known_.try_emplace(file, false);
    if (!first) return known->second;
    bool reaches = false;
    for (const std::string& target : includes_[file])
      reaches |= is_torch(target) ||
                 (target.rfind("tessera/", 0) == 0 && (*this)(kSource / "src" / target));
    return known_[file] = reaches;
  }

 private:
  std::map<fs::path, std::vector<std::string>> includes_;
  std::map<fs::path, bool> known_;
};

/// The sources of one kind of library ("plain", "tensors") by layer, as the build has them.
std::map<std::string, std::vector<fs::path>> sources_of_libraries(const std::string& kind) {
  std::map<std::string, std::vector<fs::path>> sources;
  for (const auto& [layer, properties] : read_layers()) {
    std::ifstream file(fs::path(TESSERA_BINARY_DIR) / "generated/sources" / (layer + "." + kind));
    EXPECT_TRUE(file) << layer << ": no list of its " << kind << " sources";
    for (std::string line; std::getline(file, line);)
      if (line.rfind(TESSERA_BINARY_DIR, 0) != 0) sources[layer].push_back(line);
  }
  return sources;
}

TEST(Layers, TensorLibrariesHaveTheSourcesThatReachTorchAndNoOthers) {
  ReachesTorch reaches_torch(read_includes());
  for (const auto& [layer, sources] : sources_of_libraries("plain"))
    for (const fs::path& source : sources)
      EXPECT_FALSE(reaches_torch(source))
          << source << " includes torch; expected its name under TENSORS in " << layer
          << "/CMakeLists.txt";
  size_t checked = 0;
  for (const auto& [layer, sources] : sources_of_libraries("tensors"))
    for (const fs::path& source : sources) {
      ++checked;
      EXPECT_TRUE(reaches_torch(source))
          << source << " is free of torch; expected it in the plain library of " << layer
          << " (drop it from TENSORS in CMakeLists.txt, or name it under PLAIN)";
    }
  EXPECT_GT(checked, 200u);
}

TEST(Layers, EverySourceIsInOneLibrary) {
  std::map<fs::path, int> times;
  for (const char* kind : {"plain", "tensors"})
    for (const auto& [layer, sources] : sources_of_libraries(kind))
      for (const fs::path& source : sources) ++times[source];
  // programs and test programs of their own, and a library that torch loads
  const auto stands_apart = [](const std::string& path) {
    for (const char* place :
         {"api/torch_classes.cpp", "cli/", "ops/library/", "serve/faults/", "serve/page/"})
      if (path.rfind(place, 0) == 0) return true;
    return false;
  };
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "src/tessera")) {
    if (entry.path().extension() != ".cpp") continue;
    if (stands_apart(fs::relative(entry.path(), kSource / "src/tessera").string())) continue;
    EXPECT_EQ(times[entry.path()], 1) << entry.path();
  }
  EXPECT_GT(times.size(), 500u);
}

/// Every string in a list called "types" of the family files.
std::set<std::string> model_types() {
  std::set<std::string> types;
  const std::regex lists("\"types\"\\s*:\\s*\\[([^\\]]*)\\]"), names("\"([^\"]+)\"");
  for (const auto& entry : fs::directory_iterator(kSource / "src/tessera/convert/families")) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (std::sregex_iterator list(text.begin(), text.end(), lists), end; list != end; ++list) {
      const std::string body = (*list)[1];
      for (std::sregex_iterator name(body.begin(), body.end(), names); name != end; ++name)
        types.insert((*name)[1]);
    }
  }
  return types;
}

TEST(Layers, NoModelTypeStandsInTheCode) {
  std::set<std::string> types = model_types();
  ASSERT_GE(types.size(), 12u);
  ASSERT_TRUE(types.count("llama"));
  // mechanisms of those names exist: nn/mixer/scan/mamba.h, mamba2.h, nn/mixer/linear/rwkv6.h,
  // rwkv7.h, delta_net.h, gla.h, hgrn2.h, kda.h, scan/hgrn.h, nn/position/t5.h, deberta.h,
  // nn/pattern/longformer.h, big_bird.h
  for (const char* mechanism : {"mamba", "mamba2", "rwkv6", "rwkv7", "delta_net", "gla", "hgrn",
                                "hgrn2", "kda", "t5", "deberta", "longformer", "big_bird"})
    types.erase(mechanism);
  // file formats: format/llama2c.h, ggmf.h
  types.erase("llama2c");
  types.erase("ggmf");
  // a schedule of slopes: nn/mixer/linear/lightning_attention.h
  types.erase("minimax");
  // an argument of Jinja's replace: text/jinja/jinja_library.cpp
  types.erase("new");
  // objectives by other programs' names: train/recipe/aliases.cpp
  types.erase("electra");
  types.erase("xlnet");
  // a method of quantization: convert/quantized_folder.cpp
  types.erase("bitnet");
  // a chat format: text/chat/chat_formats.cpp
  types.erase("gemma");
  const std::regex literal("\"((?:[^\"\\\\]|\\\\.)*)\"");
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "src/tessera")) {
    const std::string name = entry.path().filename();
    if (!(name.ends_with(".h") || name.ends_with(".cpp")) || name.ends_with("_test.cpp")) continue;
    ++files;
    std::ifstream file(entry.path());
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      for (std::sregex_iterator match(line.begin(), line.end(), literal), end; match != end;
           ++match)
        EXPECT_FALSE(types.count((*match)[1]))
            << entry.path() << ":" << number << " names the model type \"" << (*match)[1]
            << "\"; it belongs into a family file";
    }
  }
  EXPECT_GT(files, 100);
}

}  // namespace
