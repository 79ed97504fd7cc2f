// Names: what computes one thing is found by one name in nn/mixer, ops and kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace tessera::house_test {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = fs::path(TESSERA_SOURCE_DIR) / "src/tessera";

/// The kinds of mathematics: folders of kernels, ops and nn/mixer.
const std::set<std::string> kKinds{"attention", "linear",  "scan", "convolution",
                                   "transform", "weights", "basic"};
/// What else may lie there.
const std::set<std::string> kBesides{"library"};  // of ops: their registration with torch

const std::vector<std::string> kLayers{"kernels", "ops", "nn/mixer"};

TEST(House, FoldersOfTheLayersAreKinds) {
  std::set<std::string> met;
  for (const std::string& layer : kLayers)
    for (const auto& entry : fs::directory_iterator(kSource / layer)) {
      if (!entry.is_directory()) continue;
      const std::string kind = entry.path().filename();
      met.insert(kind);
      EXPECT_TRUE(kKinds.count(kind) || (layer == "ops" && kBesides.count(kind)))
          << layer << "/" << kind << " is no kind";
    }
  for (const std::string& kind : kKinds) EXPECT_TRUE(met.count(kind)) << kind << " is nowhere";
}

/// Name of a source without its extension and the suffixes that say what of a mechanism it holds.
std::string stem_of(const fs::path& path) {
  static const std::regex suffix("_(decls|decl|test|plain_test|testing|inl)$");
  return std::regex_replace(path.stem().string(), suffix, "");
}

TEST(House, OneNameLiesInOneKind) {
  std::map<std::string, std::set<std::string>> kinds, layers;
  for (const std::string& layer : kLayers)
    for (const auto& entry : fs::recursive_directory_iterator(kSource / layer)) {
      const fs::path path = fs::relative(entry.path(), kSource / layer);
      if (!entry.is_regular_file() || path.filename() == "CMakeLists.txt") continue;
      if (path.has_parent_path() && kBesides.count(path.begin()->string())) continue;
      const std::string kind = path.has_parent_path() ? path.begin()->string() : "";
      kinds[stem_of(path)].insert(kind);
      layers[stem_of(path)].insert(layer);
    }
  int shared = 0;
  for (const auto& [stem, where] : kinds) {
    shared += layers[stem].size() > 1 ? 1 : 0;
    std::string all;
    for (const std::string& kind : where) all += " " + kind;
    EXPECT_EQ(where.size(), 1u) << stem << " lies in" << all;
  }
  EXPECT_GT(shared, 15) << "names that two layers share";
}

/// Every mixer's kernel or op carries the mixer's name, or the one of what it shares with others.
TEST(House, OpsAndKernelsAgreeOnNames) {
  const auto headers = [](const std::string& layer) {
    std::set<std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(kSource / layer))
      if (entry.path().extension() == ".h")
        out.insert(fs::relative(entry.path(), kSource / layer).replace_extension().string());
    return out;
  };
  const std::set<std::string> ops = headers("ops");
  // parts of kernels that no op calls by their name, with the op or kernel that they serve
  const std::map<std::string, std::string> serves{
      {"attention/attention_tiles", "attention/attention"},
      {"attention/balanced", "attention/listed_attention"},
      {"attention/flash_tiles", "attention/flash_attention"},
      {"attention/visibility", "attention/attention"},
      {"basic/rowwise", "basic/fused"},
      {"linear/linear_recurrence_backward", "linear/linear_recurrence"},
      {"scan/cauchy", "scan/lti_scan"},
      {"weights/bf16_rows", "weights/product_input"},
      {"weights/block_codes", "weights/weight"},
      {"weights/blocks", "weights/weight"},
      {"weights/codebooks", "weights/weight"},
      {"weights/digit_tiles", "weights/product_input"},
      {"weights/digits", "weights/product_input"},
      {"weights/error_feedback", "weights/input_products"},
      {"weights/gemm", "weights/product"},
      {"weights/matmul", "weights/weight"},
      {"weights/quantize", "weights/weight"},
      {"weights/quantize_search", "weights/weight"},
      {"weights/ternary", "weights/quantized_operands"},
  };
  for (const std::string& kernel : headers("kernels")) {
    if (kernel.find('/') == std::string::npos || kernel.ends_with("_inl") ||
        kernel.ends_with("_testing"))
      continue;
    const auto served = serves.find(kernel);
    if (served == serves.end()) {
      EXPECT_TRUE(ops.count(kernel)) << "kernels/" << kernel << ".h has no op of its name";
    } else {
      EXPECT_FALSE(ops.count(kernel)) << kernel << " has its op: drop it from the list";
      EXPECT_TRUE(ops.count(served->second)) << served->second;
    }
  }
}

