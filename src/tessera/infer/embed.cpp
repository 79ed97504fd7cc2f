#include "tessera/infer/embed.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/infer/sequence.h"

namespace tessera::infer {
namespace {

constexpr int64_t kTokensPerCall = 4096;
constexpr double kLeastLength = 1e-12;  // a vector of zeros stays one

/// The first tokens of a text, which are those of the prompt and what stands before it.
int64_t tokens_of_prompt(const text::Tokenizer& tokenizer, const EmbedOptions& options) {
  if (options.prompt.empty() || options.include_prompt) return 0;
  const auto ids = tokenizer.encode(options.prompt, {.parse_special = options.parse_special});
  const bool ends = !ids.empty() && tokenizer.is_special(ids.back());
  return static_cast<int64_t>(ids.size()) - (ends ? 1 : 0);
}

/// Ids of a text, cut so that what stands around it, `around` tokens, remains; none where even that
/// leaves no room.
struct TextIds {
  std::vector<int64_t> ids;
  bool cut = false;
};
TextIds ids_of(const text::Tokenizer& tokenizer,
               const std::string& text,
               bool parse_special,
               int64_t limit,
               int64_t around) {
  auto inner = tokenizer.encode(text, {.add_special = false, .parse_special = parse_special});
  const bool cut = limit > 0 && static_cast<int64_t>(inner.size()) + around > limit;
  if (cut) inner.resize(static_cast<size_t>(std::max<int64_t>(0, limit - around)));
  const auto whole = tokenizer.surround(inner);
  return {{whole.begin(), whole.end()}, cut};
}

/// The vector of rows [count, d], in double: the order of a sum must not show.
void pool(const float* rows, int64_t count, int64_t d, const EmbedOptions& options, float* vector) {
  std::vector<double> v(static_cast<size_t>(d), 0);
  const auto read = [&](int64_t row, const auto& join) {
    for (int64_t c = 0; c < d; ++c) join(v[static_cast<size_t>(c)], rows[row * d + c]);
  };
  const auto copy = [](double& to, float x) { to = x; };
  switch (options.pooling) {
    case Pooling::mean:
      for (int64_t t = 0; t < count; ++t) read(t, [](double& to, float x) { to += x; });
      for (double& x : v) x /= static_cast<double>(count);
      break;
    case Pooling::cls:
      read(0, copy);
      break;
    case Pooling::max:
      read(0, copy);
      for (int64_t t = 1; t < count; ++t)
        read(t, [](double& to, float x) { to = x > to || std::isnan(x) ? x : to; });
      break;
    case Pooling::last:
      read(count - 1, copy);
      break;
  }
  double length = 1;
  if (options.normalize)
    length =
        std::max(kLeastLength, std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)));
  for (int64_t c = 0; c < d; ++c)
    vector[c] = static_cast<float>(v[static_cast<size_t>(c)] / length);
}

}  // namespace

EmbedOptions embed_options_of(const std::filesystem::path& model) {
  EmbedOptions options;
  static_cast<convert::SentenceModules&>(options) = convert::sentence_modules_of(model);
  return options;
}

EmbedTokens embed_tokens(const LoadedModel& loaded,
                         const std::vector<std::string>& texts,
                         const EmbedOptions& options) {
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "embed",
         "this model has no tokenizer; expected tokenizer.json or "
         "vocab.txt in its folder");
  const int64_t longest = loaded.model.spec().longest_sequence();
  int64_t limit = options.max_tokens;
  if (longest > 0) limit = limit == 0 ? longest : std::min(limit, longest);
  EmbedTokens out;
  if (options.pooling != Pooling::cls) out.behind = tokens_of_prompt(*loaded.tokenizer, options);
  const auto around = static_cast<int64_t>(loaded.tokenizer->surround({}).size());
  std::vector<TextIds> read(texts.size());
  parallel_in_turn(std::ssize(texts), 16, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      read[i] = ids_of(*loaded.tokenizer, options.prompt + texts[i], options.parse_special, limit,
                       around);
  });
  for (TextIds& text : read) {
    if (text.cut && limit <= around)
      fail(ErrorKind::usage, "embed", "{} tokens leave no room for a text; expected more than {}",
           limit, around);
    if (text.ids.empty())
      fail(ErrorKind::input, "embed", "text {} has no token", out.rows.size() + 1);
    out.cut += text.cut ? 1 : 0;
    out.rows.push_back(std::move(text.ids));
    if (size_of(out.rows.back()) <= out.behind)
      fail(ErrorKind::input, "embed",
           "text {} has {} tokens, of which the first {} are the prompt's and do not count "
           "(include_prompt); expected some behind them",
           out.rows.size(), out.rows.back().size(), out.behind);
  }
  return out;
}

Tensor embed_rows(const LoadedModel& loaded,
                  const std::vector<std::vector<int64_t>>& rows,
                  const EmbedOptions& options,
                  int64_t behind) {
  const model::ModelSpec& spec = loaded.model.spec();
  if (spec.encoder)
    fail(ErrorKind::usage, "embed", "this model is an {}; expected an encoder or a decoder",
         model::name_of(spec.arch));
  const at::NoGradGuard no_gradients;
  const int64_t d = spec.width_out();
  const Tensor vectors_RD = at::empty({std::ssize(rows), d}, at::kFloat);
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    for (int64_t tokens = 0; end < rows.size() && tokens < kTokensPerCall; ++end)
      tokens += size_of(rows[end]);
    const nn::Batch batch = nn::Batch::of({rows.begin() + static_cast<std::ptrdiff_t>(begin),
                                           rows.begin() + static_cast<std::ptrdiff_t>(end)});
    model::ForwardOptions call;
    call.cancel = options.cancel;
    const Tensor hidden_ND = loaded.model.hidden(batch, call).to(at::kCPU, at::kFloat).contiguous();
    const auto* hidden = hidden_ND.const_data_ptr<float>();
    float* vectors = vectors_RD.data_ptr<float>() + static_cast<int64_t>(begin) * d;
    parallel_for(static_cast<int64_t>(end - begin), 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const nn::Segment& s = batch.segments[static_cast<size_t>(i)];
        pool(hidden + (s.begin + behind) * d, s.length - behind, d, options, vectors + i * d);
      }
    });
    begin = end;
  }
  return vectors_RD;
}

Embeddings embed(const LoadedModel& loaded,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options) {
  const EmbedTokens read = embed_tokens(loaded, texts, options);
  Embeddings out{.vectors_RD = embed_rows(loaded, read.rows, options, read.behind),
                 .tokens = {},
                 .cut = read.cut};
  for (const auto& row : read.rows) out.tokens.push_back(size_of(row));
  return out;
}

}  // namespace tessera::infer
