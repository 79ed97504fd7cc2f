#include <algorithm>
#include <set>

#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/format/file_source.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/find_model.h"
#include "tessera/hub/gguf_files.h"
#include "tessera/hub/listing.h"
#include "tessera/model/model_spec.h"

namespace tessera::cli {
namespace {

struct ModelsArgs {
  std::string families;
  bool json = false;
};

/// One model of the cache by the name to type.
struct ModelRow {
  std::string name, path, commit;
  std::string type = "-", storage = "-";
  int64_t parameters = -1;  // -1 = unknown
  uint64_t bytes = 0;
  std::string why = {};  // it does not run; "" = it does
};

int64_t count_parameters(const model::ModelSpec& spec) {
  int64_t sum = 0;
  for (const auto& decl : model::parameters(spec)) sum += decl.elements();
  return sum;
}

/// A string of a config; "" where it holds none.
std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string()
             ? format::printable(found->get<std::string>(), 40)
             : "";
}

/// "bfloat16", "awq"
std::string storage_of(const Json& config) {
  if (const auto found = config.find("quantization_config");
      found != config.end() && found->is_object())
    if (const std::string method = text_in(*found, "quant_method"); !method.empty()) return method;
  for (const char* key : {"dtype", "torch_dtype"})
    if (const std::string type = text_in(config, key); !type.empty()) return type;
  return "-";
}

bool has_file(const std::vector<hub::SnapshotFile>& files, std::string_view path) {
  return std::any_of(files.begin(), files.end(),
                     [&](const hub::SnapshotFile& file) { return file.path == path; });
}

/// Fills in what the files of a folder say, or why it does not run.
void describe_folder(ModelRow& row,
                     const std::vector<hub::SnapshotFile>& files,
                     const convert::LoadOptions& loading) {
  const std::filesystem::path folder = row.path;
  if (has_file(files, "adapter_config.json")) {
    const Json config = spec::read_json_file(folder / "adapter_config.json");
    row.type = "adapter";
    row.storage = text_in(config, "peft_type");
    row.why = "an adapter; give it as --adapter, with its base model " +
              text_in(config, "base_model_name_or_path");
    return;
  }
  if (!has_file(files, "config.json")) {
    if (!has_file(files, "model.safetensors"))
      fail(ErrorKind::file, "model", "no config.json, model.safetensors or GGUF file");
    const convert::Checkpoint checkpoint = convert::load_checkpoint(folder, loading);
    row.type = "tessera";
    row.parameters = count_parameters(checkpoint.spec);
    return;
  }
  const Json config = spec::read_json_file(folder / "config.json");
  row.type = text_in(config, "model_type");
  row.storage = storage_of(config);
  row.parameters = count_parameters(convert::load_config(folder / "config.json", loading).spec);
  row.why = lacking_weights(folder);
}

void describe_gguf(ModelRow& row,
                   const hub::GgufModel& model,
                   const convert::LoadOptions& loading) {
  row.storage = model.quantization.empty() ? "gguf" : model.quantization;
  if (model.parts.size() != model.expected_parts)
    fail(ErrorKind::file, "model", "{} of {} parts are there", model.parts.size(),
         model.expected_parts);
  row.type = format::printable(
      format::open_gguf(row.path).metadata.get_string("general.architecture"), 40);
  row.parameters = count_parameters(convert::load_checkpoint(row.path, loading).spec);
}

template <class Describe>
ModelRow described(ModelRow row, Describe&& describe) {
  try {
    describe(row);
  } catch (const Error& error) {
    row.why = error.what();
  }
  return row;
}

std::vector<ModelRow> rows_of(const std::filesystem::path& cache,
                              const hub::CachedModel& model,
                              const hub::CachedRevision& revision,
                              const convert::LoadOptions& loading) {
  const bool is_main = std::find(revision.refs.begin(), revision.refs.end(), hub::kMainRevision) !=
                       revision.refs.end();
  hub::ModelName name{model.repo};
  if (!is_main)
    name.revision = revision.refs.empty() ? revision.commit.substr(0, 12) : revision.refs[0];
  ModelRow row{name.text(), revision.folder.string(), revision.commit};
  std::vector<hub::SnapshotFile> files;
  try {
    files = hub::snapshot_files(cache, revision.folder);
  } catch (const Error& error) {
    row.why = error.what();
    return {row};
  }
  std::vector<std::string> paths;
  for (const hub::SnapshotFile& file : files) paths.push_back(file.path);
  const std::vector<hub::GgufModel> ggufs = hub::gguf_models(paths);
  std::set<std::string> parts;
  for (const hub::GgufModel& gguf : ggufs) parts.insert(gguf.parts.begin(), gguf.parts.end());
  const auto sum = [&](auto&& counts) {
    uint64_t bytes = 0;
    for (const hub::SnapshotFile& file : files) bytes += counts(file.path) ? file.bytes : 0;
    return bytes;
  };
  std::vector<ModelRow> rows;
  const bool is_folder = std::any_of(paths.begin(), paths.end(), hub::makes_folder_a_model);
  if (is_folder || ggufs.empty()) {
    row.bytes = sum([&](const std::string& path) { return !parts.count(path); });
    rows.push_back(described(row, [&](ModelRow& of) { describe_folder(of, files, loading); }));
  }
  for (const hub::GgufModel& gguf : ggufs) {
    hub::ModelName chosen = name;
    if (ggufs.size() > 1 || is_folder) chosen.selection = gguf.choice();
    ModelRow one{chosen.text(), (revision.folder / gguf.parts[0]).string(), revision.commit};
    one.bytes = sum([&](const std::string& path) {
      return std::find(gguf.parts.begin(), gguf.parts.end(), path) != gguf.parts.end();
    });
    rows.push_back(described(one, [&](ModelRow& of) { describe_gguf(of, gguf, loading); }));
  }
  return rows;
}

std::string readable_count(int64_t count) {
  if (count < 0) return "-";
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  double value = static_cast<double>(count);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return fmt::format("{:.3g}{}", value, kUnits[unit]);
}

Json json_of(const ModelRow& row) {
  Json json = {{"name", row.name},   {"type", row.type},       {"parameters", nullptr},
               {"bytes", row.bytes}, {"storage", row.storage}, {"runs", row.why.empty()}};
  if (row.parameters >= 0) json["parameters"] = row.parameters;
  if (!row.why.empty()) json["why"] = row.why;
  json["commit"] = row.commit;
  json["path"] = row.path;
  return json;
}

int models(const ModelsArgs& o) {
  const auto cache = hub::cache_folder();
  const convert::LoadOptions loading{o.families};
  std::vector<ModelRow> rows;
  uint64_t bytes = 0;
  for (const hub::CachedModel& model : hub::cached_models(cache)) {
    bytes += model.bytes + model.incomplete_bytes;
    if (!model.damage.empty()) {  // and the others are listed
      ModelRow row{model.repo, model.folder.string(), ""};
      row.bytes = model.bytes + model.incomplete_bytes;
      row.why = model.damage;
      rows.push_back(row);
      continue;
    }
    for (const hub::CachedRevision& revision : model.revisions)
      for (ModelRow& row : rows_of(cache, model, revision, loading)) rows.push_back(std::move(row));
    if (model.revisions.empty()) {
      ModelRow row{model.repo, model.folder.string(), ""};
      row.bytes = model.bytes + model.incomplete_bytes;
      row.why = fmt::format("not downloaded whole; `tessera pull {}` resumes", model.repo);
      rows.push_back(row);
    }
  }
  if (o.json) {
    Json all = Json::array();
    for (const ModelRow& row : rows) all.push_back(json_of(row));
    print_json({{"cache", cache.string()}, {"models", all}});
    return kExitOk;
  }
  size_t width = 4;
  for (const ModelRow& row : rows) width = std::max(width, row.name.size());
  if (!rows.empty())
    fmt::print("{:<{}}  {:<12} {:>10} {:>9}  {:<10} runs\n", "name", width, "type", "parameters",
               "size", "storage");
  for (const ModelRow& row : rows)
    fmt::print("{:<{}}  {:<12} {:>10} {:>9}  {:<10} {}\n", row.name, width, row.type,
               readable_count(row.parameters), hub::readable_bytes(row.bytes), row.storage,
               row.why.empty() ? "yes" : "no: " + format::printable(row.why, 300));
  fmt::print("{} in {}\n", hub::readable_bytes(bytes), cache.string());
  return kExitOk;
}

}  // namespace

std::function<int()> add_models(CLI::App& app) {
  auto o = std::make_shared<ModelsArgs>();
  group(app, "Output");
  app.add_flag("--json", o->json, "as JSON");
  group(app, "Input");
  add_families(app, o->families);
  examples(app, {"tessera models", "tessera models --json", "HF_HOME=/mnt/models tessera models"});
  return [o] { return models(*o); };
}

}  // namespace tessera::cli
