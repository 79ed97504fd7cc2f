#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/retrieve/retriever.h"

namespace tessera::cli {
namespace {

struct SearchArgs {
  std::string index, question, model;
  LoadFlags loading;
  int64_t top = 5;
  bool json = false;
  int threads = 0;
};

int search(SearchArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const retrieve::Retriever retriever(o.index, o.model, o.loading.options());
  const std::vector<retrieve::Hit> hits = retriever.find(o.question, o.top, &cancel_token());
  Json list = Json::array();
  for (const retrieve::Hit& hit : hits) {
    if (o.json)
      list.push_back({{"source", hit.where}, {"score", hit.score}, {"text", hit.text}});
    else
      fmt::print("{}{}  {:.3f}\n{}{}", &hit == &hits.front() ? "" : "\n", hit.where, hit.score,
                 hit.text, hit.text.ends_with('\n') ? "" : "\n");
  }
  if (o.json) print_json(list);
  return kExitOk;
}

}  // namespace

std::function<int()> add_search(CLI::App& app) {
  auto o = std::make_shared<SearchArgs>();
  group(app, "Input");
  app.add_option("index", o->index, "index folder (tessera index)")->required();
  app.add_option("question,-p,--prompt", o->question, "query")->required();
  names_model(app.add_option("--with,-m,--model,--embedder", o->model,
                             "embedding model, if it moved since indexing"),
              o->model);
  group(app, "Output");
  app.add_option("--top,-k,--top-k", o->top, "number of results (top-k)")
      ->capture_default_str()
      ->check(positive());
  app.add_flag("--json", o->json, "source, score and text of each result as JSON");
  group(app, "Precision and performance");
  add_threads(app, o->threads);
  group(app, "Model");
  o->loading.add(app);
  examples(app, {"tessera search docs.index 'how is a model quantized?'",
                 "tessera search docs.index 'key rotation' --top 1 --json"});
  return [o] { return search(*o); };
}

}  // namespace tessera::cli
