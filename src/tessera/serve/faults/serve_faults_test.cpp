// Memory that lacks for a moment: whatever large allocation fails, one request fails with it and
// nothing else does.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <new>

#include "tessera/serve/serve_testing.h"

namespace {

std::atomic<int64_t> left{-1};     // large allocations until one fails; none below 0
thread_local bool spared = false;  // the threads of the test itself

}  // namespace

// Small ones do not fail: JSON values make room for a list of their parts while they are destroyed,
// where an exception ends a program.
constexpr size_t kLeast = 1024;

void* operator new(size_t size) {
  if (size >= kLeast && !spared && left.load(std::memory_order_relaxed) >= 0 &&
      left.fetch_sub(1) == 0)
    throw std::bad_alloc();
  if (void* const memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
// a sanitizer has one of its own, whose memory is not for std::free()
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace tessera::serve::faults_test {
namespace {

/// What a client has been told: the text, or nothing where that failed and was said to have.
struct Told {
  std::optional<std::string> text;
  std::string how;
};

Told ask(int port, Json body) {
  spared = true;
  try {
    Client client(port);
    const Client::Reply reply = client.post("/v1/completions", body);
    if (reply.status != 200) return {{}, fmt::format("status {}", reply.status)};
    if (!body["stream"].get<bool>())
      return {reply.json()["choices"][0]["text"].get<std::string>(), "whole"};
    const Events events(reply.body);
    if (events.done) return {events.text(), "stream"};
    EXPECT_NE(reply.body.find("\"error\""), std::string::npos) << reply.body;
    return {{}, "an event"};
  } catch (const boost::system::system_error& error) {
    return {{}, error.what()};  // the connection was given up
  }
}

/// Ends the program where an answer never comes: a thread that waits for it cannot be ended.
Told within_a_minute(std::future<Told>& told, int64_t n) {
  if (told.wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
    fmt::print(stderr, "allocation {}: a request has no answer\n", n);
    std::_Exit(1);
  }
  return told.get();
}

TEST(ServiceFaults, AnAllocationThatFailsCostsOneRequest) {
  spared = true;
  for (const std::string kind : {"attention", "mamba2"}) {
    SCOPED_TRACE(kind);
    Running server(options_of({kind}));
    const Json whole = {{"prompt", "abcdefgh"}, {"max_tokens", 8}, {"seed", 3}, {"stream", false}},
               stream = {{"prompt", "hgfe"},
                         {"max_tokens", 12},
                         {"seed", 5},
                         {"stream", true},
                         {"logprobs", 2}};
    const std::string want_whole = ask(server.port(), whole).text.value(),
                      want_stream = ask(server.port(), stream).text.value();
    int64_t fired = 0, failed = 0;
    for (int64_t n = 0; n < 60; ++n) {
      SCOPED_TRACE(n);
      left = n;
      auto first = std::async(std::launch::async, ask, server.port(), whole),
           second = std::async(std::launch::async, ask, server.port(), stream);
      const Told a = within_a_minute(first, n), b = within_a_minute(second, n);
      const bool reached = left.exchange(-1) < 0;
      fired += reached ? 1 : 0;
      failed += (a.text ? 0 : 1) + (b.text ? 0 : 1);
      EXPECT_TRUE(a.text || b.text) << a.how << ", " << b.how;
      EXPECT_EQ(a.text.value_or(want_whole), want_whole);
      EXPECT_EQ(b.text.value_or(want_stream), want_stream);
      EXPECT_TRUE(reached || (a.text && b.text)) << a.how << ", " << b.how;
    }
    // and all is as before
    EXPECT_EQ(ask(server.port(), whole).text, want_whole);
    EXPECT_EQ(ask(server.port(), stream).text, want_stream);
    EXPECT_GT(fired, 5);
    EXPECT_GT(failed, 2);
    EXPECT_LE(failed, fired);
    EXPECT_TRUE(server.comes([&] {
      return server.client().get("/metrics").body.find("\ntessera_requests_running 0\n") !=
             std::string::npos;
    }));
  }
}

// there are no files for more connections: those that are there go on, others are sent away
TEST(ServiceFaults, WithoutFilesThoseThatAreThereGoOn) {
  Running server(options_of({"attention"}));
  Client kept = server.client();
  EXPECT_EQ(kept.get("/health").status, 200);
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const int first_free = ::open("/dev/null", O_RDONLY);
  ASSERT_GE(first_free, 0);
  ::close(first_free);
  rlimit few = usual;
  few.rlim_cur = static_cast<rlim_t>(first_free) + 21;  // of both sides, that are one process
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> many;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int fd = 0; (fd = ::socket(AF_INET, SOCK_STREAM, 0)) >= 0; many.push_back(fd))
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_GE(many.size(), 10u);
  EXPECT_EQ(kept.post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}}).status, 200);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  for (const int fd : many) ::close(fd);
  EXPECT_EQ(server.client().get("/health").status, 200);
}

}  // namespace
}  // namespace tessera::serve::faults_test
