#include "tessera/retrieve/rag.h"

#include <algorithm>
#include <cmath>

#include "tessera/infer/encoders/classify.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/retrieve/citations.h"

namespace tessera::retrieve {
namespace {

constexpr int64_t kWider = 4;  // a reranker chooses among so many times the passages

std::unique_ptr<infer::LoadedModel> reranker_of(const std::string& path,
                                                const convert::LoadOptions& loading) {
  if (path.empty()) return nullptr;
  auto loaded = std::make_unique<infer::LoadedModel>(infer::load_model(path, loading));
  const auto* const head =
      dynamic_cast<const nn::ClassifierConfig*>(loaded->model.spec().head.config.get());
  if (infer::classification_task_of(*loaded) != infer::ClassificationTask::texts ||
      head == nullptr || head->n_labels != 1)
    fail(ErrorKind::usage, path,
         "it is no reranker; expected a cross-encoder (a classifier with one output)");
  return loaded;
}

}  // namespace

spec::Json AugmentedPrompt::sources(std::string_view answer) const {
  const std::vector<size_t> named = cited(answer, hits.size());
  spec::Json out = spec::Json::array();
  for (size_t i = 0; i < hits.size(); ++i)
    out.push_back({{"number", i + 1},
                   {"source", hits[i].where},
                   {"score", hits[i].score},
                   {"named", std::find(named.begin(), named.end(), i + 1) != named.end()}});
  return out;
}

RagPipeline::RagPipeline(const AskerOptions& options)
    : retriever_(options.index, options.model, options.loading),
      reranker_(reranker_of(options.reranker, options.loading)) {}

RagPipeline::~RagPipeline() = default;

AugmentedPrompt RagPipeline::ask(const std::string& question,
                                 const text::Tokenizer& tokenizer,
                                 const PassageBudget& room,
                                 const CancelToken* cancel) const {
  AugmentedPrompt out;
  out.hits = retriever_.find(question, room.passages * (reranker_ ? kWider : 1), cancel);
  if (reranker_) {
    std::vector<infer::ClassifierPair> pairs;
    for (const Hit& hit : out.hits) pairs.push_back({question, hit.text});
    infer::ClassifyOptions how;
    how.cancel = cancel;
    const auto judged = infer::classify_texts(*reranker_, pairs, how);
    for (size_t i = 0; i < judged.size(); ++i)
      out.hits[i].score = 1 / (1 + std::exp(-judged[i].logits[0]));
    std::stable_sort(out.hits.begin(), out.hits.end(),
                     [](const Hit& a, const Hit& b) { return a.score > b.score; });
    out.hits.resize(std::min(out.hits.size(), static_cast<size_t>(room.passages)));
  }
  std::vector<Source> sources;
  for (const Hit& hit : out.hits) sources.push_back({hit.where, hit.text});
  PromptWithPassages asked = augment_prompt(question, sources, room.tokens, tokenizer);
  out.hits.resize(asked.passages);
  out.prompt = std::move(asked.prompt);
  return out;
}

}  // namespace tessera::retrieve
