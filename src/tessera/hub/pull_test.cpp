// Downloads over the loopback: what is written, what is asked for, and every way in which it goes
// wrong.
#include "tessera/hub/pull.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/find_model.h"
#include "tessera/hub/testing_hub.h"

namespace tessera::hub::pull_test {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::HubFile;
using test::HubReply;
using test::HubRequest;
using testing::HasSubstr;

std::string noise(size_t bytes, uint32_t seed = 7) {
  std::string out(bytes, '\0');
  for (char& c : out) {
    seed = seed * 1664525u + 1013904223u;
    c = static_cast<char>(seed >> 24);
  }
  return out;
}

class Pull : public testing::Test {
 protected:
  static std::vector<HubFile> usual_files() {
    return {{"config.json", "{\"model_type\": \"x\"}\n"},
            {"model.safetensors", noise(300'000), true},
            {"1_Pooling/deep/config.json", "{}"}};
  }
  explicit Pull(std::vector<HubFile> files = usual_files()) : hub_(std::move(files)) {
    options_.hub.cache = folder_ / "hub";
    options_.hub.endpoint = hub_.endpoint();
    options_.first_wait = 0.01;
    options_.stall_seconds = 5;
  }
  fs::path repo() const { return options_.hub.cache / "models--org--name"; }
  fs::path snapshot() const { return repo() / "snapshots" / hub_.commit(); }
  fs::path blob(const std::string& path) const { return repo() / "blobs" / hub_.file(path).hash(); }
  Pulled pull(const std::string& name = "org/name") {
    return hub::pull(*parse_model_name(name), options_);
  }
  /// Every file of the hub is there as it is on the hub, and nothing else.
  void expect_whole() const {
    EXPECT_EQ(read_text_file(repo() / "refs/main"), hub_.commit());
    size_t blobs = 0;
    for (const auto& entry : fs::directory_iterator(repo() / "blobs")) {
      EXPECT_EQ(entry.path().extension(), "") << entry.path();
      ++blobs;
    }
    EXPECT_EQ(blobs, hub_.files().size());
    EXPECT_EQ(snapshot_files(options_.hub.cache, snapshot()).size(), hub_.files().size());
    for (const HubFile& file : hub_.files())
      EXPECT_EQ(read_text_file(snapshot() / file.path), file.content) << file.path;
  }
  /// Nobody would take what is there for the model.
  void expect_invisible() const {
    EXPECT_FALSE(fs::exists(repo() / "refs/main"));
    EXPECT_FALSE(fs::exists(snapshot()));
    expect_error(ErrorKind::file, "`tessera pull org/name`",
                 [&] { find_model("org/name", options_.hub.cache); });
  }
  /// Faults of the first answer of the store.
  void first_of_the_store(const std::function<void(HubReply&)>& change) {
    hub_.faults([change](const HubRequest& request, HubReply& reply) {
      if (request.store && request.times == 0) change(reply);
    });
  }

  const test::TemporaryFolder folder_;
  test::Hub hub_;
  PullOptions options_;
};

TEST_F(Pull, WritesTheLayoutOfTheCache) {
  const Pulled pulled = pull();
  EXPECT_EQ(pulled.commit, hub_.commit());
  EXPECT_EQ(pulled.snapshot, snapshot());
  EXPECT_EQ(pulled.files, 3u);
  EXPECT_EQ(pulled.bytes, 300'000u + 20 + 2);
  EXPECT_EQ(pulled.downloaded, pulled.bytes);
  expect_whole();
  EXPECT_EQ(fs::read_symlink(snapshot() / "config.json").string(),
            "../../blobs/" + hub_.file("config.json").hash());
  EXPECT_EQ(fs::read_symlink(snapshot() / "1_Pooling/deep/config.json").string(),
            "../../../../blobs/" + hub_.file("1_Pooling/deep/config.json").hash());
  EXPECT_EQ(hub_.file("model.safetensors").hash().size(), 64u);
  EXPECT_EQ(hub_.file("config.json").hash().size(), 40u);
  EXPECT_THAT(read_text_file(options_.hub.cache / "CACHEDIR.TAG"),
              testing::StartsWith("Signature: 8a477f597d28d172789f06886806bc55"));
  for (const HubFile& file : hub_.files())
    EXPECT_TRUE(
        fs::exists(options_.hub.cache / ".locks/models--org--name" / (file.hash() + ".lock")));
  EXPECT_EQ(find_model("org/name", options_.hub.cache).path, snapshot().string());
}

TEST_F(Pull, ASecondTimeDownloadsNothing) {
  pull();
  const size_t before = hub_.requests().size();
  EXPECT_EQ(pull().downloaded, 0u);
  EXPECT_EQ(hub_.requests().size(), before + 1) << "the list alone";
  expect_whole();
  // a blob of another length is no blob
  std::ofstream(blob("config.json")) << "x";
  EXPECT_EQ(pull().downloaded, hub_.file("config.json").content.size());
  expect_whole();
}

TEST_F(Pull, RevisionsHaveReferencesOfTheirOwn) {
  pull("org/name@refs/pr/1");
  EXPECT_EQ(read_text_file(repo() / "refs/refs/pr/1"), hub_.commit());
  EXPECT_FALSE(fs::exists(repo() / "refs/main"));
  EXPECT_EQ(find_model("org/name@refs/pr/1", options_.hub.cache).path, snapshot().string());
  // a commit needs none
  fs::remove_all(repo());
  pull("org/name@" + hub_.commit());
  EXPECT_TRUE(fs::is_empty(repo() / "refs"));
  EXPECT_EQ(find_model("org/name@0123456789", options_.hub.cache).path, snapshot().string());
  expect_error(ErrorKind::file, "no revision v9", [&] { pull("org/name@v9"); });
}

TEST_F(Pull, FilesThatAreAddedLaterJoinTheSnapshot) {
  options_.wanted.include = {"*.json"};
  EXPECT_EQ(pull().files, 2u);
  EXPECT_FALSE(fs::exists(snapshot() / "model.safetensors"));
  options_.wanted.include = {"*.safetensors"};
  EXPECT_EQ(pull().downloaded, 300'000u);
  expect_whole();
  options_.wanted.include = {"*.gguf"};
  expect_error(ErrorKind::usage, "no file fits --include \"*.gguf\"", [&] { pull(); });
}

TEST_F(Pull, ACutConnectionGoesOnWhereItEnded) {
  first_of_the_store([](HubReply& reply) { reply.cut = 100'000; });
  EXPECT_EQ(pull().downloaded, 300'022u) << "no byte twice";
  expect_whole();
  const auto asked = hub_.requests("/model.safetensors?signed");
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].header("range"), "");
  EXPECT_EQ(asked[1].header("range"), "bytes=100000-");
}

TEST_F(Pull, WhatIsCutAgainAndAgainGoesOnWithTheNextCall) {
  hub_.faults([](const HubRequest& request, HubReply& reply) {
    if (request.store) reply.cut = request.times == 0 ? 100'000 : 0;
  });
  options_.attempts = 3;
  expect_error(ErrorKind::file, "3 attempts; the same command resumes", [&] { pull(); });
  expect_invisible();
  const fs::path part = blob("model.safetensors").string() + ".incomplete";
  EXPECT_EQ(fs::file_size(part), 100'000u);
  hub_.faults({});
  EXPECT_EQ(pull().downloaded, 200'000u) << "the small files were there";
  expect_whole();
}

TEST_F(Pull, ASilentConnectionIsGivenUp) {
  options_.stall_seconds = 1;
  first_of_the_store([](HubReply& reply) {
    reply.stall_at = 50'000;
    reply.stall = std::chrono::seconds(20);
  });
  const auto start = std::chrono::steady_clock::now();
  pull();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  expect_whole();
  EXPECT_EQ(hub_.requests("?signed").at(1).header("range"), "bytes=50000-");
}

TEST_F(Pull, ASlowOneIsNot) {
  options_.stall_seconds = 1;
  first_of_the_store([](HubReply& reply) { reply.each_64k = std::chrono::milliseconds(500); });
  pull();
  expect_whole();
  EXPECT_EQ(hub_.requests("?signed").size(), 1u);
}

TEST_F(Pull, WhatHasAnotherHashIsNotKept) {
  hub_.faults([](const HubRequest& request, HubReply& reply) {
    if (request.store) reply.body[1234] ^= 1;
  });
  expect_error(ErrorKind::file, "model.safetensors: its hash is", [&] { pull(); });
  expect_invisible();
  EXPECT_FALSE(fs::exists(blob("model.safetensors")));
  EXPECT_FALSE(fs::exists(blob("model.safetensors").string() + ".incomplete"));
  EXPECT_EQ(hub_.requests("?signed").size(), 1u) << "another attempt would give the same";
  // git's hash of a small one
  fs::remove_all(repo());
  hub_.faults([](const HubRequest& request, HubReply& reply) {
    if (request.target.ends_with("/config.json") && reply.body.size() == 20) reply.body[3] = 'z';
  });
  expect_error(ErrorKind::file, "config.json: its hash is", [&] { pull(); });
  hub_.faults({});
  pull();
  expect_whole();
}

TEST_F(Pull, ADamagedLeftoverIsDownloadedAnew) {
  fs::create_directories(repo() / "blobs");
  const std::string part = blob("model.safetensors").string() + ".incomplete";
  std::ofstream(part) << noise(70'000, 3);
  pull();
  expect_whole();
  EXPECT_EQ(hub_.requests("?signed").at(0).header("range"), "bytes=70000-");
  // longer than the file, and as long
  for (const size_t bytes : {size_t{400'000}, size_t{300'000}}) {
    fs::remove_all(repo());
    fs::create_directories(repo() / "blobs");
    std::ofstream(part) << noise(bytes, 3);
    pull();
    expect_whole();
  }
  // whole, but for its name
  fs::remove_all(repo());
  fs::create_directories(repo() / "blobs");
  std::ofstream(part) << hub_.file("model.safetensors").content;
  EXPECT_EQ(pull().downloaded, 22u);
  expect_whole();
}

TEST_F(Pull, WrongLengthsAreRefused) {
  const auto refused = [&](const std::string& words, const std::function<void(HubReply&)>& change) {
    hub_.faults([change](const HubRequest& request, HubReply& reply) {
      if (request.store) change(reply);
    });
    expect_error(ErrorKind::file, words, [&] { pull(); });
    expect_invisible();
    EXPECT_FALSE(fs::exists(blob("model.safetensors")));
  };
  refused("has 300001 bytes; the hub's list says 300000", [](HubReply& r) { r.body += "x"; });
  refused("has 299999 bytes", [](HubReply& reply) { reply.body.pop_back(); });
  refused("sends more than the 300000 bytes", [](HubReply& reply) {
    reply.body += "x";
    reply.length = -2;
  });
  options_.attempts = 2;
  refused("the connection ended before the file did", [](HubReply& reply) {
    reply.body.clear();
    reply.length = -2;
  });
}

TEST_F(Pull, RefusalsAreOneLineAndLeaveNothing) {
  const auto refused = [&](HubReply with, const std::string& words) {
    hub_.faults([with](const HubRequest&, HubReply& reply) { reply = with; });
    const size_t before = hub_.requests().size();
    expect_error(ErrorKind::file, words, [&] { pull(); });
    EXPECT_EQ(hub_.requests().size(), before + 1) << "no second attempt";
    EXPECT_FALSE(fs::exists(options_.hub.cache)) << words;
  };
  refused(
      {401, {{"X-Error-Code", "RepoNotFound"}}, "{}"},
      "HTTP 401: there is no such model, or it is private or gated; check the name; set HF_TOKEN");
  refused({403, {{"X-Error-Code", "GatedRepo"}, {"X-Error-Message", "ask\x1b[31m first"}}, ""},
          "HTTP 403 (ask\\x1b[31m first): access is not granted; accept the conditions at ");
  refused({404, {}, ""}, "HTTP 404: not there");
  refused({410, {}, ""}, "HTTP 410");
  refused({200, {}, "<html>"}, "[pull] byte 1: invalid JSON");
  refused({200, {}, "[]"}, "the answer is an array");
  refused({200, {}, std::string(65 << 20, ' ')}, "more than 67108864 bytes");
  options_.hub.token = "secret";
  refused({401, {}, ""}, "the token that was sent is not enough");
}

TEST_F(Pull, AFileThatIsNotThereEndsIt) {
  hub_.faults([](const HubRequest& request, HubReply& reply) {
    if (request.store) reply = {404, {}, ""};
  });
  expect_error(ErrorKind::file, "org/name: model.safetensors: HTTP 404", [&] { pull(); });
  expect_invisible();
}

TEST_F(Pull, BusyServersAreAskedAgain) {
  for (const int status : {429, 500, 502, 503, 504, 408}) {
    fs::remove_all(options_.hub.cache);
    std::atomic<int> failures{0};
    hub_.faults([&](const HubRequest& request, HubReply& reply) {
      // the list, and a file
      if ((request.target.starts_with("/api") && failures == 0) ||
          (request.store && failures == 1)) {
        ++failures;
        reply = {status, {}, "busy"};
      }
    });
    pull();
    expect_whole();
    EXPECT_EQ(failures, 2) << status;
  }
  options_.attempts = 3;
  fs::remove_all(options_.hub.cache);
  hub_.faults([](const HubRequest&, HubReply& reply) { reply = {500, {}, ""}; });
  expect_error(ErrorKind::file, "HTTP 500; 3 attempts", [&] { pull(); });
}

TEST_F(Pull, RetryAfterIsKept) {
  std::atomic<int> asked{0};
  std::string seconds = "1";
  hub_.faults([&](const HubRequest& request, HubReply& reply) {
    if (request.store && asked++ == 0) reply = {429, {{"Retry-After", seconds}}, ""};
  });
  const auto start = std::chrono::steady_clock::now();
  pull();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_EQ(asked, 2);
  fs::remove_all(options_.hub.cache);
  asked = 0;
  seconds = "86400";
  expect_error(ErrorKind::file, "the server asks to wait 86400 s", [&] { pull(); });
}

TEST_F(Pull, ARangeThatIsRefusedOrIgnoredBeginsAnew) {
  const auto resumed = [&](const test::Hub::Fault& fault) {
    fs::remove_all(options_.hub.cache);
    fs::create_directories(repo() / "blobs");
    std::ofstream(blob("model.safetensors").string() + ".incomplete")
        << hub_.file("model.safetensors").content.substr(0, 1000);
    hub_.faults(fault);
    return pull();
  };
  const auto ranged = [](const HubRequest& request) {
    return request.store && !request.header("range").empty();
  };
  EXPECT_EQ(resumed([&](const HubRequest& request, HubReply& reply) {
              if (ranged(request)) reply = {416, {}, ""};
            }).downloaded,
            300'022u);
  expect_whole();
  const std::string whole = hub_.file("model.safetensors").content;
  EXPECT_EQ(resumed([&](const HubRequest& request, HubReply& reply) {
              if (ranged(request)) reply = {200, {}, whole};
            }).downloaded,
            300'022u);
  expect_whole();
  EXPECT_EQ(resumed({}).downloaded, 299'022u);
  expect_whole();
  // another range than was asked for
  expect_error(ErrorKind::file, "sends the range \"bytes 0-299999/300000\"; expected bytes 1000-",
               [&] {
                 resumed([&](const HubRequest& request, HubReply& reply) {
                   if (ranged(request))
                     reply = {206, {{"Content-Range", "bytes 0-299999/300000"}}, whole};
                 });
               });
}

TEST_F(Pull, AnotherCommitIsRefused) {
  hub_.faults([](const HubRequest& request, HubReply& reply) {
    if (request.target.ends_with("/config.json"))
      reply.headers["X-Repo-Commit"] = std::string(40, 'f');
  });
  expect_error(ErrorKind::file, "sends commit ffff", [&] { pull(); });
  expect_invisible();
}

TEST_F(Pull, TheTokenGoesToTheEndpointAlone) {
  options_.hub.token = "secret";
  pull();
  size_t hub = 0, store = 0;
  for (const HubRequest& request : hub_.requests()) {
    EXPECT_EQ(request.header("authorization"), request.store ? "" : "Bearer secret")
        << request.target;
    ++(request.store ? store : hub);
  }
  EXPECT_EQ(store, 1u);
  EXPECT_EQ(hub, 4u);
  // a redirect within the endpoint keeps it, and back from elsewhere nobody has learnt it
  fs::remove_all(options_.hub.cache);
  hub_.faults([&](const HubRequest& request, HubReply& reply) {
    if (!request.store && request.target.starts_with("/api") &&
        request.target.find("moved") == std::string::npos)
      reply = {307, {{"Location", request.target + "&moved=1"}}, ""};
    else if (request.target.starts_with("/api"))
      reply.body = hub_.listing().dump(), reply.status = 200;
  });
  pull();
  expect_whole();
  EXPECT_EQ(hub_.requests("moved").at(0).header("authorization"), "Bearer secret");
}

/// As the hub answers for a file in Xet storage: headers for clients of the Xet protocol, and a
/// redirect to the bridge, which serves the same bytes over HTTP.
class PullFromXet : public Pull {
 protected:
  PullFromXet() {
    options_.hub.token = "secret";
    hub_.faults([this](const HubRequest& request, HubReply& reply) { as_xet(request, reply); });
  }

  void as_xet(const HubRequest& request, HubReply& reply) const {
    if (request.target.starts_with("/api")) {
      spec::Json listing = hub_.listing();
      listing["siblings"][1]["xetHash"] = kXetHash;
      reply.body = listing.dump();
    } else if (reply.status == 302) {
      reply.headers["X-Xet-Hash"] = kXetHash;
      reply.headers["Link"] =
          fmt::format(R"(<{0}/api/models/org/name/xet-read-token/{1}>; rel="xet-auth", )"
                      R"(<{0}/reconstruction/{2}>; rel="xet-reconstruction-info")",
                      hub_.endpoint(), hub_.commit(), kXetHash);
      reply.headers["Location"] = fmt::format(
          "{}{}?X-Amz-Expires=3600&X-Amz-Signature={}&response-content-disposition=inline%3B+"
          "filename%3D%22model.safetensors%22%3B&X-Xet-Cas-Uid=public&try={}",
          hub_.store(), kBridge, std::string(1500, 'f'), request.times);
      reply.body = "Found. Redirecting";
    } else if (request.store && request.target.starts_with(kBridge)) {
      reply = at_the_bridge(request);
    }
  }
  HubReply at_the_bridge(const HubRequest& request) const {
    const std::string content = hub_.file("model.safetensors").content,
                      range = request.header("range");
    const size_t begin = range.empty() ? 0 : std::stoul(range.substr(6));
    HubReply reply{range.empty() ? 200 : 206,
                   {{"ETag", fmt::format("\"{}\"", kXetHash)}, {"Accept-Ranges", "bytes"}},
                   content.substr(begin)};
    if (!range.empty())
      reply.headers["Content-Range"] =
          fmt::format("bytes {}-{}/{}", begin, content.size() - 1, content.size());
    return reply;
  }

  static constexpr const char* kXetHash =
      "9e1a7f0c55d24b1f8a3c6e2d4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a6978";
  static constexpr const char* kBridge = "/xet-bridge-us/64f1/2bd8";
};

TEST_F(PullFromXet, FilesComeOverHttpAndTheTokenStaysWithTheHub) {
  EXPECT_EQ(pull().downloaded, 300'022u);
  expect_whole();
  const auto bridged = hub_.requests(kBridge);
  ASSERT_EQ(bridged.size(), 1u);
  EXPECT_TRUE(bridged[0].store);
  for (const HubRequest& request : hub_.requests()) {
    EXPECT_EQ(request.header("authorization"), request.store ? "" : "Bearer secret")
        << request.target;
    // nothing of the Xet protocol is requested
    EXPECT_EQ(request.target.find("xet-read-token"), std::string::npos);
    EXPECT_EQ(request.target.find("reconstruction"), std::string::npos);
  }
}

TEST_F(PullFromXet, ACutDownloadGoesOnAtANewAddress) {
  hub_.faults([this](const HubRequest& request, HubReply& reply) {
    as_xet(request, reply);
    if (request.store && request.header("range").empty()) reply.cut = 131'072;
  });
  EXPECT_EQ(pull().downloaded, 300'022u);
  expect_whole();
  const auto bridged = hub_.requests(kBridge);
  ASSERT_EQ(bridged.size(), 2u);
  EXPECT_EQ(bridged[1].header("range"), "bytes=131072-");
  // addresses are signed for an hour: each attempt asks the hub for one
  EXPECT_NE(bridged[0].target, bridged[1].target);
}

TEST_F(PullFromXet, OtherBytesAreNotKept) {
  hub_.faults([this](const HubRequest& request, HubReply& reply) {
    as_xet(request, reply);
    if (request.store) reply.body[1000] ^= 1;
  });
  expect_error(ErrorKind::file, "its hash is ", [&] { pull(); });
  expect_invisible();
}

TEST_F(Pull, RedirectsEndSomewhereOnTheWeb) {
  const auto refused = [&](const std::string& to, const std::string& words) {
    hub_.faults([to](const HubRequest&, HubReply& reply) {
      reply = {302, {{"Location", to}}, ""};
    });
    expect_error(ErrorKind::file, words, [&] { pull(); });
  };
  refused("file:///etc/passwd", "a redirect to \"file:///etc/passwd\"");
  refused("ftp://127.0.0.1/x", "a redirect to \"ftp://");
  refused("http://user:word@127.0.0.1/", "a redirect to ");
  refused("/again", "more than 5 redirects");
  EXPECT_FALSE(fs::exists(options_.hub.cache));
}

TEST_F(Pull, ATokenIsNotSentUnencrypted) {
  options_.hub.token = "secret";
  for (const char* endpoint : {"http://hub.example.org", "http://127.example.org"}) {
    options_.hub.endpoint = endpoint;
    expect_error(ErrorKind::usage, "would get the token unencrypted", [&] { pull(); });
  }
  options_.hub.endpoint = "file:///tmp";
  expect_error(ErrorKind::usage, "HF_ENDPOINT is \"file:///tmp\"", [&] { pull(); });
  options_.hub.endpoint = "huggingface";
  expect_error(ErrorKind::usage, "HF_ENDPOINT is", [&] { pull(); });
  options_.hub.offline = true;
  expect_error(ErrorKind::usage, "HF_HUB_OFFLINE is set", [&] { pull(); });
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(Pull, AHostThatWasNeverReachedIsTriedTwice) {
  options_.attempts = 6;
  options_.hub.endpoint = "http://127.0.0.1:1";
  std::vector<std::string> said;
  options_.progress = [&](const PullProgress& progress) {
    EXPECT_EQ(progress.files, 0u);
    said.push_back(progress.waiting);
  };
  expect_error(ErrorKind::file, "2 attempts", [&] { pull(); });
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("again in"));
  EXPECT_FALSE(fs::exists(options_.hub.cache));
}

TEST_F(Pull, TwoAtOnceDownloadEveryFileOnce) {
  hub_.faults([](const HubRequest& request, HubReply& reply) {
    if (request.store) reply.each_64k = std::chrono::milliseconds(100);
  });
  std::atomic<uint64_t> downloaded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { downloaded += pull().downloaded; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(downloaded, 300'022u);
  EXPECT_EQ(hub_.requests("?signed").size(), 1u);
  expect_whole();
  for (const auto& entry : fs::directory_iterator(repo()))
    EXPECT_EQ(entry.path().extension(), "") << entry.path();
}

TEST_F(Pull, WhatIsStoppedGoesOn) {
  CancelToken cancel;
  options_.cancel = &cancel;
  first_of_the_store([](HubReply& reply) {
    reply.stall_at = 131'072;
    reply.stall = std::chrono::seconds(20);
  });
  std::vector<PullProgress> seen;
  options_.progress = [&](const PullProgress& progress) {
    seen.push_back(progress);
    if (progress.bytes_done >= 131'072 + 22) cancel.request(2);
  };
  const auto start = std::chrono::steady_clock::now();
  expect_error(ErrorKind::cancelled, "stopped on request; the same command resumes",
               [&] { pull(); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  expect_invisible();
  EXPECT_EQ(seen.back().bytes, 300'022u);
  const fs::path part = blob("model.safetensors").string() + ".incomplete";
  EXPECT_EQ(fs::file_size(part), 131'072u);
  cancel.reset();
  options_.progress = {};
  EXPECT_EQ(pull().downloaded, 300'000u - 131'072u);
  expect_whole();
}

/// A process that is killed in the middle, and the next one.
TEST_F(Pull, WhatIsKilledGoesOn) {
  first_of_the_store([](HubReply& reply) {
    reply.stall_at = 196'608;
    reply.stall = std::chrono::seconds(20);
  });
  const pid_t child = fork();
  if (child == 0) {
    try {
      pull();
    } catch (...) {
    }
    _exit(0);
  }
  const fs::path part = blob("model.safetensors").string() + ".incomplete";
  std::error_code none;
  for (int i = 0; i < 1000 && (!fs::exists(part) || fs::file_size(part, none) < 196'608); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  expect_invisible();
  EXPECT_EQ(fs::file_size(part), 196'608u);
  hub_.faults({});
  pull();
  expect_whole();
  EXPECT_EQ(hub_.requests("?signed").at(1).header("range"), "bytes=196608-");
}

TEST_F(Pull, ADiskWithoutRoomIsSaidFirst) {
  hub_.faults([&](const HubRequest& request, HubReply& reply) {
    if (!request.target.starts_with("/api")) return;
    spec::Json listing = hub_.listing();
    listing["siblings"][1]["size"] = int64_t{1} << 49;
    listing["siblings"][1]["lfs"]["size"] = int64_t{1} << 49;
    reply.body = listing.dump();
  });
  expect_error(ErrorKind::resource, "563 TB to download, and ", [&] { pull(); });
  EXPECT_FALSE(fs::exists(options_.hub.cache));
  EXPECT_EQ(hub_.requests().size(), 1u);
}

TEST_F(Pull, AFullDiskIsSaid) {
  const test::SmallFiles small(100'000);
  expect_error(ErrorKind::resource, "cannot write: File too large", [&] { pull(); });
  expect_invisible();
}

TEST_F(Pull, LinksOutOfTheCacheAreNotFollowed) {
  fs::create_directories(folder_ / "elsewhere");
  const auto refused = [&](const fs::path& link) {
    fs::remove_all(options_.hub.cache);
    fs::create_directories(link.parent_path());
    fs::create_directory_symlink(folder_ / "elsewhere", link);
    expect_error(ErrorKind::file, "is a link or a file; expected a folder of the cache",
                 [&] { pull(); });
    EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere")) << link;
  };
  refused(repo());
  refused(repo() / "blobs");
  refused(repo() / "snapshots");
  refused(snapshot());
  refused(repo() / "refs");
  refused(options_.hub.cache / ".locks");
  // a folder within the snapshot, of a file that is added
  fs::remove_all(options_.hub.cache);
  fs::create_directories(snapshot());
  fs::create_directory_symlink(folder_ / "elsewhere", snapshot() / "1_Pooling");
  expect_error(ErrorKind::file, "1_Pooling: is a link", [&] { pull(); });
  EXPECT_TRUE(fs::is_empty(folder_ / "elsewhere"));
  // what is downloaded into
  fs::remove_all(options_.hub.cache);
  fs::create_directories(repo() / "blobs");
  const std::string victim = folder_.write("victim", "mine");
  fs::create_symlink(victim, blob("model.safetensors").string() + ".incomplete");
  expect_error(ErrorKind::resource, "cannot create", [&] { pull(); });
  EXPECT_EQ(read_text_file(victim), "mine");
}

TEST_F(Pull, HostilePathsWriteNothing) {
  for (const char* path : {"../x", "/etc/x", "a/../../x", "a//b", "", ".", "a\\b", "a\nb"}) {
    hub_.faults([&, path](const HubRequest& request, HubReply& reply) {
      if (!request.target.starts_with("/api")) return;
      spec::Json listing = hub_.listing();
      listing["siblings"][0]["rfilename"] = path;
      reply.body = listing.dump();
    });
    expect_error(ErrorKind::file, "a file is called", [&] { pull(); });
  }
  EXPECT_FALSE(fs::exists(options_.hub.cache));
}

// --- encryption ---------------------------------------------------------------------------------

/// `openssl s_server` that gives the files of a folder.
class TlsServer {
 public:
  explicit TlsServer(const test::TemporaryFolder& folder) : folder_(folder) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ::bind(listener, reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    ::close(listener);
    port_ = std::to_string(ntohs(address.sin_port));
  }
  bool start() {
    const std::string at = "cd '" + folder_.path().string() + "' && ";
    if (std::system((at + "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem "
                          "-days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
                          ">openssl.txt 2>&1")
                        .c_str()) != 0)
      return false;
    child_ = fork();
    if (child_ == 0) {
      if (chdir(folder_.path().c_str()) != 0) _exit(1);
      freopen("server.txt", "w", stdout);
      freopen("/dev/null", "w", stderr);
      execlp("openssl", "openssl", "s_server", "-WWW", "-accept", ("127.0.0.1:" + port_).c_str(),
             "-cert", "cert.pem", "-key", "key.pem", nullptr);
      _exit(1);
    }
    for (int i = 0; i < 500; ++i) {
      std::error_code none;
      if (fs::exists(folder_ / "server.txt") &&
          read_text_file(folder_ / "server.txt").find("ACCEPT") != std::string::npos)
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  ~TlsServer() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  const std::string& port() const { return port_; }

 private:
  const test::TemporaryFolder& folder_;
  std::string port_;
  pid_t child_ = -1;
};

TEST_F(Pull, CertificatesAreVerified) {
  const test::TemporaryFolder site;
  for (const HubFile& file : hub_.files())
    site.write("org/name/resolve/" + hub_.commit() + "/" + file.path, file.content);
  site.write("api/models/org/name/revision/main?blobs=true", hub_.listing().dump());
  TlsServer server(site);
  if (!server.start()) GTEST_SKIP() << "no openssl";
  options_.hub.endpoint = "https://localhost:" + server.port();
  expect_error(ErrorKind::file, "certificate", [&] { pull(); });
  EXPECT_FALSE(fs::exists(options_.hub.cache));
  setenv("SSL_CERT_FILE", (site / "cert.pem").c_str(), 1);
  EXPECT_EQ(pull().files, 3u);
  expect_whole();
  // of another host
  fs::remove_all(options_.hub.cache);
  options_.hub.endpoint = "https://127.0.0.1:" + server.port();
  expect_error(ErrorKind::file, "127.0.0.1", [&] { pull(); });
  unsetenv("SSL_CERT_FILE");
}

// --- settings -----------------------------------------------------------------------------------

/// Variables of the environment, put back in the end.
class Environment {
 public:
  void set(const char* name, const std::string& value) {
    const char* before = std::getenv(name);
    before_.emplace_back(name, before == nullptr ? "\x01" : before);
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    for (auto one = before_.rbegin(); one != before_.rend(); ++one)
      if (one->second == "\x01")
        unsetenv(one->first);
      else
        setenv(one->first, one->second.c_str(), 1);
  }

 private:
  std::vector<std::pair<const char*, std::string>> before_;
};

TEST(HubSettings, ComeFromTheEnvironment) {
  const test::TemporaryFolder folder;
  Environment environment;
  for (const char* name :
       {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_ENDPOINT",
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"})
    environment.set(name, "");
  environment.set("HOME", folder.path().string());
  EXPECT_EQ(cache_folder(), folder / ".cache/huggingface/hub");
  environment.set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(cache_folder(), "/x/huggingface/hub");
  environment.set("HF_HOME", "~/models");
  EXPECT_EQ(cache_folder(), folder / "models/hub");
  EXPECT_EQ(settings_of_environment().token, "");
  EXPECT_EQ(settings_of_environment().endpoint, "https://huggingface.co");
  EXPECT_FALSE(settings_of_environment().offline);
  folder.write("models/token", " hf_file\n");
  EXPECT_EQ(settings_of_environment().token, "hf_file");
  environment.set("HF_TOKEN", "hf_variable");
  EXPECT_EQ(settings_of_environment().token, "hf_variable");
  environment.set("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
  EXPECT_EQ(settings_of_environment().token, "");
  environment.set("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0");
  environment.set("HF_TOKEN", "a b");
  expect_error(ErrorKind::usage, "the token holds characters", [] { settings_of_environment(); });
  environment.set("HF_TOKEN", "");
  environment.set("HF_HUB_CACHE", "/y");
  environment.set("HF_ENDPOINT", "https://hub.example.org/");
  environment.set("HF_HUB_OFFLINE", "true");
  EXPECT_EQ(cache_folder(), "/y");
  EXPECT_EQ(settings_of_environment().endpoint, "https://hub.example.org");
  EXPECT_TRUE(settings_of_environment().offline);
}

}  // namespace
}  // namespace tessera::hub::pull_test
