// The page's files and what it reads, over loopback.
#include "tessera/model/plan.h"
#include "tessera/serve/page/page_files.h"
#include "tessera/serve/serve_testing.h"

namespace tessera::serve::page_routes_test {
namespace {

TEST(PageRoutes, FilesAreSmallOpenAndKept) {
  ServiceOptions options = options_of({"attention"});
  options.access.key = "secret";
  Running server(options);
  Client client = server.client();
  size_t bytes = 0;
  for (const PageFile& file : page_files()) {
    bytes += file.body.size();
    const Client::Reply reply = client.get(file.path);
    EXPECT_EQ(reply.status, 200) << file.path;
    EXPECT_EQ(reply.body, file.body) << file.path;
    EXPECT_EQ(reply.headers.at("Content-Type"), file.type);
    EXPECT_EQ(reply.headers.at("Content-Security-Policy"), kPagePolicy);
    const std::string tag = reply.headers.at("ETag");
    const Client::Reply again = client.get(file.path, {{"If-None-Match", tag}});
    EXPECT_EQ(again.status, 304) << file.path;
    EXPECT_EQ(again.body, "");
    EXPECT_EQ(client.get(file.path, {{"If-None-Match", "\"other\""}}).status, 200);
    // nothing from elsewhere, nothing inline
    EXPECT_EQ(file.body.find("https://"), std::string_view::npos) << file.path;
    EXPECT_EQ(file.body.find(" style="), std::string_view::npos) << file.path;
    EXPECT_EQ(file.body.find("innerHTML"), std::string_view::npos) << file.path;
  }
  EXPECT_LE(bytes, 150u * 1024);
  // it holds no data: these need the key
  EXPECT_EQ(client.get("/inspect/attention").status, 401);
  EXPECT_EQ(client.post("/token-mixing", {{"content", "a"}}).status, 401);
  // and no page from elsewhere may be made of it
  EXPECT_EQ(client.get("/", {{"Origin", "http://example.org"}}).status, 403);
}

TEST(PageRoutes, InspectionIsThePlan) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const Json found = client.get("/inspect/attention").json();
  const infer::LoadedModel model = tiny_loaded("attention");
  EXPECT_EQ(found["plan"]["parameters"], model::make_plan(model.model.spec(), 1).parameters);
  EXPECT_EQ(found["spec"], model::resolve(model.model.spec()));
  EXPECT_EQ(found["capabilities"], Json::array({"chat", "completion"}));
  EXPECT_EQ(found["chat_template"], kTemplate);
  EXPECT_EQ(client.get("/inspect/atention").code(), "model_not_found");
}

TEST(PageRoutes, MixingIsOfTheLastTokens) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const Json all = client.post("/token-mixing", {{"content", "hello_there"}}).json();
  const size_t n = all["tokens"].size();
  ASSERT_GT(n, 3u) << all.dump();
  EXPECT_EQ(all["branch"], "layers.0.mixer");
  ASSERT_EQ(all["values"].size(), n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      EXPECT_EQ(all["values"][i][j].get<double>() > 0, j <= i) << i << " " << j;
  EXPECT_FALSE(all.contains("weights"));
  EXPECT_EQ(client.post("/attention-maps", {{"content", "hello_there"}}).json(), all);
  // of attention, what each head gives each token: rows that sum to 1
  const Json heads =
      client.post("/token-mixing", {{"content", "hello_there"}, {"weights", true}}).json();
  EXPECT_EQ(heads["values"], all["values"]);
  ASSERT_GT(heads["weights"].size(), 1u);
  for (const Json& map : heads["weights"])
    for (size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += map.at(i).at(j).get<double>();
      EXPECT_NEAR(sum, 1, 1e-6 * static_cast<double>(n)) << i;
      if (i + 1 < n) EXPECT_EQ(map[i][n - 1], 0) << i;
    }
  const Json last =
      client.post("/token-mixing", {{"content", "hello_there"}, {"max_tokens", 2}}).json();
  ASSERT_EQ(last["tokens"].size(), 2u);
  EXPECT_EQ(last["tokens"][1], all["tokens"][n - 1]);
  const Client::Reply refused =
      client.post("/token-mixing", {{"content", "a"}, {"branch", "layers.99.mixer"}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "branch");
  EXPECT_EQ(client.post("/token-mixing", {{"branch", "layers.0.mixer"}}).code(),
            "missing_parameter");
}

}  // namespace
}  // namespace tessera::serve::page_routes_test
