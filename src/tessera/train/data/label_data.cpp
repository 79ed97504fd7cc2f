#include "tessera/train/data/label_data.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/format/file_source.h"
#include "tessera/nn/embed/patches.h"
#include "tessera/train/data/check_files.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/data/image_files.h"
#include "tessera/train/data/listops.h"
#include "tessera/train/data/superglue_records.h"

namespace tessera::train {
namespace {

/// File name endings of formats.
constexpr std::pair<const char*, LabelFormat> kEndings[] = {
    {".tsv", LabelFormat::tsv},    {".csv", LabelFormat::csv},      {".jsonl", LabelFormat::jsonl},
    {".json", LabelFormat::jsonl}, {".ndjson", LabelFormat::jsonl}, {".conll", LabelFormat::conll},
    {".iob2", LabelFormat::conll}, {".bio", LabelFormat::conll},    {".txt", LabelFormat::lines},
    {".bin", LabelFormat::cifar},  {"idx3-ubyte", LabelFormat::idx}};

/// The formats of images, and of lists of their files or of sounds.
bool may_hold_features(LabelFormat format) {
  using enum LabelFormat;
  return format == tsv || format == csv || format == jsonl || format == cifar ||
         format == cifar100 || format == idx || format == folder;
}

std::string names_shown(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) out.push_back(format::in_quotes(name));
  return fmt::format("{}", fmt::join(out, ", "));
}

[[noreturn]] void refuse_empty_line(const std::string& where) {
  fail(ErrorKind::file, "data", "{}: an empty line; expected an example on every line", where);
}

std::vector<std::string> cells_of(std::string_view line,
                                  std::string_view separator,
                                  int64_t max_splits) {
  std::vector<std::string> cells;
  for (;;) {
    const bool last = max_splits > 0 && std::ssize(cells) == max_splits;
    const size_t end = last ? line.npos : line.find(separator);
    cells.emplace_back(line.substr(0, end));
    if (end == line.npos) return cells;
    line.remove_prefix(end + separator.size());
  }
}

/// One record of RFC 4180, which may span several lines; false after the last one.
class QuotedCells {
 public:
  QuotedCells(const std::string& path, std::string separator)
      : lines_(path), separator_(std::move(separator)) {
    rest_ = lines_.rest();
    lines_.check_rest();
  }
  bool next(std::vector<std::string>& cells) {
    if (rest_.find_first_not_of(" \t\r\n") == rest_.npos) return false;
    cells.clear();
    begin_ = line_;
    if (rest_.front() == '\n' || rest_.starts_with("\r\n")) refuse_empty_line(where());
    for (;;) {
      cells.push_back(rest_.starts_with('"') ? quoted() : bare());
      if (rest_.starts_with(separator_)) {
        rest_.remove_prefix(separator_.size());
        continue;
      }
      if (rest_.starts_with('\r')) rest_.remove_prefix(1);
      if (rest_.starts_with('\n')) rest_.remove_prefix(1), ++line_;
      return true;
    }
  }
  /// Of the last record.
  std::string where() const { return lines_.where(begin_); }
  /// Of the next record, in the file's bytes.
  size_t offset() const { return lines_.offset() + lines_.rest().size() - rest_.size(); }