TEST(House, DeclarationsStandBesideTheirHeader) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "nn")) {
    const fs::path path = entry.path();
    if (!path.stem().string().ends_with("_decls")) continue;
    ++files;
    const fs::path header = path.parent_path() / (stem_of(path) + ".h");
    EXPECT_TRUE(fs::exists(header)) << path << " has no header " << header.filename();
    // and declares nothing of another mechanism
    std::ifstream file(path), wanted(header);
    const std::string text((std::istreambuf_iterator<char>(file)), {}),
        head((std::istreambuf_iterator<char>(wanted)), {});
    const std::regex member(R"((?:^|\n)[A-Za-z][^\n;={}]*?\b(\w+Config)::\w+\()");
    for (std::sregex_iterator m(text.begin(), text.end(), member), end; m != end; ++m)
      EXPECT_NE(head.find("struct " + (*m)[1].str()), std::string::npos)
          << path << " defines a function of " << (*m)[1];
  }
  EXPECT_GT(files, 40);
}

TEST(House, EveryMechanismHasOneHeader) {
  const std::regex line("TESSERA_MECHANISM\\(([a-z_]+), ([a-z0-9_]+), (\\w+)\\)");
  std::ifstream file(kSource / "nn/mechanisms.def");
  int mechanisms = 0;
  std::smatch match;
  for (std::string text; std::getline(file, text);) {
    if (!std::regex_match(text, match, line)) continue;
    ++mechanisms;
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(kSource / "nn" / match[1].str()))
      if (entry.path().filename() == match[2].str() + ".h") found.push_back(entry.path());
    ASSERT_EQ(found.size(), 1u) << match[1] << " " << match[2];
    std::ifstream header(found[0]);
    const std::string head((std::istreambuf_iterator<char>(header)), {});
    EXPECT_NE(head.find("struct " + match[3].str() + "Config"), std::string::npos)
        << found[0] << " does not hold " << match[3] << "Config";
  }
  EXPECT_GT(mechanisms, 50);
}

/// The folders that the tree in ARCHITECTURE.md shows, relative to src/tessera.
std::set<std::string> folders_of_the_page() {
  std::set<std::string> out;
  std::ifstream file(fs::path(TESSERA_SOURCE_DIR) / "ARCHITECTURE.md");
  const std::regex names(R"(([a-z_]+)/)");
  std::vector<std::string> path;  // of the line above
  bool tree = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) tree = line == "```text";
    if (!tree || line.starts_with("```")) continue;
    const size_t depth = line.find_first_not_of(' ') / 2;
    if (depth > path.size()) return {};
    path.resize(depth);
    const std::string parent = [&] {
      std::string all;
      for (const std::string& folder : path) all += folder + "/";
      return all;
    }();
    // names stand before two spaces
    const std::string shown = line.substr(0, line.find("  ", 2 * depth));
    std::string last;
    for (std::sregex_iterator name(shown.begin(), shown.end(), names), end; name != end; ++name)
      out.insert(parent + (last = (*name)[1].str()));
    path.push_back(last);
  }
  return out;
}

