#include "tessera/serve/http.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tessera::serve::http_test {
namespace {

using Stage = RequestReader::Stage;

constexpr std::string_view kPost =
    "POST /v1/completions?x=1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Content-Length: 11\r\n\r\n{\"a\": true}";

/// The status that bytes are refused with, 0 = a request.
int status_of(const std::string& bytes, const Limits& limits = {}) {
  RequestReader reader(limits);
  try {
    reader.put(bytes);
  } catch (const ApiError& error) {
    return error.status();
  }
  return reader.stage() == Stage::done ? 0 : -1;
}

TEST(RequestReader, ARequestIsTheSameHoweverItIsCut) {
  for (size_t cut = 0; cut <= kPost.size(); ++cut) {
    RequestReader reader(Limits{});
    reader.put(kPost.substr(0, cut));
    EXPECT_EQ(reader.stage() == Stage::done, cut == kPost.size());
    ASSERT_EQ(reader.put(kPost.substr(cut)), Stage::done) << cut;
    const HttpRequest request = reader.take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/completions");
    EXPECT_EQ(request.query, "x=1");
    EXPECT_EQ(request.header("content-type"), "application/json");
    EXPECT_EQ(request.body, "{\"a\": true}");
    EXPECT_TRUE(request.keep_alive);
    EXPECT_FALSE(reader.begun());
  }
}

TEST(RequestReader, ChunksByteByByteAndTheRequestBehind) {
  const std::string bytes =
      "POST /a%20b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4;x=y\r\nabcd\r\n1\r\ne\r\n0\r\n\r\n"
      "GET /next HTTP/1.0\r\n\r\n";
  RequestReader reader(Limits{});
  std::vector<HttpRequest> requests;
  for (const char c : bytes)
    if (reader.put({&c, 1}) == Stage::done) requests.push_back(reader.take());
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].path, "/a b");
  EXPECT_EQ(requests[0].body, "abcde");
  EXPECT_EQ(requests[1].path, "/next");
  EXPECT_FALSE(requests[1].keep_alive);
  // both at once
  RequestReader whole(Limits{});
  ASSERT_EQ(whole.put(bytes), Stage::done);
  EXPECT_EQ(whole.take().body, "abcde");
  ASSERT_EQ(whole.put(""), Stage::done);
  EXPECT_EQ(whole.take().path, "/next");
}

TEST(RequestReader, WhatOthersWouldReadInAnotherWayIsRefused) {
  const std::string head = "POST / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400) << "no Host";
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n"), 400) << "folded";
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nA: b\x01\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Transfer-Encoding: gzip\r\n\r\n"), 501);
  EXPECT_EQ(status_of(head + "Transfer-Encoding: chunked, gzip\r\n\r\n"), 501);
  EXPECT_EQ(status_of(head + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Content-Length: 99999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status_of(head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"), 400);
  EXPECT_EQ(status_of(head + "Expect: 200-ok\r\n\r\n"), 417);
  EXPECT_EQ(status_of(head + "Content-Encoding: gzip\r\n\r\n"), 415);
  EXPECT_EQ(status_of("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/3.0\r\nHost: x\r\n\r\n"), 505);
  EXPECT_EQ(status_of("\x16\x03\x01\x02\r\n\r\n"), 400) << "TLS";
}

// each limit holds at its value, and is exceeded by one more
TEST(RequestReader, LimitsAreExact) {
  Limits limits;
  limits.body_bytes = 100;
  const auto with_body = [&](size_t n) {
    return status_of("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(n) +
                         "\r\n\r\n" + std::string(n, 'x'),
                     limits);
  };
  EXPECT_EQ(with_body(100), 0);
  EXPECT_EQ(with_body(101), 413);
  const auto chunked = [&](size_t n) {
    return status_of("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                         fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", n, std::string(n, 'x')),
                     limits);
  };
  EXPECT_EQ(chunked(100), 0);
  EXPECT_EQ(chunked(101), 413);
  const auto with_fields = [&](size_t n) {
    std::string fields;
    for (size_t i = 1; i < n; ++i) fields += fmt::format("a{}: b\r\n", i);
    return status_of("GET / HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n", limits);
  };
  EXPECT_EQ(with_fields(limits.fields), 0);
  EXPECT_EQ(with_fields(limits.fields + 1), 431);
  const auto with_path = [&](size_t n) {
    return status_of("GET /" + std::string(n, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n", limits);
  };
  EXPECT_EQ(with_path(limits.target_bytes - 100), 0);
  EXPECT_EQ(with_path(limits.target_bytes + 100), 414);
  const auto with_head = [&](size_t n) {
    return status_of("GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(n, 'x') + "\r\n\r\n", limits);
  };
  EXPECT_EQ(with_head(limits.head_bytes - 100), 0);
  EXPECT_EQ(with_head(limits.head_bytes), 431);
  // without an end in sight
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(20'000, 'x')), 431);
  EXPECT_EQ(status_of("GET /" + std::string(5000, 'x')), 414);
}

TEST(RequestReader, AClientMayWaitToBeAskedForItsBody) {
  RequestReader reader(Limits{});
  reader.put("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_TRUE(reader.wants_continue());
  EXPECT_FALSE(reader.wants_continue());
  EXPECT_EQ(reader.put("ab"), Stage::done);
}

TEST(AnswerHead, NothingFromOutsideEndsALine) {
  const HttpRequest request;
  const std::string head =
      answer_head(request, 200, "text/plain", 3, {{"X-Request-Id", "a\r\nSet-Cookie: b"}}, true);
  EXPECT_EQ(head.find("\r\nSet-Cookie"), std::string::npos);
  EXPECT_TRUE(
      head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
}

}  // namespace
}  // namespace tessera::serve::http_test