 private:
  std::string bare() {
    size_t end = std::min(rest_.find(separator_), rest_.find('\n'));
    end = std::min(end, rest_.size());
    if (end > 0 && end < rest_.size() && rest_[end] == '\n' && rest_[end - 1] == '\r') --end;
    std::string cell(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return cell;
  }
  std::string quoted() {
    const int64_t opened = line_;
    std::string cell;
    rest_.remove_prefix(1);
    for (;;) {
      const size_t end = rest_.find('"');
      if (end == rest_.npos)
        fail(ErrorKind::file, "data",
             "{}: a quote that nothing closes; expected \" at the end of the cell, or \"\" for a "
             "quote within it (files without quotes are \"tsv\")",
             lines_.where(opened));
      const std::string_view part = rest_.substr(0, end);
      line_ += std::count(part.begin(), part.end(), '\n');
      cell += part;
      rest_.remove_prefix(end + 1);
      if (!rest_.starts_with('"')) break;
      cell += '"';
      rest_.remove_prefix(1);
    }
    if (!rest_.empty() && !rest_.starts_with(separator_) && rest_.front() != '\n' &&
        !rest_.starts_with("\r\n") && rest_ != "\r")
      fail(ErrorKind::file, "data",
           "{}: text after the closing quote of a cell; expected \"\" for a quote within it",
           lines_.where(line_));
    return cell;
  }

  DataLines lines_;
  std::string separator_;
  std::string_view rest_;
  int64_t line_ = 1, begin_ = 1;
};

/// Column names, and cells of each line by name.
class Table {
 public:
  Table(const LabelData& data, const std::string& path)
      : path_(path), names_(data.columns), skip_incomplete_(data.skip_incomplete) {
    skip_first_ = data.header.value_or(names_.empty());
  }
  /// No example for a header line, and for a row that is to be skipped.
  std::optional<Record> row(std::vector<std::string> cells,
                            const std::string& where,
                            size_t offset) {
    if (skip_first_) {
      skip_first_ = false;
      if (names_.empty()) name(std::move(cells), where);
      return std::nullopt;
    }
    if (skip_incomplete_ && cells.size() < names_.size()) return std::nullopt;
    if (cells.size() != names_.size())
      fail(ErrorKind::file, "data", "{}: {} cells; expected {} ({})", where, cells.size(),
           names_.size(), names_shown(names_));
    Record record{where, Json::object(), /*is_table=*/true, offset};
    for (size_t i = 0; i < cells.size(); ++i) record.values[names_[i]] = std::move(cells[i]);
    return record;
  }

 private:
  void name(std::vector<std::string> cells, const std::string& where) {
    for (size_t i = 0; i < cells.size(); ++i)
      if (std::find(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(i), cells[i]) !=
          cells.begin() + static_cast<std::ptrdiff_t>(i))
        fail(ErrorKind::file, "data",
             "{}: two columns are named {}; expected a line of names, or data.columns where "
             "there is none",
             where, format::in_quotes(cells[i]));
    names_ = std::move(cells);
  }
  std::string path_;
  std::vector<std::string> names_;
  bool skip_first_, skip_incomplete_;
};

using Visit = std::function<void(Record&&)>;

void read_tsv(const LabelData& data, const std::string& path, const Visit& visit) {
  const std::string separator = data.separator.empty() ? "\t" : data.separator;
  Table table(data, path);
  DataLines lines(path);
  size_t begin = lines.offset();
  for (std::string_view line; !lines.only_blank_left() && lines.next(line);
       begin = lines.offset()) {
    if (is_blank(line)) refuse_empty_line(lines.where());
    if (auto record = table.row(cells_of(line, separator, data.max_splits), lines.where(), begin))
      visit(std::move(*record));
  }
}

void read_csv(const LabelData& data, const std::string& path, const Visit& visit) {
  Table table(data, path);
  QuotedCells lines(path, data.separator.empty() ? "," : data.separator);
  size_t begin = lines.offset();
  for (std::vector<std::string> cells; lines.next(cells); begin = lines.offset())
    if (auto record = table.row(std::move(cells), lines.where(), begin)) visit(std::move(*record));
}

void read_jsonl(const LabelData& data, const std::string& path, const Visit& visit) {
  const DataFile file(path);
  if (file.text().empty())
    fail(ErrorKind::input, "data", "{}: the file is empty; expected examples", path);
  for_each_object(file, [&](const ObjectText& object) {
    Record record{object.where, parse_object(object), /*is_table=*/false};
    if (data.layout)
      superglue_records(*data.layout, record, data, visit);
    else
      visit(std::move(record));
  });
}

void read_lines(const LabelData& data, const std::string& path, const Visit& visit) {
  DataLines lines(path);
  for (std::string_view line; !lines.only_blank_left() && lines.next(line);) {
    if (is_blank(line)) refuse_empty_line(lines.where());
    visit({lines.where(), {{data.text_key, std::string(line)}}, /*is_table=*/true});
  }
}

/// Column indices of the word and its label.
std::pair<size_t, size_t> word_and_label(const LabelData& data, size_t columns) {
  if (data.columns.empty()) return {0, columns - 1};
  const auto place = [&](const std::string& name) {
    const auto found = std::find(data.columns.begin(), data.columns.end(), name);
    if (found == data.columns.end())
      fail(ErrorKind::spec, "data.columns", "no column \"{}\"; found {}", name,
           fmt::join(data.columns, ", "));
    return static_cast<size_t>(found - data.columns.begin());
  };
  return {place(data.words_key), place(data.labels_key)};
}

void read_conll(const LabelData& data, const std::string& path, const Visit& visit) {
  DataLines lines(path);
  Json words = Json::array(), labels = Json::array();
  int64_t first = 0;
  size_t columns = data.columns.size();
  const auto put = [&] {
    if (!words.empty())
      visit({lines.where(first),
             {{data.words_key, std::move(words)}, {data.labels_key, std::move(labels)}}});
    words = Json::array(), labels = Json::array();
  };
  for (std::string_view line; lines.next(line);) {
    // a document begins: a sentence ends
    if (is_blank(line) || line.starts_with("-DOCSTART-")) {
      put();
      continue;
    }
    std::vector<std::string> cells;
    for (size_t at = 0; (at = line.find_first_not_of(" \t", at)) != line.npos;) {
      const size_t end = std::min(line.find_first_of(" \t", at), line.size());
      cells.emplace_back(line.substr(at, end - at));
      at = end;
    }
    if (cells.size() < 2)
      fail(ErrorKind::file, "data",
           "{}: one column, {}; expected a word and its label, and an empty line between "
           "sentences",
           lines.where(), format::in_quotes(cells.front()));
    if (columns == 0) columns = cells.size();
    if (cells.size() != columns)
      fail(ErrorKind::file, "data", "{}: {} columns; expected {}", lines.where(), cells.size(),
           columns);
    if (words.empty()) first = lines.number();
    const auto [word, label] = word_and_label(data, columns);
    words.push_back(std::move(cells[word]));
    labels.push_back(word == label ? words.back() : Json(std::move(cells[label])));
  }
  put();
}

/// A member of an object. Throws Error(file).
const Json& member(const Json& object, const char* key, const std::string& where) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end())
    fail(ErrorKind::file, "data", "{}: no \"{}\"; expected a file of SQuAD", where, key);
  return *found;
}

