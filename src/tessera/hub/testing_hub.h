// A hub on the loopback for tests: files of one repository, and what goes wrong. Large files (LFS)
// are redirected to a second port, another origin, as the real one redirects to its store.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/sha256.h"
#include "tessera/hub/git_hash.h"
#include "tessera/spec/json.h"

namespace tessera::test {

struct HubFile {
  std::string path, content;
  bool lfs = false;
  std::string hash() const {
    return lfs ? sha256(content) : hub::git_blob_hash(std::as_bytes(std::span(content)));
  }
};

struct HubRequest {
  std::string target;                          // path and query, as they came
  std::map<std::string, std::string> headers;  // names in lower case
  bool store = false;                          // to the second port
  int times = 0;                               // how often this target was asked for before

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct HubReply {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;
  long length = -1;                       // Content-Length; -1 = the body's, -2 = none
  size_t cut = std::string::npos;         // bytes of the body before the connection ends
  size_t stall_at = std::string::npos;    // bytes of the body before it is silent
  std::chrono::milliseconds stall{0};     // length of the silence
  std::chrono::milliseconds each_64k{0};  // between pieces
};

class Hub {
 public:
  using Fault = std::function<void(const HubRequest&, HubReply&)>;

  explicit Hub(std::vector<HubFile> files, std::string repo = "org/name")
      : repo_(std::move(repo)), files_(std::move(files)) {
    for (int which = 0; which < 2; ++which) listen_on(which);
    for (int which = 0; which < 2; ++which)
      acceptors_[which] = std::thread([this, which] { accept_all(which); });
  }
  ~Hub() {
    stop_ = true;
    for (std::thread& acceptor : acceptors_) acceptor.join();
    for (std::thread& one : answering_) one.join();
    for (const int listener : listeners_) ::close(listener);
  }
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(ports_[0]); }
  std::string store() const { return "http://127.0.0.1:" + std::to_string(ports_[1]); }
  const std::string& commit() const { return commit_; }
  const std::vector<HubFile>& files() const { return files_; }
  const HubFile& file(const std::string& path) const {
    for (const HubFile& file : files_)
      if (file.path == path) return file;
    throw std::runtime_error("no file " + path);
  }

