#include "tessera/infer/evaluation/result_lines.h"

#include "tessera/base/error.h"
#include "tessera/base/text_input.h"

namespace tessera::infer {
namespace {

namespace fs = std::filesystem;
using spec::Json;

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// ": seed = 1, here 2", of the first key that differs.
std::string difference(const Json& found, const Json& here) {
  for (const auto& [key, value] : here.items())
    if (!found.is_object() || !found.contains(key) || found[key] != value)
      return fmt::format(": {} = {}, here {}", key,
                         found.is_object() && found.contains(key) ? found[key].dump() : "nothing",
                         value.dump());
  return "";
}

}  // namespace

ResultLines::ResultLines(fs::path path, const Json& evaluation) : path_(std::move(path)) {
  const std::string where = path_.string();
  std::error_code ignored;
  const std::string text = fs::exists(path_, ignored) ? read_text_input(path_) : "";
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  int64_t number = 0;
  for (size_t begin = 0, end = 0; begin < whole; begin = end + 1) {
    end = text.find('\n', begin);
    Json line = spec::parse_json(std::string_view(text).substr(begin, end - begin),
                                 fmt::format("{}:{}", where, ++number));
    if (number > 1) {
      const bool numbered = line.is_object() && line.contains("index");
      if (!numbered || line["index"] != number - 2)
        fail(ErrorKind::file, fmt::format("{}:{}", where, number),
             "no result of example {}; expected a file that --out wrote", number - 2);
      done_.push_back(std::move(line));
    } else if (line != evaluation) {
      fail(ErrorKind::usage, where,
           "holds results of another evaluation{}; expected the same model, task and options, or "
           "another --out",
           difference(line, evaluation));
    }
  }
  if (whole == 0 && !text.empty() && line_of(evaluation).compare(0, text.size(), text) != 0)
    fail(ErrorKind::file, where, "is no file of results; expected another --out");
  if (whole < text.size()) fs::resize_file(path_, whole, ignored);
  out_.open(path_, std::ios::app | std::ios::binary);
  if (!out_) fail(ErrorKind::resource, where, "cannot be written; expected a writable --out");
  if (whole == 0) add(evaluation);
}

void ResultLines::add(const Json& result) {
  if (path_.empty()) return;
  out_ << line_of(result) << std::flush;
  if (!out_)
    fail(ErrorKind::resource, path_.string(), "a write failed; expected space on the disk");
}

}  // namespace tessera::infer
