#include "tessera/train/data/sample_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using spec::Json;

/// The name of a special token; "" for ordinary tokens.
std::string name_of(int64_t id, const text::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return std::to_string(id);
  if (id >= tokenizer->vocab_size()) return fmt::format("<{}>", id);
  const auto narrow = static_cast<int32_t>(id);
  if (!tokenizer->is_special(narrow)) return "";
  return std::string(tokenizer->token(narrow));
}

std::string token_of(int64_t id, const text::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return std::to_string(id);
  if (id >= tokenizer->vocab_size()) return fmt::format("<{}>", id);
  try {
    return std::string(tokenizer->token(static_cast<int32_t>(id)));
  } catch (const Error&) {
    return fmt::format("<{}>", id);  // an unused id of the vocabulary
  }
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// A range of adjacent positions with targets.
struct TargetRange {
  int64_t begin = 0, end = 0;  // in the document
};

std::vector<TargetRange> target_ranges(std::span<const int64_t> targets) {
  std::vector<TargetRange> out;
  for (int64_t i = 0; i < std::ssize(targets); ++i) {
    if (targets[static_cast<size_t>(i)] < 0) continue;
    if (!out.empty() && out.back().end == i)
      ++out.back().end;
    else
      out.push_back({i, i + 1});
  }
  return out;
}

Json tokens_json(std::span<const int64_t> ids, const text::Tokenizer* tokenizer) {
  Json out = {{"ids", std::vector<int64_t>(ids.begin(), ids.end())},
              {"tokens", Json::array()},
              {"text", shown(ids, tokenizer)}};
  for (const int64_t id : ids) out["tokens"].push_back(token_of(id, tokenizer));
  return out;
}

}  // namespace

std::string shown(std::span<const int64_t> ids, const text::Tokenizer* tokenizer) {
  std::string out;
  std::vector<int32_t> held;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : " ") + part; };
  const auto flush = [&] {
    if (!held.empty()) add(quoted(tokenizer->decode(held)));
    held.clear();
  };
  for (const int64_t id : ids) {
    const std::string name = name_of(id, tokenizer);
    if (name.empty()) {
      held.push_back(static_cast<int32_t>(id));
    } else {
      flush();
      add(name);
    }
  }
  flush();
  return out;
}

Json view_of(const PackedBatch& batch,
             size_t index,
             const text::Tokenizer* tokenizer,
             bool classes) {
  const PackedDocument& piece = batch.pieces.at(index);
  const auto first = static_cast<size_t>(piece.begin), size = static_cast<size_t>(piece.length);
  const auto ids = std::span(batch.ids).subspan(first, size),
             targets = std::span(batch.targets).subspan(first, size);
  Json out = {{"row", piece.row},
              {"reads", tokens_json(ids, tokenizer)},
              {"targets", std::vector<int64_t>(targets.begin(), targets.end())},
              {"asks", Json::array()}};
  if (!batch.features.empty()) {
    const FeatureInput& input = batch.features.at(index);
    out["reads"] = {{"input", input.sound == nullptr ? "image" : "sound"},
                    {"shape", input.shape},
                    {"tokens", piece.length}};
  }
  if (!batch.names.empty()) out["name"] = batch.names[index];
  if (!batch.sources.empty())
    out["encoder_reads"] =
        tokens_json(batch.sources[index], tokenizer == nullptr ? nullptr : &tokenizer->of_source());
  if (piece.prefix > 1) out["prefix"] = piece.prefix;
  if (!batch.labels.empty()) out["label"] = batch.labels[index];
  for (const TargetRange& range : target_ranges(targets))
    out["asks"].push_back(
        {{"from", range.begin},
         {"to", range.end - 1},
         {"text", shown(targets.subspan(static_cast<size_t>(range.begin),
                                        static_cast<size_t>(range.end - range.begin)),
                        classes ? nullptr : tokenizer)}});
  return out;
}

std::vector<std::string> lines_of(const PackedBatch& batch,
                                  size_t index,
                                  const text::Tokenizer* tokenizer,
                                  bool classes) {
  const Json view = view_of(batch, index, tokenizer, classes);
  std::vector<std::string> out;
  const auto add = [&](const char* what, const Json& tokens) {
    out.push_back(fmt::format("  {:<14}{} tokens: {}", what, tokens["ids"].size(),
                              tokens["text"].get<std::string>()));
  };
  if (view.contains("name")) out.push_back("  " + view["name"].get<std::string>());
  if (view.contains("encoder_reads")) add("encoder reads", view["encoder_reads"]);
  if (batch.features.empty())
    add("reads", view["reads"]);
  else
    out.push_back(fmt::format("  {:<14}{} tokens: {} [{}]", "reads", batch.pieces.at(index).length,
                              view["reads"]["input"].get<std::string>(),
                              fmt::join(batch.features.at(index).shape, ", ")));
  if (view.contains("prefix"))
    out.push_back(
        fmt::format("  {:<14}the first {} tokens", "given", view["prefix"].get<int64_t>()));
  if (view.contains("label"))
    out.push_back(fmt::format("  {:<14}{}", "label", fmt::join(batch.labels[index], ", ")));
  else if (view["asks"].empty())
    out.push_back(fmt::format("  {:<14}nothing", "asks"));
  for (const Json& range : view["asks"])
    out.push_back(fmt::format(
        "  {:<14}at {}: {}", "asks",
        range["from"] == range["to"]
            ? fmt::format("{}", range["from"].get<int64_t>())
            : fmt::format("{} to {}", range["from"].get<int64_t>(), range["to"].get<int64_t>()),
        range["text"].get<std::string>()));
  return out;
}

}  // namespace tessera::train
