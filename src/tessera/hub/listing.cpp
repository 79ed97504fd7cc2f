#include "tessera/hub/listing.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/hub/gguf_files.h"
#include "tessera/hub/model_name.h"
#include "tessera/spec/json.h"

namespace tessera::hub {
namespace {

using spec::Json;

constexpr size_t kMostListed = 50'000;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;  // of one file

template <class... Args>
[[noreturn]] void refuse_listing(std::string_view where,
                                 fmt::format_string<Args...> text,
                                 Args&&... args) {
  throw Error(ErrorKind::file, where,
              format::printable(fmt::format(text, std::forward<Args>(args)...), 600));
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

/// A member that is a string; "" where it is absent or null.
std::string string_at(const Json& object, const char* key, std::string_view where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  if (!found->is_string())
    refuse_listing(where, "{} is {}; expected a string", key, spec::kind_of(*found));
  return found->get<std::string>();
}

uint64_t bytes_at(const Json& object, std::string_view path, std::string_view where) {
  const auto found = object.find("size");
  if (found == object.end() || !found->is_number_integer() ||
      (!found->is_number_unsigned() && found->get<int64_t>() < 0) ||
      found->get<uint64_t>() > kMostBytes)
    refuse_listing(where, "{}: size is {}; expected a number of bytes", format::in_quotes(path),
                   found == object.end() ? "absent" : found->dump(-1, ' ', true));
  return found->get<uint64_t>();
}

RemoteFile read_file(const Json& sibling, std::string_view where) {
  if (!sibling.is_object())
    refuse_listing(where, "siblings holds {}; expected objects", spec::kind_of(sibling));
  RemoteFile file;
  file.path = string_at(sibling, "rfilename", where);
  if (!is_safe_path(file.path))
    refuse_listing(where, "a file is called {}; expected a path below the model's folder",
                   format::in_quotes(file.path));
  file.bytes = bytes_at(sibling, file.path, where);
  const auto lfs = sibling.find("lfs");
  if (lfs == sibling.end() || lfs->is_null()) {
    file.hash = string_at(sibling, "blobId", where);
    if (!is_hex(file.hash, 40))
      refuse_listing(where, "{}: blobId is {}; expected 40 hexadecimal digits",
                     format::in_quotes(file.path), format::in_quotes(file.hash));
    return file;
  }
  if (!lfs->is_object())
    refuse_listing(where, "{}: lfs is {}; expected an object", format::in_quotes(file.path),
                   spec::kind_of(*lfs));
  file.hash = string_at(*lfs, "sha256", where);
  if (!is_hex(file.hash, 64))
    refuse_listing(where, "{}: sha256 is {}; expected 64 hexadecimal digits",
                   format::in_quotes(file.path), format::in_quotes(file.hash));
  if (const uint64_t bytes = bytes_at(*lfs, file.path, where); bytes != file.bytes)
    refuse_listing(where, "{}: {} bytes, and {} in LFS; expected one size",
                   format::in_quotes(file.path), file.bytes, bytes);
  return file;
}

/// No path twice, none the folder of another, one size for a hash.
void check_files(const std::vector<RemoteFile>& files, std::string_view where) {
  std::set<std::string> paths;
  std::map<std::string, uint64_t> sizes;
  uint64_t sum = 0;
  for (const RemoteFile& file : files) {
    if (!paths.insert(file.path).second)
      refuse_listing(where, "{} is listed twice", format::in_quotes(file.path));
    const auto [same, first] = sizes.try_emplace(file.hash, file.bytes);
    if (!first && same->second != file.bytes)
      refuse_listing(where, "{}: {} bytes, and {} elsewhere for the same hash",
                     format::in_quotes(file.path), file.bytes, same->second);
    sum += file.bytes;  // of at most kMostListed files
    if (sum > kMostBytes) refuse_listing(where, "more than {} bytes", kMostBytes);
  }
  for (const std::string& path : paths)
    for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1))
      if (paths.count(path.substr(0, slash)))
        refuse_listing(where, "{} is a file and a folder",
                       format::in_quotes(path.substr(0, slash)));
}

bool ends_in_one(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}
bool begins_with_one(std::string_view path, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return path.starts_with(beginning); });
}

/// Weights for other programs, and what is to be looked at.
bool is_for_others(std::string_view path) {
  return begins_with_one(path, {"onnx/", "openvino/", "coreml/", "original/"}) ||
         path.find(".mlpackage/") != path.npos || path.find(".mlmodelc/") != path.npos ||
         ends_in_one(path, {".onnx",    ".onnx_data",     ".h5",  ".msgpack", ".ot",   ".tflite",
                            ".mlmodel", ".gitattributes", ".png", ".jpg",     ".jpeg", ".gif",
                            ".webp",    ".svg",           ".mp4", ".mp3",     ".wav",  ".flac",
                            ".pdf",     ".ipynb"}) ||
         path.find("openvino_model") != path.npos;
}
bool is_pickle(std::string_view path) {
  return ends_in_one(path, {".bin", ".pt", ".pth", ".ckpt", ".bin.index.json"});
}

