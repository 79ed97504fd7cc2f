#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/cli/cli.h"
#include "tessera/model/mechanism_pages.h"

namespace tessera::cli {

std::function<int()> add_docs(CLI::App& app) {
  auto out = std::make_shared<std::string>("docs");
  group(app, "Output");
  add_out(app, *out, "folder to write")->capture_default_str();
  examples(app, {"tessera docs --out docs"});
  return [out] {
    for (const auto& [path, content] : model::generated_pages()) {
      const auto file = std::filesystem::path(*out) / path;
      create_folder(file.parent_path());
      write_file_atomically(file, content);
      fmt::print("{}\n", file.string());
    }
    return kExitOk;
  };
}

}  // namespace tessera::cli
