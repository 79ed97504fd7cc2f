// Architectures as data, and the documents generated from the code: what stands in the tree is what
// the code says.
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/model/mechanism_pages.h"
#include "tessera/model/model_spec.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = TESSERA_SOURCE_DIR;

TEST(Zoo, ResolvesToItsGoldenDump) {
  int checked = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "zoo")) {
    if (entry.path().extension() != ".json") continue;
    fs::path golden = entry.path();
    golden.replace_extension(".resolved.txt");
    ASSERT_TRUE(fs::exists(golden))
        << "write it: tessera show " << entry.path() << " --resolved > " << golden;
    EXPECT_EQ(model::resolve(model::load_model_spec(entry.path())).dump(2) + "\n",
              read_text_file(golden))
        << entry.path() << ": a default moved, or the spec did";
    ++checked;
  }
  EXPECT_GE(checked, 15);
}

TEST(Docs, GeneratedPagesAreFresh) {
  for (const auto& [path, content] : model::generated_pages()) {
    ASSERT_TRUE(fs::exists(kSource / "docs" / path)) << path << ": run `tessera docs`";
    EXPECT_EQ(read_text_file(kSource / "docs" / path), content)
        << path << " is stale: run `tessera docs`";
  }
}

TEST(Docs, TableInTheReadmeIsFresh) {
  const std::string readme = read_text_file(kSource / "README.md");
  const std::string begin = "<!-- mechanisms -->\n", end = "<!-- /mechanisms -->";
  const size_t from = readme.find(begin), to = readme.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(readme.substr(from + begin.size(), to - from - begin.size()), model::mechanism_table())
      << "run `tessera docs`";
}

}  // namespace
}  // namespace tessera