uint64_t sum_of(const Listing& listing, const GgufModel& model) {
  uint64_t sum = 0;
  for (const RemoteFile& file : listing.files)
    if (std::find(model.parts.begin(), model.parts.end(), file.path) != model.parts.end())
      sum += file.bytes;
  return sum;
}

/// "--quant Q4_K_M (2.1 GB), --quant Q8_0 (4 GB)"
std::string quantizations(const Listing& listing, const std::vector<GgufModel>& models) {
  std::string out;
  for (const GgufModel& model : models)
    out += fmt::format("{}{} {} ({})", out.empty() ? "" : ", ",
                       model.quantization.empty() ? "--include" : "--quant", model.choice(),
                       readable_bytes(sum_of(listing, model)));
  return format::printable(out, 2000);
}

std::vector<std::string> parts_of_one(const Listing& listing,
                                      const std::vector<GgufModel>& models,
                                      const std::string& repo) {
  if (models.size() > 1)
    fail(ErrorKind::usage, "pull", "{} has {} GGUF files; expected one of {}", repo, models.size(),
         quantizations(listing, models));
  if (models[0].parts.size() != models[0].expected_parts)
    fail(ErrorKind::file, "pull", "{}: the hub has {} of {} parts of {}", repo,
         models[0].parts.size(), models[0].expected_parts, format::printable(models[0].parts[0]));
  return models[0].parts;
}

}  // namespace

Listing read_listing(std::string_view text, std::string_view where) {
  spec::JsonLimits limits;
  limits.max_bytes = size_t{64} << 20;
  limits.max_values = 2'000'000;
  const Json json = spec::parse_json(text, where, limits);
  if (!json.is_object())
    refuse_listing(where, "the answer is {}; expected an object", spec::kind_of(json));
  Listing listing;
  listing.commit = string_at(json, "sha", where);
  if (!is_commit(listing.commit))
    refuse_listing(where, "sha is {}; expected a commit of 40 hexadecimal digits",
                   format::in_quotes(listing.commit));
  const auto siblings = json.find("siblings");
  if (siblings == json.end() || !siblings->is_array())
    refuse_listing(where, "no list of files (siblings)");
  if (siblings->size() > kMostListed)
    refuse_listing(where, "{} files; at most {}", siblings->size(), kMostListed);
  for (const Json& sibling : *siblings) listing.files.push_back(read_file(sibling, where));
  check_files(listing.files, where);
  std::sort(listing.files.begin(), listing.files.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  return listing;
}

std::vector<RemoteFile> wanted_files(const Listing& listing,
                                     const Wanted& wanted,
                                     const std::string& repo) {
  std::vector<std::string> paths;
  for (const RemoteFile& file : listing.files) paths.push_back(file.path);
  const std::vector<GgufModel> models = gguf_models(paths);
  std::set<std::string> taken;
  if (!wanted.quantization.empty()) {
    const auto fits = of_quantization(models, wanted.quantization);
    if (fits.empty())
      fail(ErrorKind::usage, "pull", "{} has no GGUF file of quantization {}; there: {}", repo,
           format::in_quotes(wanted.quantization),
           models.empty() ? "none" : quantizations(listing, models));
    const auto parts = parts_of_one(listing, fits, repo);
    taken.insert(parts.begin(), parts.end());
  }
  for (const std::string& glob : wanted.include) {
    bool fits = false;
    for (const std::string& path : paths)
      if (fnmatch(glob.c_str(), path.c_str(), 0) == 0) taken.insert(path), fits = true;
    if (!fits)
      fail(ErrorKind::usage, "pull", "{}: no file fits --include {}", repo,
           format::in_quotes(glob));
  }
  if (wanted.quantization.empty() && wanted.include.empty()) {
    const auto has = [&](auto&& fits) { return std::any_of(paths.begin(), paths.end(), fits); };
    const bool safetensors = has([](const auto& path) { return path.ends_with(".safetensors"); });
    const bool weights = safetensors || has(is_pickle);
    for (const std::string& path : paths) {
      const bool skipped = is_for_others(path) || (safetensors && is_pickle(path)) ||
                           path.ends_with(".gguf") || path.ends_with(".GGUF");
      if (!skipped) taken.insert(path);
    }
    if (!weights && !models.empty()) {
      const auto parts = parts_of_one(listing, models, repo);
      taken.insert(parts.begin(), parts.end());
    }
  }
  if (taken.empty()) fail(ErrorKind::usage, "pull", "{} has no file that tessera opens", repo);
  std::vector<RemoteFile> files;
  for (const RemoteFile& file : listing.files)
    if (taken.count(file.path)) files.push_back(file);
  return files;
}

std::string readable_bytes(uint64_t bytes) {
  constexpr std::array kUnits = {"bytes", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return unit == 0      ? fmt::format("{} bytes", bytes)
         : value < 9.95 ? fmt::format("{:.1f} {}", value, kUnits[unit])
                        : fmt::format("{:.0f} {}", value, kUnits[unit]);
}

}  // namespace tessera::hub
