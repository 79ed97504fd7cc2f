#include "tessera/retrieve/index_file.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/sha256.h"
#include "tessera/format/safetensors.h"
#include "tessera/spec/json.h"

namespace tessera::retrieve {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr int kVersion = 1;
constexpr const char* kIndex = "index.json";
constexpr int64_t kMost = int64_t{1} << 40;

/// Members of a JSON object, with checked types.
class Members {
 public:
  Members(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object())
      fail(ErrorKind::file, where_, "found {}; expected an object", spec::kind_of(json_));
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) other(key, value, "a string");
    return value.get<std::string>();
  }
  int64_t number(const char* key, int64_t least) const {
    const Json& value = at(key);
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(least) ||
        value.get<double>() > static_cast<double>(kMost))
      other(key, value, fmt::format("an integer from {}", least));
    return value.get<int64_t>();
  }
  const Json& list(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) other(key, value, "a list");
    return value;
  }

 private:
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(ErrorKind::file, where_, "\"{}\" is missing", key);
    return *found;
  }
  [[noreturn]] void other(const char* key, const Json& value, const std::string& expected) const {
    fail(ErrorKind::file, where_, "\"{}\" is {}; expected {}", key,
         value.is_number() ? value.dump() : std::string(spec::kind_of(value)), expected);
  }

  const Json& json_;
  std::string where_;
};

/// A file name inside the folder.
fs::path file_named(const fs::path& folder, const Members& index, const char* key) {
  const std::string name = index.text(key);
  if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.'))
    fail(ErrorKind::file, (folder / kIndex).string(),
         "\"{}\" is \"{}\"; expected the name of a file in its folder", key, name.substr(0, 100));
  return folder / name;
}

Passage passage_of(const Json& json, const std::string& where, size_t files) {
  const Members members(json, where);
  Passage out;
  out.file = members.number("file", 0);
  if (out.file >= static_cast<int64_t>(files))
    fail(ErrorKind::file, where, "file {} of {}", out.file, files);
  out.place.begin = static_cast<size_t>(members.number("begin", 0));
  out.place.end = static_cast<size_t>(members.number("end", 0));
  out.place.first_line = members.number("first_line", 1);
  out.place.last_line = members.number("last_line", 1);
  out.text = members.text("text");
  return out;
}

}  // namespace

std::string IndexFile::source(const Passage& passage) const {
  const std::string& path = files.at(static_cast<size_t>(passage.file)).path;
  const auto [first, last] = std::pair(passage.place.first_line, passage.place.last_line);
  return first == last ? fmt::format("{}:{}", path, first)
                       : fmt::format("{}:{}-{}", path, first, last);
}

IndexFile open_index(const fs::path& folder) {
  const fs::path path = folder / kIndex;
  if (!fs::is_regular_file(path))
    fail(ErrorKind::file, folder.string(), "no index; expected a folder that `tessera index` made");
  const std::string where = path.string();
  const Json json = spec::read_json_file(path);
  const Members index(json, where);
  if (const int64_t version = index.number("tessera_index", 1); version != kVersion)
    fail(ErrorKind::file, where,
         "version {}; expected {}: rebuild the index (tessera index --rebuild)", version, kVersion);
  IndexFile out;
  out.model = index.text("model");
  out.print = index.text("print");
  out.width = index.number("width", 1);
  out.cut = {index.number("tokens", 1), index.number("overlap", 0)};
  for (const Json& file : index.list("files")) {
    const Members members(file, where + ": files");
    out.files.push_back({members.text("path"), members.text("sha256")});
  }
  const fs::path passages = file_named(folder, index, "passages");
  const auto text = MappedFile::open(passages);
  const std::string_view lines(reinterpret_cast<const char*>(text->bytes().data()),
                               text->bytes().size());
  for (size_t begin = 0, number = 1; begin < lines.size(); ++number) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string at = fmt::format("{}: line {}", passages.string(), number);
    out.passages.push_back(
        passage_of(spec::parse_json(lines.substr(begin, end - begin), at), at, out.files.size()));
    begin = end + 1;
  }
  const fs::path vectors = file_named(folder, index, "vectors");
  const format::TensorFile tensors = format::open_safetensors(vectors);
  out.vectors = tensors.at("vectors");
  const std::vector<int64_t> shape = {std::ssize(out.passages), out.width};
  if (out.vectors.dtype != DType::f32 || out.vectors.shape != shape)
    fail(ErrorKind::file, vectors.string(), "found {} {}; expected float32 {}",
         name_of(out.vectors.dtype), format::shape_text(out.vectors.shape),
         format::shape_text(shape));
  return out;
}

namespace {

/// The new files of an index: without keep(), they are removed again (on a full disk).
class NewFiles {
 public:
  explicit NewFiles(std::vector<fs::path> paths) : paths_(std::move(paths)) {
    std::error_code ignored;
    std::erase_if(paths_, [&](const fs::path& path) { return fs::exists(path, ignored); });
  }
  NewFiles(const NewFiles&) = delete;
  ~NewFiles() {
    std::error_code ignored;
    for (const fs::path& path : paths_) fs::remove(path, ignored);
  }
  void keep() { paths_.clear(); }

 private:
  std::vector<fs::path> paths_;
};

}  // namespace

void write_index(const fs::path& folder, const IndexFile& index) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    fail(ErrorKind::usage, folder.string(), "a file; expected a folder for the index");
  if (fs::is_directory(folder) && !fs::is_empty(folder) && !fs::exists(folder / kIndex))
    fail(ErrorKind::usage, folder.string(),
         "holds something else than an index; expected another folder");
  create_folder(folder);
  std::string lines;
  for (const Passage& passage : index.passages) {
    const Json line = {{"file", passage.file},
                       {"begin", passage.place.begin},
                       {"end", passage.place.end},
                       {"first_line", passage.place.first_line},
                       {"last_line", passage.place.last_line},
                       {"text", passage.text}};
    lines += line.dump() + "\n";
  }
  // named by content: the files of the existing index stay until it is replaced
  const std::string number =
      Sha256().update(lines).update(index.vectors.data).finish().substr(0, 16);
  const std::string passages = fmt::format("passages-{}.jsonl", number),
                    vectors = fmt::format("vectors-{}.safetensors", number);
  NewFiles made({folder / passages, folder / vectors});
  write_file_atomically(folder / passages, lines);
  format::TensorView view = index.vectors;
  view.name = "vectors";
  format::write_safetensors(folder / vectors, std::span(&view, 1));
  Json json = {
      {"tessera_index", kVersion}, {"model", index.model},       {"print", index.print},
      {"width", index.width},      {"tokens", index.cut.tokens}, {"overlap", index.cut.overlap},
      {"passages", passages},      {"vectors", vectors},         {"files", Json::array()}};
  for (const IndexFile::File& file : index.files)
    json["files"].push_back({{"path", file.path}, {"sha256", file.sha256}});
  write_file_atomically(folder / kIndex, json.dump(1) + "\n");
  made.keep();
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool ours = (name.starts_with("passages-") && name.ends_with(".jsonl")) ||
                      (name.starts_with("vectors-") && name.ends_with(".safetensors"));
    std::error_code ignored;
    if (ours && name != passages && name != vectors) fs::remove(entry.path(), ignored);
  }
}

}  // namespace tessera::retrieve
