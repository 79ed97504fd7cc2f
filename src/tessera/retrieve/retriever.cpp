#include "tessera/retrieve/retriever.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/ranking.h"
#include "tessera/base/sha256.h"
#include "tessera/infer/loading/weights_fingerprint.h"

namespace tessera::retrieve {
namespace {

constexpr size_t kTextsPerCall = 64;

/// In float32, contiguous: the bytes of an index.
format::TensorView view_of(const Tensor& vectors_RD) {
  const auto held = std::make_shared<Tensor>(vectors_RD.contiguous());
  return {
      "vectors",
      DType::f32,
      held->sizes().vec(),
      {static_cast<const std::byte*>(held->const_data_ptr()), static_cast<size_t>(held->nbytes())},
      held};
}

Tensor tensor_of(const format::TensorView& view) {
  Tensor out = at::empty(view.shape, at::kFloat);
  std::copy(view.data.begin(), view.data.end(), static_cast<std::byte*>(out.mutable_data_ptr()));
  return out;
}

}  // namespace

Embedder::Embedder(const std::string& path,
                   const infer::LoadedModel* loaded,
                   const convert::LoadOptions& loading)
    : options_(infer::embed_options_of(path)) {
  if (loaded == nullptr)
    own_ = std::make_unique<infer::LoadedModel>(
        infer::load_model(path, loading, kernels::Arithmetic::float32));
  loaded_ = loaded != nullptr ? loaded : own_.get();
  if (!loaded_->tokenizer)
    fail(ErrorKind::usage, "index", "{} has no tokenizer; expected a model that embeds texts",
         path);
  options_.normalize = options_.renormalize = true;
}

int64_t Embedder::width() const {
  return infer::embedding_width(loaded_->model.spec(), options_);
}

int64_t Embedder::longest() const {
  const int64_t model = loaded_->model.spec().longest_sequence(), said = options_.max_tokens;
  const int64_t limit = model == 0 ? said : said == 0 ? model : std::min(model, said);
  if (limit == 0) return 0;
  const text::Tokenizer& tokenizer = *loaded_->tokenizer;
  const std::string prompt = prompt_of({"passage", "document"});
  return std::max<int64_t>(1, limit - std::ssize(tokenizer.encode(prompt)));
}

std::string Embedder::print() const {
  const spec::Json said = {{"weights", infer::weights_fingerprint(loaded_->model.weights())},
                           {"pooling", infer::names_of(options_.poolings)},
                           {"passage", prompt_of({"passage", "document"})},
                           {"longest", longest()}};
  return sha256(said.dump());
}

std::string Embedder::prompt_of(std::initializer_list<const char*> names) const {
  for (const char* name : names)
    if (const auto found = options_.prompts.find(name); found != options_.prompts.end())
      return found->second;
  return options_.prompt;
}

Tensor Embedder::vectors(const std::vector<std::string>& texts,
                         const std::string& prompt,
                         const CancelToken* cancel) const {
  infer::EmbedOptions options = options_;
  options.prompt = prompt;
  options.cancel = cancel;
  return infer::embed(*loaded_, texts, options).vectors_RD;
}

Tensor Embedder::passages(const std::vector<std::string>& texts, const CancelToken* cancel) const {
  return vectors(texts, prompt_of({"passage", "document"}), cancel);
}

Tensor Embedder::question(const std::string& text, const CancelToken* cancel) const {
  return vectors({text}, prompt_of({"query"}), cancel);
}

Indexed make_index(const std::string& model,
                   const Embedder& embedder,
                   const std::vector<std::string>& files,
                   const IndexFile* before,
                   const IndexOptions& options) {
  Indexed out;
  IndexFile& index = out.index;
  index.model = model;
  index.print = embedder.print();
  index.width = embedder.width();
  index.cut = options.cut;
  if (const int64_t longest = embedder.longest(); longest > 0 && index.cut.tokens > longest)
    fail(ErrorKind::usage, "index", "passages of {} tokens; the model reads {}", index.cut.tokens,
         longest);
  const bool same = before != nullptr && before->print == index.print &&
                    before->width == index.width && before->cut.tokens == index.cut.tokens &&
                    before->cut.overlap == index.cut.overlap;
  // where the passages of a text lie that has been read before
  std::map<std::string, std::vector<int64_t>> known;
  if (same) {
    // one text may stand in several files: the passages of the first of them
    std::map<std::string, int64_t> first;
    for (int64_t file = 0; file < std::ssize(before->files); ++file)
      first.emplace(before->files[static_cast<size_t>(file)].sha256, file);
    for (int64_t i = 0; i < std::ssize(before->passages); ++i) {
      const int64_t file = before->passages[static_cast<size_t>(i)].file;
      const std::string& hash = before->files[static_cast<size_t>(file)].sha256;
      if (first.at(hash) == file) known[hash].push_back(i);
    }
  }
  std::vector<int64_t> taken;  // of each passage, the row of `before`, or -1
  for (const std::string& path : files) {
    if (options.cancel != nullptr) options.cancel->check("index");
    const std::string text = read_text_file(path);
    const auto file = std::ssize(index.files);
    index.files.push_back({path, sha256(text)});
    if (const auto found = known.find(index.files.back().sha256); found != known.end()) {
      for (const int64_t row : found->second) {
        Passage passage = before->passages[static_cast<size_t>(row)];
        passage.file = file;
        index.passages.push_back(std::move(passage));
        taken.push_back(row);
        ++out.kept;
      }
      continue;
    }
    for (const Span& place : passages_of(text, embedder.tokenizer(), index.cut)) {
      index.passages.push_back({file, place, text.substr(place.begin, place.end - place.begin)});
      taken.push_back(-1);
    }
  }
  if (index.passages.empty())
    fail(ErrorKind::input, "index", "no text in {} file{}; expected some", files.size(),
         files.size() == 1 ? "" : "s");
  Tensor all_RD = at::empty({std::ssize(index.passages), index.width}, at::kFloat);
  if (out.kept > 0) {
    const Tensor old_RD = tensor_of(before->vectors);
    for (size_t i = 0; i < taken.size(); ++i)
      if (taken[i] >= 0)
        all_RD.select(0, static_cast<int64_t>(i)).copy_(old_RD.select(0, taken[i]));
  }
  std::vector<int64_t> rows;
  std::vector<std::string> texts;
  size_t done = out.kept;
  const auto compute = [&] {
    if (rows.empty()) return;
    const Tensor some_RD = embedder.passages(texts, options.cancel);
    for (size_t i = 0; i < rows.size(); ++i)
      all_RD.select(0, rows[i]).copy_(some_RD.select(0, static_cast<int64_t>(i)));
    done += rows.size();
    if (options.progress) options.progress(done, index.passages.size());
    rows.clear();
    texts.clear();
  };
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i] >= 0) continue;
    rows.push_back(static_cast<int64_t>(i));
    texts.push_back(index.passages[i].text);
    if (rows.size() == kTextsPerCall) compute();
  }
  compute();
  index.vectors = view_of(all_RD);
  return out;
}