TEST(House, ThePageShowsEveryRoom) {
  const std::set<std::string> shown = folders_of_the_page();
  EXPECT_GT(shown.size(), 50u);
  for (const std::string& folder : shown)
    EXPECT_TRUE(fs::is_directory(kSource / folder)) << folder << " of ARCHITECTURE.md";
  for (const auto& entry : fs::recursive_directory_iterator(kSource)) {
    if (!entry.is_directory()) continue;
    const std::string folder = fs::relative(entry.path(), kSource).string();
    // folders of kinds and of shared families
    const bool of_kind = kKinds.count(entry.path().filename()) > 0;
    if (of_kind || folder == "convert/families/shared") continue;
    EXPECT_TRUE(shown.count(folder)) << folder << " is not shown in ARCHITECTURE.md";
  }
}

/// Comments of sources and pages name files by their paths below src/tessera.
TEST(House, FilesThatTextNamesExist) {
  std::string layers;
  for (const auto& entry : fs::directory_iterator(kSource))
    if (entry.is_directory())
      layers += (layers.empty() ? "" : "|") + entry.path().filename().string();
  const std::regex path("(^|[^A-Za-z0-9_/.-])((" + layers + ")/[a-z0-9_/]+\\.(h|cpp|def))");
  const fs::path root = TESSERA_SOURCE_DIR;
  std::vector<fs::path> texts{root / "README.md", root / "ARCHITECTURE.md",
                              root / "CONTRIBUTING.md"};
  for (const fs::path& folder : {kSource, root / "docs/guide"})
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (const fs::path kind = entry.path().extension();
          kind == ".h" || kind == ".cpp" || kind == ".md" || kind == ".def")
        texts.push_back(entry.path());
  int named = 0;
  for (const fs::path& text : texts) {
    std::ifstream file(text);
    for (std::string line; std::getline(file, line);) {
      if (line.find('/') == std::string::npos || line.starts_with("#include")) continue;
      for (std::sregex_iterator m(line.begin(), line.end(), path), end; m != end; ++m, ++named)
        EXPECT_TRUE(fs::exists(kSource / (*m)[2].str())) << text << " names " << (*m)[2];
    }
  }
  EXPECT_GT(named, 100);
}

/// A source without its comments, literals and directives.
std::string bare_code(const std::string& text) {
  std::string out;
  const auto after = [&](const std::string& end, size_t from) {
    const size_t found = text.find(end, from);
    return found == std::string::npos ? text.size() : found + end.size();
  };
  const auto in_word = [&](size_t i) {
    return i < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_');
  };
  bool line_begins = true;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const bool separates = c == '\'' && i > 0 && in_word(i - 1) && in_word(i + 1);  // 1'000
    if (line_begins && c == '#') {
      while (i < text.size() && (text[i] != '\n' || text[i - 1] == '\\')) ++i;
    } else if (text.compare(i, 2, "//") == 0) {
      i = after("\n", i) - 1;
    } else if (text.compare(i, 2, "/*") == 0) {
      i = after("*/", i + 2);
    } else if (text.compare(i, 2, "R\"") == 0 && (i == 0 || !in_word(i - 1))) {
      const size_t open = std::min(text.find('(', i), text.size());
      i = after(")" + text.substr(i + 2, open - i - 2) + "\"", open);
    } else if ((c == '"' || c == '\'') && !separates) {
      for (++i; i < text.size() && text[i] != c; ++i) i += text[i] == '\\' ? 1 : 0;
      ++i;
    } else {
      line_begins = c == '\n' || (line_begins && c == ' ');
      out += c;
      ++i;
    }
  }
  return out;
}

