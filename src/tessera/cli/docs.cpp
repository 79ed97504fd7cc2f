#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/cli/cli.h"
#include "tessera/model/mechanism_pages.h"
#include "tessera/model/techniques.h"

namespace tessera::cli {

std::function<int()> add_docs(CLI::App& app) {
  auto out = std::make_shared<std::string>("docs");
  app.add_option("--out", *out, "where to write")->capture_default_str();
  examples(app, {"tessera docs --out docs"});
  return [out] {
    for (const auto& [path, content] : model::generated_pages()) {
      const auto file = std::filesystem::path(*out) / path;
      create_folder(file.parent_path());
      write_file_atomically(file, content);
      fmt::print("{}\n", file.string());
    }
    // the tables in the README beside docs/
    const auto readme_path = std::filesystem::absolute(*out).parent_path() / "README.md";
    if (std::filesystem::exists(readme_path)) {
      std::string readme = read_text_file(readme_path);
      bool found = false;
      for (const auto& [name, table] : {std::pair{"mechanisms", model::mechanism_table()},
                                        std::pair{"techniques", model::technique_table()}}) {
        const std::string begin = fmt::format("<!-- {} -->\n", name),
                          end = fmt::format("<!-- /{} -->", name);
        const size_t from = readme.find(begin), to = readme.find(end);
        if (from == std::string::npos || to == std::string::npos || to < from) continue;
        readme.replace(from + begin.size(), to - from - begin.size(), table);
        found = true;
      }
      if (found) {
        write_file_atomically(readme_path, readme);
        fmt::print("{}\n", readme_path.string());
      }
    }
    return kExitOk;
  };
}

}  // namespace tessera::cli
