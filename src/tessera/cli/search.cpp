#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/retrieve/retriever.h"

namespace tessera::cli {
namespace {

struct SearchArgs {
  std::string index, question, model;
  int64_t top = 5;
  bool json = false;
  int threads = 0;
};

int search(SearchArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const retrieve::Retriever retriever(o.index, o.model);
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
  app.add_option("index", o->index, "a folder that `tessera index` made")->required();
  app.add_option("question", o->question, "what passages are looked for")->required();
  app.add_option("--top", o->top, "how many passages")->capture_default_str()->check(positive());
  app.add_option("--with", o->model,
                 "where the model lies that made the index; default: where it lay then");
  app.add_flag("--json", o->json, "source, score and text of each as JSON");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  examples(app, {"tessera search docs.index 'how is a model quantised?'",
                 "tessera search docs.index 'key rotation' --top 1 --json"});
  return [o] { return search(*o); };
}

}  // namespace tessera::cli
