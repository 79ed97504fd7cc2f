#include "tessera/train/objective/contrastive/contrastive_source.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "tessera/base/sha256.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/data/label_examples.h"

namespace tessera::train {
namespace {

/// A text, its positive and its negatives, by number.
struct Contrast {
  std::vector<int64_t> texts;
  std::optional<double> score = {};
};

/// Distinct texts in the order of reading.
class Texts {
 public:
  int64_t number(std::vector<int64_t> ids) {
    const auto [known, added] = numbers_.emplace(std::move(ids), std::ssize(numbers_));
    if (added) all_.push_back(&known->first);
    return known->second;
  }
  const std::vector<int64_t>& ids(int64_t number) const {
    return *all_.at(static_cast<size_t>(number));
  }

 private:
  std::map<std::vector<int64_t>, int64_t> numbers_;
  std::vector<const std::vector<int64_t>*> all_;  // keys of a map have stable addresses
};

/// Reads examples; either all have a positive or none.
class Reader {
 public:
  Reader(const DataPlan& plan, const ContrastiveRecipe& how, const text::Tokenizer& tokenizer)
      : vocab_(plan.spec.vocab),
        length_(plan.train.length),
        data_(examples_of(plan.data.files())),
        how_(how),
        tokenizer_(tokenizer) {}

  Contrast of(const Record& record) {
    Contrast out;
    add(out, record, data_.text_key, true);
    const bool paired = add(out, record, how_.positive_key, false);
    if (!paired) out.texts.push_back(out.texts.front());
    negatives(out, record);
    if (record.values.contains(data_.score_key)) out.score = score(record);
    if (out.score && !paired)
      bad(record, fmt::format("a \"{}\", but no \"{}\"", data_.score_key, how_.positive_key));
    if (out.score && out.texts.size() > 2)
      bad(record, fmt::format("\"{}\" together with \"{}\"", data_.score_key, how_.negatives_key));
    if (out.score) return out;
    if (!paired && out.texts.size() > 2)
      bad(record, fmt::format("\"{}\", but no \"{}\"", how_.negatives_key, how_.positive_key));
    if (paired_ && *paired_ != paired)
      bad(record, fmt::format("\"{}\" is {}, which other lines {}", how_.positive_key,
                              paired ? "given" : "missing", paired ? "lack" : "have"));
    paired_ = paired;
    return out;
  }
  bool paired() const { return paired_.value_or(true); }
  int64_t cut() const { return cut_; }
  Texts& texts() { return texts_; }

 private:
  [[noreturn]] void bad(const Record& record, const std::string& what) const {
    fail(ErrorKind::file, "data",
         "{}: {}; expected \"{}\", with all or none \"{}\", a string, and \"{}\", a string or a "
         "list "
         "of them",
         record.where, what, data_.text_key, how_.positive_key, how_.negatives_key);
  }
  bool add(Contrast& out, const Record& record, const std::string& key, bool needed) {
    const auto found = record.values.find(key);
    const bool there = found != record.values.end() && !found->is_null();
    if (!there && needed) bad(record, fmt::format("\"{}\" is missing", key));
    if (!there) return false;
    // tables have empty cells for missing values
    if (!needed && record.is_table && *found == Json("")) return false;
    if (!found->is_string()) bad(record, fmt::format("\"{}\" is {}", key, found_kind(*found)));
    add_text(out, record, key, found->get<std::string>());
    return true;
  }
  void add_text(Contrast& out,
                const Record& record,
                const std::string& key,
                const std::string& text) {
    if (text.empty()) bad(record, fmt::format("\"{}\" is empty", key));
    out.texts.push_back(texts_.number(ids_of(text, record.where)));
  }
  std::vector<int64_t> ids_of(const std::string& text, const std::string& where) {
    auto inner = tokenizer_.encode(text, {.add_special = false});
    const auto around = std::ssize(tokenizer_.surround({})), room = length_ - around;
    if (room < 1)
      fail(ErrorKind::spec, "train.length",
           "{} tokens leave no room for a text between the {} that the tokenizer puts around it",
           length_, around);
    if (std::ssize(inner) > room) {
      inner.resize(static_cast<size_t>(room));
      ++cut_;
    }
    const auto whole = tokenizer_.surround(inner);
    if (whole.empty()) fail(ErrorKind::input, "data", "{}: a text has no token", where);
    for (const int32_t id : whole)
      if (id >= vocab_)
        fail(ErrorKind::input, "data", "{}: token id {}; the spec has a vocabulary of {}", where,
             id, vocab_);
    return {whole.begin(), whole.end()};
  }
  void negatives(Contrast& out, const Record& record) {
    const auto found = record.values.find(how_.negatives_key);
    if (found == record.values.end() || !found->is_array()) {
      add(out, record, how_.negatives_key, false);
      return;
    }
    for (const Json& one : *found) {
      if (!one.is_string())
        bad(record, fmt::format("\"{}\" holds {}", how_.negatives_key, found_kind(one)));
      add_text(out, record, how_.negatives_key, one.get<std::string>());
    }
  }
  double score(const Record& record) const {
    const Json& value = record.values[data_.score_key];
    double out = 0;
    if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
      if (error == std::errc() && end == text.data() + text.size() && std::isfinite(out))
        return out;
    }
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a number", record.where,
         data_.score_key,
         value.is_number() ? std::string(found_kind(value)) : value.dump().substr(0, 40));
  }