const Json& list_at(const Json& object, const char* key, const std::string& where) {
  const Json& list = member(object, key, where);
  if (!list.is_array())
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a list", where, key,
         spec::kind_of(list));
  return list;
}

void read_squad(const LabelData& data, const std::string& path, const Visit& visit) {
  const DataLines lines(path);
  const Json file = parse_object(lines.rest(), path);
  int64_t number = 0;
  for (const Json& article : list_at(file, "data", path))
    for (const Json& paragraph : list_at(article, "paragraphs", path)) {
      const Json& context = member(paragraph, "context", path);
      for (const Json& asked : list_at(paragraph, "qas", path)) {
        const std::string where = fmt::format("{}: question {}", path, ++number);
        Json values = {{data.context_key, context},
                       {data.question_key, member(asked, "question", where)}};
        if (asked.contains("id")) values["id"] = asked["id"];
        const bool impossible = asked.value("is_impossible", Json(false)) == Json(true);
        values[data.answers_key] = impossible ? Json::array() : list_at(asked, "answers", where);
        visit({where, std::move(values)});
      }
    }
}

void read_listops(const LabelData& data, const std::string& path, const Visit& visit) {
  LabelData table;
  table.format = LabelFormat::tsv;
  for_each_record(table, path, [&](Record&& record) {
    for (const char* column : {"Source", "Target"})
      if (!record.values.contains(column))
        fail(ErrorKind::file, "data",
             "{}: no column \"{}\"; expected a file of ListOps, Source and "
             "Target",
             path, column);
    const std::string source = record.values["Source"];
    Record made{record.where, Json::object(), /*is_table=*/true, record.offset};
    made.values[data.text_key] = listops_symbols(source, record.where);
    made.values[data.label_key] = std::move(record.values["Target"]);
    visit(std::move(made));
  });
}