/// Which form of an operation computes is the answer of one table (ops/form.h): no other code of
/// operations and layers compares devices.
TEST(House, FormsAreChosenByTheTable) {
  std::map<std::string, std::string> exceptions{
      {"ops/form.cpp", "the table"},
      {"ops/attention/attention_form.cpp", "attention's table"},
      {"ops/light_tensor.cpp", "which tensors libc10 alone can make"},
      {"ops/tensor.h", "products of 16-bit floats on a CPU are computed in float32"},
  };
  const std::regex chooses(R"(\b(is_cpu|use_kernels)\s*\()");
  std::set<std::string> met;
  for (const char* layer : {"ops", "nn", "model"})
    for (const auto& entry : fs::recursive_directory_iterator(kSource / layer)) {
      const fs::path path = entry.path();
      const std::string stem = path.stem();
      if (path.extension() != ".h" && path.extension() != ".cpp") continue;
      if (stem.ends_with("_test") || stem.ends_with("_testing")) continue;
      std::ifstream file(path);
      const std::string code = bare_code(std::string((std::istreambuf_iterator<char>(file)), {}));
      if (!std::regex_search(code, chooses)) continue;
      const std::string name = fs::relative(path, kSource).string();
      met.insert(name);
      EXPECT_TRUE(exceptions.count(name))
          << name << " compares devices; ask form_of or on_host of ops/form.h";
    }
  for (const auto& [name, why] : exceptions)
    EXPECT_TRUE(met.count(name)) << name << " (" << why << ") needs no exception";
}

/// The types that a source defines in namespaces that have names, with those names: what a linker
/// takes for one wherever it stands. Specialisations of templates and types in functions are left
/// out.
std::set<std::string> types_defined_in(const std::string& source) {
  static const std::regex word(R"([A-Za-z_][A-Za-z_0-9]*|::|\S)");
  const std::string code = bare_code(source);
  const std::vector<std::string> t(std::sregex_token_iterator(code.begin(), code.end(), word), {});
  const auto at = [&](size_t i) { return i < t.size() ? t[i] : std::string("{"); };
  const auto is_name = [](const std::string& one) {
    return one == "::" || std::isalpha(static_cast<unsigned char>(one[0])) != 0 || one[0] == '_';
  };
  std::set<std::string> out;
  std::vector<std::string> scopes;  // "" = one without a name, or no scope of names
  for (size_t i = 0; i < t.size(); ++i) {
    if (t[i] == "}" && !scopes.empty()) scopes.pop_back();
    if (t[i] == "{") scopes.emplace_back();
    const bool space = t[i] == "namespace",
               type = (t[i] == "struct" || t[i] == "class" || t[i] == "union" || t[i] == "enum") &&
                      (i == 0 || (t[i - 1] != "<" && t[i - 1] != "," && t[i - 1] != "friend" &&
                                  t[i - 1] != "enum"));
    if (!space && !type) continue;
    size_t next = i + 1;
    if (type && (at(next) == "class" || at(next) == "struct")) ++next;
    if (at(next) == "alignas")
      next = std::find(t.begin() + static_cast<long>(next), t.end(), ")") - t.begin() + 1;
    std::string name;
    for (; is_name(at(next)); ++next)
      if (at(next) != "final") name += at(next);
    const bool special = at(next) == "<";
    int nested = 0;
    for (; nested > 0 || (at(next) != "{" && at(next) != ";" && at(next) != "(" &&
                          at(next) != "=" && at(next) != ")" && at(next) != ">");
         ++next)
      nested += at(next) == "<" ? 1 : at(next) == ">" ? -1 : 0;
    if (at(next) != "{") continue;
    std::string whole;
    for (const std::string& scope : scopes) whole += scope + "::";
    const bool named = std::find(scopes.begin(), scopes.end(), "") == scopes.end();
    if (type && named && !special && !name.empty()) out.insert(whole + name);
    // types within a type are its own
    scopes.push_back(special ? "" : name);
    i = next;
  }
  return out;
}