  int64_t vocab_, length_;
  LabelData data_;
  const ContrastiveRecipe& how_;
  const text::Tokenizer& tokenizer_;
  Texts texts_;
  std::optional<bool> paired_;
  int64_t cut_ = 0;
};

class Examples final : public ContrastiveSource {
 public:
  Examples(Texts texts,
           std::vector<Contrast> train,
           std::vector<Contrast> valid,
           const Reader& reader,
           int64_t seed)
      : texts_(std::move(texts)),
        train_(std::move(train)),
        valid_(std::move(valid)),
        unsupervised_(!reader.paired()),
        order_(std::ssize(train_), static_cast<uint64_t>(seed)) {
    if (unsupervised_) remark("no line has a positive: every text is its own, with other dropout");
    if (reader.cut() > 0)
      remark(fmt::format("{} texts were too long for train.length and cut", reader.cut()));
    Sha256 key;
    for (const auto* split : {&train_, &valid_}) {
      for (const Contrast& example : *split) {
        key.update(
            fmt::format("{} texts, {}\n", example.texts.size(), example.score.value_or(-1e9)));
        for (const int64_t number : example.texts) {
          const std::vector<int64_t>& ids = texts_.ids(number);
          key.update(fmt::format("{} ", ids.size()));
          key.update(std::as_bytes(std::span(ids)));
        }
      }
      key.update("end of split");
    }
    key_ = key.finish();
  }

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<const Contrast*> some;
    for (int64_t sample = first; sample < first + count; ++sample)
      some.push_back(&train_[static_cast<size_t>(order_.at(sample))]);
    return numbered(packed(some), first);
  }
  int64_t valid_samples() const override { return std::ssize(valid_); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<const Contrast*> some;
    for (const int64_t sample : samples) some.push_back(&valid_.at(static_cast<size_t>(sample)));
    PackedBatch out = packed(some);
    out.first_sample = samples.empty() ? 0 : samples.front();
    return out;
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }
  bool unsupervised() const override { return unsupervised_; }
  std::optional<double> score_of(int64_t sample) const override {
    return valid_.at(static_cast<size_t>(sample)).score;
  }

 private:
  PackedBatch packed(const std::vector<const Contrast*>& some) const {
    PackedBatch out;
    for (int64_t row = 0; row < std::ssize(some); ++row) {
      const Contrast& example = *some[static_cast<size_t>(row)];
      for (size_t i = 0; i < example.texts.size(); ++i) {
        const std::vector<int64_t>& ids = texts_.ids(example.texts[i]);
        out.pieces.push_back({row, std::ssize(out.ids), std::ssize(ids)});
        out.ids.insert(out.ids.end(), ids.begin(), ids.end());
        out.items.push_back(example.texts[i]);
        out.names.emplace_back(i == 0 ? "text" : i == 1 ? "positive" : "negative");
      }
    }
    out.targets.assign(out.ids.size(), -1);
    return out;
  }

  Texts texts_;
  std::vector<Contrast> train_, valid_;
  bool unsupervised_;
  PairOrder order_;
  std::string key_;
};

}  // namespace

LabelData examples_of(const TextData& data) {
  LabelData out;
  out.train = data.train;
  out.valid = data.valid;
  out.valid_fraction = data.valid_fraction;
  out.text_key = data.text_key;
  out.tokenizer = data.tokenizer;
  out.format = label_format(data.format);
  for (const auto* files : {&out.train, &out.valid})
    for (const std::string& file : *files) {
      const bool told =
          file.ends_with(".tsv") || file.ends_with(".csv") || file.ends_with(".jsonl");
      if (!out.format && !told)
        fail(ErrorKind::spec, "data.format",
             "\"text\" of {}; objective \"contrastive\" reads examples: expected a name that ends "
             "in "
             ".tsv, .csv or .jsonl, or format \"jsonl\"",
             file);
    }
  return out;
}

std::unique_ptr<ContrastiveSource> open_contrastive(const DataPlan& plan,
                                                    const ContrastiveRecipe& how,
                                                    const text::Tokenizer& tokenizer,
                                                    const CancelToken* cancel) {
  const LabelData data = examples_of(plan.data.files());
  Reader reader(plan, how, tokenizer);
  std::vector<Contrast> train, valid;
  const auto read = [&](const std::vector<std::string>& files, std::vector<Contrast>& to,
                        bool learns) {
    for (const std::string& file : files)
      for_each_record(data, file, [&](Record&& record) {
        if (cancel != nullptr) cancel->check("data");
        to.push_back(reader.of(record));
        if (learns && to.back().score)
          fail(ErrorKind::file, "data",
               "{}: a \"{}\" (similarity of two texts); expected such lines in data.valid "
               "alone",
               record.where, data.score_key);
      });
  };
  read(data.train, train, true);
  read(data.valid, valid, false);
  if (train.size() < 2)
    fail(ErrorKind::input, "data",
         "{} example{} to learn from; expected at least 2, each a negative of the other",
         train.size(), train.size() == 1 ? "" : "s");
  if (data.valid_fraction > 0) {
    const std::vector<bool> out = held_out(std::ssize(train), data.valid_fraction);
    std::vector<Contrast> kept;
    for (size_t i = 0; i < train.size(); ++i)
      (out[i] ? valid : kept).push_back(std::move(train[i]));
    train = std::move(kept);
  }
  return std::make_unique<Examples>(std::move(reader.texts()), std::move(train), std::move(valid),
                                    reader, plan.train.seed);
}

}  // namespace tessera::train