FeatureFile feature_at(const std::filesystem::path& path) {
  return {[path] { return format::open_image(path); }, [path] { return format::open_wav(path); }};
}

void read_images(const LabelData& data,
                 const std::string& path,
                 LabelFormat format,
                 const Visit& visit) {
  const bool fine = format == LabelFormat::cifar100;
  const auto sound = [path]() -> format::Sound {
    fail(ErrorKind::file, "data", "{}: images; expected sounds (WAV)", path);
  };
  if (!data.has_features && fine)
    fail(ErrorKind::spec, "data.format",
         "\"cifar100\" with a spec that reads tokens; expected an embedding \"patches\"");
  if (data.has_features && format == LabelFormat::idx)
    for_each_idx_record(path, [&](const StoredImage& image) {
      visit({.where = image.where,
             .values = Json::object(),
             .file = {[image] { return image.read(); }, sound}});
    });
  else if (data.has_features)
    for_each_cifar_record(path, fine, [&](const StoredImage& image, int64_t label) {
      visit({.where = image.where,
             .values = {{data.label_key, label}},
             .file = {[image] { return image.read(); }, sound}});
    });
  else if (format == LabelFormat::cifar)
    for_each_cifar_image(path, [&](std::string pixels, int64_t label, const std::string& where) {
      visit({where, {{data.text_key, std::move(pixels)}, {data.label_key, label}}});
    });
  else
    for_each_idx_image(path, [&](std::string pixels, const std::string& where) {
      visit({where, {{data.text_key, std::move(pixels)}}});
    });
}

/// Files and folders in a folder by name, without hidden ones.
std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (!entry.path().filename().string().starts_with('.')) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

void read_folder(const LabelData& data, const std::string& path, const Visit& visit) {
  if (!data.has_features)
    fail(ErrorKind::spec, "data.format",
         "\"folder\" with a spec that reads tokens; expected an embedding \"patches\" or "
         "\"frames\"");
  if (!std::filesystem::is_directory(path))
    fail(ErrorKind::file, "data", "{}: no folder; expected one with a folder for each class", path);
  for (const std::filesystem::path& own : sorted_entries(path)) {
    if (!std::filesystem::is_directory(own))
      fail(ErrorKind::file, "data",
           "{}: a file between the folders of the classes; expected files in these", own.string());
    for (const std::filesystem::path& file : sorted_entries(own))
      visit({.where = file.string(),
             .values = {{data.label_key, own.filename().string()}},
             .is_table = true,
             .file = feature_at(file)});
  }
}

/// Adds the file that an example of a list names.
Visit with_files(const LabelData& data, const std::string& path, const Visit& visit) {
  return [&data, &visit, folder = std::filesystem::path(path).parent_path()](Record&& record) {
    if (!record.values.contains(data.file_key)) {
      std::vector<std::string> names;
      for (const auto& [key, value] : record.values.items()) names.push_back(key);
      fail(ErrorKind::file, "data",
           "{}: no \"{}\"; found {}; expected the path of a file there, or data.file_key with the "
           "name of another",
           record.where, data.file_key, names_shown(names));
    }
    const std::string name = string_at(record.values, data.file_key, record.where);
    if (name.empty() || name.find('\0') != std::string::npos)
      fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected the path of a file", record.where,
           data.file_key, format::in_quotes(name));
    record.file = feature_at(folder / name);
    visit(std::move(record));
  };
}

}  // namespace

LabelFormat LabelData::format_of(const std::string& path) const {
  if (format) return *format;
  if (std::filesystem::is_directory(path)) return LabelFormat::folder;
  for (const auto& [ending, told] : kEndings)
    if (path.ends_with(ending)) return told;
  // for Parquet and other binary formats, how to convert them
  if (std::filesystem::is_regular_file(path)) DataFile{path};
  fail(ErrorKind::spec, "data.format",
       "not given, and the name \"{}\" does not tell; expected one of tsv, csv, jsonl, lines, "
       "conll, squad, listops, cifar, cifar100, idx, folder (--format)",
       path);
}