  /// Changes replies before they are sent.
  void faults(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  std::vector<HubRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  /// Of targets that hold this text.
  std::vector<HubRequest> requests(const std::string& part) const {
    std::vector<HubRequest> found;
    for (const HubRequest& request : requests())
      if (request.target.find(part) != std::string::npos) found.push_back(request);
    return found;
  }
  uint64_t sent() const { return sent_; }

  /// As the hub lists its files.
  spec::Json listing() const {
    spec::Json siblings = spec::Json::array();
    for (const HubFile& file : files_) {
      spec::Json one = {{"rfilename", file.path},
                        {"size", file.content.size()},
                        {"blobId", std::string(40, 'b')}};
      if (file.lfs)
        one["lfs"] = {{"sha256", file.hash()}, {"size", file.content.size()}, {"pointerSize", 134}};
      else
        one["blobId"] = file.hash();
      siblings.push_back(one);
    }
    return {{"id", repo_}, {"sha", commit_}, {"siblings", siblings}};
  }

 private:
  void listen_on(int which) {
    listeners_[which] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listeners_[which], reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listeners_[which], 64) != 0 ||
        ::getsockname(listeners_[which], reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port on the loopback");
    ports_[which] = ntohs(address.sin_port);
  }

  void accept_all(int which) {
    while (!stop_) {
      pollfd waiting{listeners_[which], POLLIN, 0};
      if (::poll(&waiting, 1, 50) <= 0) continue;
      const int client = ::accept4(listeners_[which], nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      const std::lock_guard lock(mutex_);
      answering_.emplace_back([this, client, which] {
        answer(client, which == 1);
        ::close(client);
      });
    }
  }

  void answer(int client, bool store) {
    std::string text;
    char buffer[4096];
    while (text.find("\r\n\r\n") == std::string::npos) {
      pollfd waiting{client, POLLIN, 0};
      if (stop_ || (::poll(&waiting, 1, 50) < 0)) return;
      if (waiting.revents == 0) continue;
      const ssize_t n = ::recv(client, buffer, sizeof(buffer), 0);
      if (n <= 0) return;
      text.append(buffer, static_cast<size_t>(n));
    }
    HubRequest request = parsed(text);
    request.store = store;
    HubReply reply = usual(request);
    Fault fault;
    {
      const std::lock_guard lock(mutex_);
      request.times = times_[request.target]++;
      requests_.push_back(request);
      fault = fault_;
    }
    if (fault) fault(request, reply);
    send(client, reply);
  }

  static HubRequest parsed(const std::string& text) {
    HubRequest request;
    const size_t space = text.find(' ');
    request.target = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
    for (size_t at = text.find("\r\n") + 2; at + 2 < text.size();) {
      const size_t end = text.find("\r\n", at), colon = text.find(": ", at);
      if (end == at || colon > end) break;
      std::string name = text.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      request.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    return request;
  }

  HubReply usual(const HubRequest& request) const {
    const std::string api = "/api/models/" + repo_ + "/revision/",
                      resolve = "/" + repo_ + "/resolve/" + commit_ + "/";
    HubReply reply;
    if (request.target.starts_with(api)) {
      const std::string revision = request.target.substr(api.size());
      if (revision == "main?blobs=true" || revision == commit_ + "?blobs=true" ||
          revision == "refs%2Fpr%2F1?blobs=true") {
        reply.body = listing().dump();
        return reply;
      }
      return {404, {{"X-Error-Code", "RevisionNotFound"}}, "{}"};
    }
    for (const HubFile& file : files_) {
      if (!request.store && request.target == resolve + file.path) {
        reply.headers["X-Repo-Commit"] = commit_;
        if (!file.lfs) return content(file, request, std::move(reply));
        reply.status = 302;
        reply.headers["X-Linked-Size"] = std::to_string(file.content.size());
        reply.headers["X-Linked-ETag"] = "\"" + file.hash() + "\"";
        reply.headers["Location"] = store() + "/" + file.path + "?signed";
        return reply;
      }
      if (request.store && request.target == "/" + file.path + "?signed")
        return content(file, request, std::move(reply));
    }
    return {404, {{"X-Error-Code", "EntryNotFound"}}, "not found"};
  }

  static HubReply content(const HubFile& file, const HubRequest& request, HubReply reply) {
    reply.headers["ETag"] = "\"" + file.hash() + "\"";
    reply.body = file.content;
    const std::string range = request.header("range");
    if (range.empty()) return reply;
    const size_t begin = std::strtoull(range.c_str() + std::string("bytes=").size(), nullptr, 10);
    if (begin >= file.content.size()) return {416, {}, ""};
    reply.status = 206;
    reply.headers["Content-Range"] = "bytes " + std::to_string(begin) + "-" +
                                     std::to_string(file.content.size() - 1) + "/" +
                                     std::to_string(file.content.size());
    reply.body = file.content.substr(begin);
    return reply;
  }

  void send(int client, const HubReply& reply) {
    std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " x\r\nConnection: close\r\n";
    for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
    if (reply.length != -2)
      head +=
          "Content-Length: " +
          std::to_string(reply.length >= 0 ? reply.length : static_cast<long>(reply.body.size())) +
          "\r\n";
    head += "\r\n";
    if (!send_all(client, head)) return;
    constexpr size_t kPiece = 65536;
    const size_t end = std::min(reply.cut, reply.body.size());
    for (size_t at = 0; at < end;) {
      size_t n = std::min(kPiece, end - at);
      if (at < reply.stall_at) n = std::min(n, reply.stall_at - at);
      if (!send_all(client, reply.body.substr(at, n))) return;
      at += n;
      sent_ += n;
      if (at == reply.stall_at) sleep(reply.stall);
      sleep(reply.each_64k);
    }
  }

  void sleep(std::chrono::milliseconds time) const {
    for (; time.count() > 0 && !stop_; time -= std::chrono::milliseconds(10))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  static bool send_all(int client, const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = ::send(client, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }

  std::string repo_, commit_ = "0123456789abcdef0123456789abcdef01234567";
  std::vector<HubFile> files_;
  int listeners_[2] = {-1, -1}, ports_[2] = {0, 0};
  std::thread acceptors_[2];
  std::vector<std::thread> answering_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> sent_{0};
  mutable std::mutex mutex_;
  Fault fault_;
  std::vector<HubRequest> requests_;
  std::map<std::string, int> times_;
};

}  // namespace tessera::test
