#include "tessera/train/runs/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/spec/json.h"
#include "tessera/train/runs/tensorboard_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr const char* kColumns[] = {
    "step",         "loss",    "lr",         "grad_norm",           "tokens",
    "tokens_per_s", "seconds", "valid_loss", "valid_bits_per_byte", "accuracy"};

/// A name as a table writes it; those of layers and losses have nothing to quote, tokens may.
std::string csv_name(const std::string& name) {
  if (name.find_first_of(",\"\n") == std::string::npos) return name;
  std::string out = "\"";
  for (const char c : name) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string csv_header(const std::vector<std::string>& columns) {
  std::string text;
  for (const std::string& column : columns) text += (text.empty() ? "" : ",") + csv_name(column);
  return text + "\n";
}

std::string csv_row(const Json& line, const std::vector<std::string>& columns) {
  std::map<std::string, std::string> numbers;
  for (const auto& [name, value] : numbers_of(line)) numbers[name] = Json(value).dump();
  // counts stay counts
  for (const auto& [name, value] : line.items())
    if (value.is_number()) numbers[name] = value.dump();
  std::string text;
  for (size_t c = 0; c < columns.size(); ++c) text += (c > 0 ? "," : "") + numbers[columns[c]];
  return text + "\n";
}

/// Adds the names that a line brings; returns whether there were any.
bool add_columns(const Json& line, std::vector<std::string>& columns) {
  const size_t before = columns.size();
  for (const auto& [name, value] : numbers_of(line))
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
  return columns.size() > before;
}

std::string csv_table(const std::vector<Json>& lines, const std::vector<std::string>& columns) {
  std::string text = csv_header(columns);
  for (const Json& line : lines) text += csv_row(line, columns);
  return text;
}

void add_numbers(const Json& json,
                 const std::string& under,
                 std::vector<std::pair<std::string, double>>& out) {
  for (const auto& [key, value] : json.items())
    if (value.is_number())
      out.emplace_back(under + key, value.get<double>());
    else if (value.is_object())
      add_numbers(value, under + key + "/", out);
}

/// All numbers of a line but its position in the run.
std::string event_of(const Json& json, double begin) {
  auto values = numbers_of(json);
  std::erase_if(
      values, [](const auto& value) { return value.first == "step" || value.first == "seconds"; });
  return scalars_event(begin + json["seconds"].get<double>(), json["step"].get<int64_t>(), values);
}

}  // namespace

std::vector<std::pair<std::string, double>> numbers_of(const Json& line) {
  std::vector<std::pair<std::string, double>> out;
  add_numbers(line, "", out);
  return out;
}

std::string number_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

Json to_json(const LogLine& line) {
  Json json = {{"step", line.step},      {"loss", line.loss},
               {"lr", line.lr},          {"grad_norm", line.grad_norm},
               {"tokens", line.tokens},  {"tokens_per_s", line.tokens_per_s},
               {"seconds", line.seconds}};
  if (line.valid_loss) json["valid_loss"] = *line.valid_loss;
  if (line.valid_bits_per_byte) json["valid_bits_per_byte"] = *line.valid_bits_per_byte;
  if (line.accuracy) json["accuracy"] = *line.accuracy;
  if (!line.losses.empty()) json["losses"] = line.losses;
  if (!line.scores.empty()) json["scores"] = line.scores;
  if (!line.experts.empty()) json["experts"] = line.experts;
  if (!line.alarms.empty()) json["alarms"] = line.alarms;
  if (!line.expert_changes.empty()) json["expert_changes"] = line.expert_changes;
  if (!line.warnings.empty()) json["warnings"] = line.warnings;
  if (!line.stopped.empty()) json["stopped"] = line.stopped;
  if (line.loss_scale) json["loss_scale"] = *line.loss_scale;
  if (line.noise_scale) json["noise_scale"] = *line.noise_scale;
  if (!line.norms.empty()) json["norms"] = line.norms;
  return json;
}

