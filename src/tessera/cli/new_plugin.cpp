#include <algorithm>
#include <cctype>
#include <filesystem>

#include <fmt/ranges.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/out_place.h"
#include "tessera/cli/plugin_sources.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/mechanism.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct NewPluginArgs {
  std::string slot, name, out;
  bool force = false;
};

/// The name of the mechanism in the sources of examples/plugins/SLOT: that of their header.
std::string example_name(const std::string& slot) {
  for (const PluginSource& file : plugin_sources())
    if (file.slot == slot && file.name.ends_with(".h"))
      return std::string(file.name.substr(0, file.name.size() - 2));
  std::vector<std::string> known;
  for (const PluginSource& file : plugin_sources())
    if (file.name.ends_with(".h")) known.emplace_back(file.slot);
  fail(ErrorKind::usage, "new", "no template for slot \"{}\"; expected one of: {}", slot,
       fmt::join(known, ", "));
}

/// "fading_mean" as "FadingMean".
std::string type_name(const std::string& name) {
  std::string out;
  bool upper = true;
  for (const char c : name) {
    if (c != '_') out += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = c == '_';
  }
  return out;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

void check_name(const std::string& slot, const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || name[0] < 'a' || name[0] > 'z' ||
      !std::all_of(name.begin(), name.end(), allowed))
    fail(
        ErrorKind::usage, "new",
        "\"{}\" is not a name for specs; expected lower-case letters, digits and _, a letter first",
        name);
  nn::register_mechanisms();
  for (const spec::Mechanism& known : spec::mechanisms())
    if (spec::name_of(known.slot) == slot && known.name == name)
      fail(ErrorKind::usage, "new", "{} \"{}\" exists; expected a name that is free", slot, name);
}

/// The folder that tessera is installed in.
fs::path prefix() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path().parent_path();
}

/// The text that the recipe trains on, as it is installed; empty where it is not.
fs::path installed_text() {
  std::error_code error;
  const fs::path text = prefix() / "share/tessera/shakespeare.txt";
  return fs::exists(text, error) ? text : fs::path();
}

/// The command that builds what was written, or what it needs.
void print_build(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(prefix() / "include/tessera-plugin", error))
    fmt::print(stderr,
               "tessera: build: cd {} && cmake -B build -DCMAKE_PREFIX_PATH={} && cmake --build "
               "build\n",
               folder.string(), prefix().string());
  else
    fmt::print(stderr,
               "tessera: [new] the headers that plugins need are not installed in {}; expected "
               "those of `make install` or of the wheel\n",
               prefix().string());
}

int new_plugin(NewPluginArgs& o) {
  const std::string example = example_name(o.slot);
  check_name(o.slot, o.name);
  const fs::path folder = o.out.empty() ? fs::path(o.name) : fs::path(o.out);
  check_out_place("new", folder, o.force);
  create_folder(folder);
  const auto named = [&](std::string_view text) {
    return replaced(replaced(std::string(text), example, o.name), type_name(example),
                    type_name(o.name));
  };
  for (const PluginSource& file : plugin_sources()) {
    if (file.slot != o.slot) continue;
    const fs::path path = folder / named(file.name);
    write_file_atomically(path, named(file.text));
    fmt::print("{}\n", path.string());
  }
  if (const fs::path text = installed_text(); !text.empty()) {
    const fs::path path = folder / text.filename();
    write_file_atomically(path, read_text_file(text));
    fmt::print("{}\n", path.string());
  } else {
    fmt::print(stderr, "tessera: [new] no shakespeare.txt is installed; put a text for {} there\n",
               (folder / "recipe.json").string());
  }
  print_build(folder);
  return kExitOk;
}

}  // namespace

std::function<int()> add_new_plugin(CLI::App& app) {
  auto o = std::make_shared<NewPluginArgs>();
  group(app, "Plugin");
  app.add_option("slot", o->slot, "slot of the mechanism: mixer, ffn or norm")->required();
  app.add_option("name", o->name, "name of the mechanism in specs")->required();
  group(app, "Output");
  add_out(app, o->out, "folder to write; default: NAME");
  add_force(app, o->force);
  examples(app, {"tessera new mixer my_mixer", "tessera new ffn my_ffn --out plugins/my_ffn"});
  return [o] { return new_plugin(*o); };
}

}  // namespace tessera::cli