TEST(House, TypesAreDefinedOnce) {
  EXPECT_EQ(types_defined_in(R"cpp(// struct No {
                                   namespace a::b {
                                   struct A : B<C> {
                                     enum class D { e };
                                   };
                                   template <class T>
                                   class E final {};
                                   struct F;
                                   union G {
                                     int x;
                                   };
                                   template <>
                                   struct E<int> {};
                                   void f(struct H* h) {
                                     struct I {};
                                   }
                                   namespace {
                                   struct J {};
                                   }  // namespace
                                   const char* k = "struct K {";
                                   }  // namespace a::b
                                   struct alignas(64) L {};)cpp"),
            (std::set<std::string>{"a::b::A", "a::b::A::D", "a::b::E", "a::b::G", "L"}));
  std::map<std::string, std::set<std::string>> files;
  for (const auto& entry : fs::recursive_directory_iterator(kSource)) {
    const fs::path path = entry.path();
    if (path.extension() != ".h" && path.extension() != ".cpp") continue;
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (const std::string& type : types_defined_in(text))
      files[type].insert(fs::relative(path, kSource).string());
  }
  EXPECT_GT(files.size(), 1200u);
  for (const auto& [type, where] : files) {
    std::string all;
    for (const std::string& file : where) all += " " + file;
    EXPECT_EQ(where.size(), 1u) << type << " is defined in" << all
                                << ", and is one type to the linker; give each a name of its own";
  }
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_code(const fs::path& path) {
  return (path.extension() == ".h" || path.extension() == ".cpp") &&
         path.stem().string().find("_test") == std::string::npos;
}

// without them a product is in float32, reads its inputs exactly and drops nothing, and no error
// says so
TEST(House, ProductsOfPartsGetTheSettingsOfTheirCall) {
  const std::regex of_parts("ops::(linear|grouped_linear|head_linear|rows)\\("),
      elsewhere("ops::(linear|grouped_linear|head_linear)\\("),
      settings("products|exact|of_experts");
  const std::set<std::string> without{"native_sparse_attention.cpp"};  // scores without gradients
  int calls = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource)) {
    const std::string layer = fs::relative(entry.path(), kSource).begin()->string();
    if (!is_code(entry.path()) || without.count(entry.path().filename()) || layer == "ops")
      continue;
    const std::regex& product = layer == "nn" ? of_parts : elsewhere;
    const std::string code = bare_code(text_of(entry.path()));
    for (std::sregex_iterator m(code.begin(), code.end(), product), end; m != end; ++m, ++calls) {
      const auto begin = static_cast<size_t>(m->position());
      size_t i = begin + static_cast<size_t>(m->length());
      for (int open = 1; open > 0 && i < code.size(); ++i)
        open += code[i] == '(' ? 1 : code[i] == ')' ? -1 : 0;
      const std::string call = code.substr(begin, i - begin);
      EXPECT_TRUE(std::regex_search(call, settings))
          << entry.path() << ": " << call << "; expected the products of the context";
    }
  }
  EXPECT_GT(calls, 30);
}

// how products read their inputs (ProductSettings::arithmetic) is a matter of the call: a context
// that a part makes from nothing would multiply quantized weights in another way
TEST(House, ContextsOfPartsHaveTheProductsOfTheirCall) {
  const std::regex made("\\bContext (\\w+);");
  int contexts = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "nn")) {
    if (!is_code(entry.path())) continue;
    fs::path body = entry.path();
    const std::string code = bare_code(text_of(entry.path())),
                      all = code + bare_code(text_of(body.replace_extension(".cpp")));
    for (std::sregex_iterator m(code.begin(), code.end(), made), end; m != end; ++m, ++contexts) {
      const std::string name = (*m)[1];
      EXPECT_TRUE(all.find(name + ".products = context.products") != std::string::npos ||
                  all.find(name + " = context;") != std::string::npos)
          << entry.path() << ": " << name << "; expected the products of the context";
    }
  }
  EXPECT_GT(contexts, 1);
}

TEST(House, ThreadLocalsAreNoArguments) {
  const std::set<std::string> own{"kernels/scratch.h",
                                  "kernels/attention/attention.cpp",
                                  "kernels/attention/scattered_attention.cpp",
                                  "ops/attention/indexer.cpp",
                                  "ops/scan/log_linear.cpp",
                                  "text/tokenizer/regex.cpp",  // scratch
                                  "ops/basic/ordered_part.h",
                                  "analysis/contract/order_watch.cpp",  // observers of tests
                                  "api/c.cpp"};                         // the last error
  std::set<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(kSource))
    if (is_code(entry.path()) &&
        bare_code(text_of(entry.path())).find("thread_local") != std::string::npos)
      found.insert(fs::relative(entry.path(), kSource).string());
  EXPECT_EQ(found, own);
}

}  // namespace
}  // namespace tessera::house_test