LogLine log_line_of(const Json& json, const std::string& where) {
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto found = json.find(key);
    if (found == json.end()) return std::nullopt;
    if (!found->is_number())
      fail(ErrorKind::file, where, "\"{}\": found {}; expected a number", key,
           spec::kind_of(*found));
    return found->get<double>();
  };
  const auto count = [&](const char* key) -> int64_t {
    const auto found = json.find(key);
    if (found == json.end()) return 0;
    if (!found->is_number_integer() || found->get<int64_t>() < 0)
      fail(ErrorKind::file, where, "\"{}\": found {}; expected a count", key,
           found->dump().substr(0, 40));
    return found->get<int64_t>();
  };
  if (!json.is_object() || !json.contains("step"))
    fail(ErrorKind::file, where, "a line of the log without \"step\"");
  LogLine line;
  line.step = count("step");
  line.loss = number("loss").value_or(0);
  line.lr = number("lr").value_or(0);
  line.grad_norm = number("grad_norm").value_or(0);
  line.tokens = count("tokens");
  line.tokens_per_s = number("tokens_per_s").value_or(0);
  line.seconds = number("seconds").value_or(0);
  line.valid_loss = number("valid_loss");
  line.valid_bits_per_byte = number("valid_bits_per_byte");
  line.accuracy = number("accuracy");
  line.loss_scale = number("loss_scale");
  line.noise_scale = number("noise_scale");
  for (const auto& [group, to] :
       {std::pair("losses", &line.losses), std::pair("scores", &line.scores)}) {
    const auto found = json.find(group);
    if (found == json.end()) continue;
    if (!found->is_object())
      fail(ErrorKind::file, where, "\"{}\": found {}; expected an object", group,
           spec::kind_of(*found));
    for (const auto& [name, value] : found->items()) {
      if (!value.is_number())
        fail(ErrorKind::file, where, "\"{}.{}\": found {}; expected a number", group, name,
             spec::kind_of(value));
      (*to)[name] = value.get<double>();
    }
  }
  for (const auto& [key, to] : {std::pair{"experts", &line.experts},
                                {"expert_changes", &line.expert_changes},
                                {"norms", &line.norms}}) {
    const auto found = json.find(key);
    if (found == json.end()) continue;
    if (!found->is_object())
      fail(ErrorKind::file, where, "\"{}\": found {}; expected an object", key,
           spec::kind_of(*found));
    *to = *found;
  }
  for (const auto& [key, to] : {std::pair{"alarms", &line.alarms}, {"warnings", &line.warnings}}) {
    const auto found = json.find(key);
    if (found == json.end()) continue;
    const auto text = [](const Json& one) { return one.is_string(); };
    if (!found->is_array() || !std::all_of(found->begin(), found->end(), text))
      fail(ErrorKind::file, where, "\"{}\": found {}; expected a list of texts", key,
           spec::kind_of(*found));
    *to = found->get<std::vector<std::string>>();
  }
  if (const auto stopped = json.find("stopped"); stopped != json.end()) {
    if (!stopped->is_string())
      fail(ErrorKind::file, where, "\"stopped\": found {}; expected a text",
           spec::kind_of(*stopped));
    line.stopped = stopped->get<std::string>();
  }
  return line;
}

struct RunLog::File {
  explicit File(fs::path p)
      : path(std::move(p)), descriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)) {
    if (descriptor < 0) give_up("open");
  }
  ~File() { ::close(descriptor); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[noreturn]] void give_up(const char* step) const {
    fail(ErrorKind::resource, "log", "{}: cannot {}: {}", path.string(), step,
         std::strerror(errno));
  }
  // one call per line, so that a reader never sees half of one
  void append(const std::string& text) const {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(descriptor, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) give_up("write");
      done += static_cast<size_t>(n);
    }
  }
  fs::path path;
  int descriptor;
};

RunLog::RunLog(const fs::path& folder, int64_t step)
    : folder_(folder), columns_(std::begin(kColumns), std::end(kColumns)) {
  const fs::path jsonl = folder / "log.jsonl", csv = folder / "log.csv",
                 events = folder / "events.out.tfevents.tessera";
  std::string lines;
  std::vector<Json> kept;
  if (step > 0 && fs::exists(jsonl)) {
    const std::string text = read_text_file(jsonl);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      if (end == std::string::npos) break;  // cut off by a crash, hence after the checkpoint
      const std::string line = text.substr(begin, end - begin);
      const Json json = spec::parse_json(line, jsonl.string());
      const LogLine known = log_line_of(json, jsonl.string());
      if (known.step <= step) {
        lines += line + "\n";
        kept.push_back(to_json(known));
        add_columns(kept.back(), columns_);
      }
      begin = end + 1;
    }
  }
  begin_ =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (!kept.empty()) begin_ -= kept.back()["seconds"].get<double>();
  std::string records = first_event(begin_);
  for (const Json& line : kept) records += event_of(line, begin_);
  write_file_atomically(jsonl, lines);
  write_file_atomically(csv, csv_table(kept, columns_));
  write_file_atomically(events, records);
  jsonl_ = std::make_unique<File>(jsonl);
  csv_ = std::make_unique<File>(csv);
  events_ = std::make_unique<File>(events);
}

RunLog::~RunLog() = default;

void RunLog::write(const LogLine& line) {
  const Json json = to_json(line);
  jsonl_->append(json.dump() + "\n");
  write_table(json);
  events_->append(event_of(json, begin_));
}

void RunLog::write_table(const Json& line) {
  if (!add_columns(line, columns_)) {
    csv_->append(csv_row(line, columns_));
    return;
  }
  const fs::path jsonl = folder_ / "log.jsonl", csv = folder_ / "log.csv";
  std::vector<Json> all;
  std::ifstream file(jsonl);
  for (std::string text; std::getline(file, text);)
    all.push_back(spec::parse_json(text, jsonl.string()));
  write_file_atomically(csv, csv_table(all, columns_));
  csv_ = std::make_unique<File>(csv);
}

void RunLog::flush() {
  for (const File* file : {jsonl_.get(), csv_.get(), events_.get()})
    if (fsync(file->descriptor) != 0) file->give_up("flush");
}

}  // namespace tessera::train