void check_label_data(const LabelData& data, const std::string& where) {
  check_files(data, where);
  const auto check = [&](const std::vector<std::string>& files,
                         const std::vector<std::string>& labels, const char* name) {
    if (!labels.empty() && labels.size() != files.size())
      fail(ErrorKind::spec, fmt::format("{}.{}_labels", where, name),
           "{} files; expected {}, one for each of {}.{}", labels.size(), files.size(), where,
           name);
    for (const std::string& path : files) {
      const LabelFormat format = data.format_of(path);
      const bool table = format == LabelFormat::tsv || format == LabelFormat::csv;
      const auto refuse = [&](const char* key) {
        fail(ErrorKind::spec, fmt::format("{}.{}", where, key),
             "has no meaning for format \"{}\" ({})", spec::enum_name(format), path);
      };
      if (!table && !data.separator.empty()) refuse("separator");
      if (!table && data.header) refuse("header");
      if (!table && format != LabelFormat::conll && !data.columns.empty()) refuse("columns");
      if (format != LabelFormat::tsv && data.max_splits > 0) refuse("max_splits");
      if (!table && data.skip_incomplete) refuse("skip_incomplete");
      if (format != LabelFormat::jsonl && data.layout) refuse("layout");
      if (data.has_features && !may_hold_features(format)) refuse("input");
      if (table && data.columns.empty() && data.header == false)
        fail(ErrorKind::spec, where + ".columns",
             "not given, and there is no header; expected the names of the columns of {}", path);
    }
  };
  check(data.train, data.train_labels, "train");
  check(data.valid, data.valid_labels, "valid");
  if (data.separator.find_first_of("\n\r\"") != std::string::npos)
    fail(ErrorKind::spec, where + ".separator",
         "holds a quote or the end of a line; expected what stands between cells");
}

void for_each_record(const LabelData& data,
                     const std::string& path,
                     const std::function<void(Record&&)>& visit) {
  const LabelFormat format = data.format_of(path);
  const Visit of_list = data.has_features ? with_files(data, path, visit) : visit;
  switch (format) {
    case LabelFormat::tsv:
      return read_tsv(data, path, of_list);
    case LabelFormat::csv:
      return read_csv(data, path, of_list);
    case LabelFormat::jsonl:
      return read_jsonl(data, path, of_list);
    case LabelFormat::lines:
      return read_lines(data, path, visit);
    case LabelFormat::conll:
      return read_conll(data, path, visit);
    case LabelFormat::squad:
      return read_squad(data, path, visit);
    case LabelFormat::listops:
      return read_listops(data, path, visit);
    case LabelFormat::cifar:
    case LabelFormat::cifar100:
    case LabelFormat::idx:
      return read_images(data, path, format, visit);
    case LabelFormat::folder:
      return read_folder(data, path, visit);
  }
}

infer::FeatureSettings feature_settings(const LabelData& data,
                                        const nn::FeatureEmbedConfig& embed) {
  const bool has_frames = dynamic_cast<const nn::PatchesConfig*>(&embed) == nullptr;
  infer::FeatureSettings out{
      data.input.value_or(has_frames ? infer::InputKind::audio : infer::InputKind::image),
      data.image, data.audio};
  out.complete(embed, "data");
  if (out.kind == infer::InputKind::audio && (data.augment.flip || data.augment.crop_padding > 0))
    fail(ErrorKind::spec, "data.augment", "given for sounds; expected images");
  return out;
}

void for_each_row(const std::string& path, LabelFormat format, const Visit& visit) {
  LabelData table;
  table.format = format;
  for_each_record(table, path, visit);
}

std::vector<std::string> read_label_file(const std::string& path) {
  std::vector<std::string> labels;
  if (const auto numbers = read_idx_labels(path)) {
    for (const int64_t number : *numbers) labels.push_back(std::to_string(number));
    return labels;
  }
  DataLines lines(path);
  for (std::string_view line; !lines.only_blank_left() && lines.next(line);) {
    if (is_blank(line))
      fail(ErrorKind::file, "data", "{}: an empty line; expected a label on every line",
           lines.where());
    labels.emplace_back(line);
  }
  return labels;
}

}  // namespace tessera::train