Retriever::Retriever(const std::filesystem::path& index,
                     const std::string& model,
                     const convert::LoadOptions& loading)
    : index_(open_index(index)),
      embedder_(model.empty() ? index_.model : model, nullptr, loading),
      vectors_RD_(tensor_of(index_.vectors)) {
  if (embedder_.print() != index_.print)
    fail(ErrorKind::usage, index.string(),
         "the embedding model is another one than {}, or embeds differently; expected that one "
         "(--with), or rebuild the index (tessera index --rebuild)",
         model.empty() ? index_.model : model);
}

std::vector<Hit> Retriever::find(const std::string& question,
                                 int64_t k,
                                 const CancelToken* cancel) const {
  const at::NoGradGuard no_gradients;
  const Tensor scores_R = vectors_RD_.mv(embedder_.question(question, cancel).select(0, 0));
  const float* scores = scores_R.const_data_ptr<float>();
  std::vector<size_t> order(index_.passages.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t n = std::min(order.size(), static_cast<size_t>(std::max<int64_t>(0, k)));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    [&](size_t a, size_t b) { return ranks_before(scores[a], a, scores[b], b); });
  if (n > 0 && std::isnan(scores[order[0]]))
    fail(ErrorKind::input, "search",
         "no similarity of the question to a passage is a number; expected a model and an index "
         "whose vectors are finite");
  std::vector<Hit> out;
  for (size_t i = 0; i < n && !std::isnan(scores[order[i]]); ++i) {
    const Passage& passage = index_.passages[order[i]];
    out.push_back({scores[order[i]], index_.source(passage), passage.text});
  }
  return out;
}

}  // namespace tessera::retrieve
