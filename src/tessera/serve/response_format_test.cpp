#include "tessera/serve/response_format.h"

#include <gtest/gtest.h>

#include <limits>

#include "tessera/serve/metrics.h"

namespace tessera::serve::frames_test {
namespace {

TEST(Frames, LogarithmsOfCompletionsCountCharacters) {
  const std::vector<LogprobJson> tokens = {
      {.bytes = "a", .unknown = true},
      {.bytes = "\xc3\xa9", .log_p = -1, .top = {{"x", -0.5}, {"\xc3\xa9", -1}}},
      {.bytes = "b", .log_p = -std::numeric_limits<double>::infinity()}};
  const Json json = completion_logprobs(tokens, 5);
  EXPECT_EQ(json["tokens"], Json::array({"a", "\xc3\xa9", "b"}));
  EXPECT_EQ(json["token_logprobs"], Json::array({nullptr, -1.0, -9999.0}));
  EXPECT_EQ(json["text_offset"], Json::array({5, 6, 7}));
  EXPECT_EQ(json["top_logprobs"][1], (Json{{"x", -0.5}, {"\xc3\xa9", -1.0}}));
  const Json chat = chat_logprobs(tokens);
  EXPECT_EQ(chat["content"][1]["bytes"], Json::array({195, 169}));
  EXPECT_EQ(chat["content"][1]["top_logprobs"][0]["token"], "x");
}

TEST(Metrics, AsPrometheusReadsThem) {
  Metrics metrics;
  metrics.add("requests_total", 2, {{"route", "/a\"b"}, {"code", "200"}});
  metrics.observe("step_seconds", 0.002);
  metrics.observe("step_seconds", 100);
  const std::string text = metrics.text();
  const auto has = [&](const std::string& line) {
    EXPECT_NE(text.find("\n" + line + "\n"), std::string::npos) << line << "\n" << text;
  };
  has("# TYPE tessera_requests_total counter");
  has("tessera_requests_total{route=\"/a\\\"b\",code=\"200\"} 2");
  has("tessera_step_seconds_bucket{le=\"0.001\"} 0");
  has("tessera_step_seconds_bucket{le=\"0.0025\"} 1");
  has("tessera_step_seconds_bucket{le=\"10\"} 1");
  has("tessera_step_seconds_bucket{le=\"+Inf\"} 2");
  has("tessera_step_seconds_count 2");
  EXPECT_EQ(metrics.value("requests_total"), 2);
}

}  // namespace
}  // namespace tessera::serve::frames_test
