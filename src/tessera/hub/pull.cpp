#include "tessera/hub/pull.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <mutex>
#include <set>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <thread>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/partial_path.h"
#include "tessera/base/sha256.h"
#include "tessera/format/file_source.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/git_hash.h"
#include "tessera/hub/http.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kPullWhere = "pull";
constexpr auto kTick = std::chrono::milliseconds(100);
/// Left free on the disk: other programs write as well.
constexpr uint64_t kSpare = uint64_t{64} << 20;

std::string printed_path(const fs::path& path) {
  return format::printable(path.string());
}

/// An open file, closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void give_up(const fs::path& path, std::string_view step) {
  fail(ErrorKind::resource, kPullWhere, "{}: cannot {}: {}", printed_path(path), step,
       std::strerror(errno));
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    fail(ErrorKind::resource, kPullWhere, "{}: cannot create: {}", printed_path(path),
         error.message());
}

/// What workers share.
struct Work {
  const ModelName& name;
  const PullOptions& options;
  std::string commit;
  fs::path repo;                  // models--org--name
  fs::path locks;                 // .locks/models--org--name
  std::vector<RemoteFile> blobs;  // each once

  std::atomic<size_t> next{0}, done{0};
  std::atomic<uint64_t> bytes_done{0}, downloaded{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> reached{false};  // some connection was made
  std::atomic<int> active{0};
  std::mutex mutex = {};  // of what follows
  std::string waiting = {};
  std::exception_ptr error = {};

  bool stopped() const {
    return stop.load() || (options.cancel != nullptr && options.cancel->requested());
  }
  void check() const {
    if (stopped())
      fail(ErrorKind::cancelled, kPullWhere, "stopped on request; the same command resumes");
  }
  void say(const std::string& why) {
    const std::lock_guard lock(mutex);
    waiting = why;
    // before the downloads no other thread reports
    if (active == 0 && !why.empty() && options.progress) options.progress({.waiting = why});
  }
  /// Throws when it is stopped meanwhile.
  void wait(double seconds, const std::string& why) {
    say(why);
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < end) {
      check();
      std::this_thread::sleep_for(
          std::min<std::chrono::duration<double>>(kTick, end - Clock::now()));
    }
    say("");
  }
};

/// Held by one process at a time; of a file that another process may remove.
class BlobLock {
 public:
  BlobLock(const fs::path& path, Work& work) {
    bool said = false;
    for (;; std::this_thread::sleep_for(kTick)) {
      work.check();
      Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
      if (file.get() < 0) give_up(path, "lock");
      if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
        struct stat named {
        }, open{};
        if (::stat(path.c_str(), &named) != 0 || ::fstat(file.get(), &open) != 0 ||
            named.st_ino != open.st_ino || named.st_dev != open.st_dev)
          continue;
        held_ = std::move(file);
        if (said) work.say("");
        return;
      }
      if (errno != EWOULDBLOCK && errno != EINTR) give_up(path, "lock");
      if (!said) work.say("waiting for another process that downloads the same file");
      said = true;
    }
  }

 private:
  Descriptor held_;
};

bool is_transient(long status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

/// What an answer without the file means, for the one who reads it.
std::string why_refused(const HttpAnswer& answer, const ModelName& name, const HubSettings& hub) {
  const std::string code = answer.header("x-error-code");
  std::string said = format::printable(answer.header("x-error-message"), 200);
  if (!said.empty()) said = " (" + said + ")";
  const std::string token = hub.token.empty()
                                ? "set HF_TOKEN, or put a token into the file token of HF_HOME"
                                : "the token that was sent is not enough";
  switch (answer.status) {
    case 401:
      return fmt::format(
          "HTTP 401{}: there is no such model, or it is private or gated; check the "
          "name; {}",
          said, token);
    case 403:
      return fmt::format("HTTP 403{}: access is not granted; accept the conditions at {}/{}; {}",
                         said, hub.endpoint, name.repo, token);
    case 404:
      if (code == "RevisionNotFound")
        return fmt::format("HTTP 404{}: no revision {}", said, name.revision);
      return fmt::format("HTTP 404{}: not there; check the name", said);
    default:
      return fmt::format("HTTP {}{}", answer.status, said);
  }
}

/// Attempts of one request: how long to wait, and when to end.
class Attempts {
 public:
  Attempts(Work& work, std::string what) : work_(work), what_(std::move(what)) {}

  /// There was progress since the last failure.
  void progress() { failures_ = 0; }

  /// After an answer that is none: waits, or throws.
  void after(const HttpAnswer& answer) {
    work_.check();
    const PullOptions& options = work_.options;
    const bool again = answer.error.empty() ? is_transient(answer.status) : answer.may_pass;
    const std::string why =
        answer.error.empty() ? why_refused(answer, work_.name, options.hub) : answer.error;
    if (!again) fail(ErrorKind::file, kPullWhere, "{}: {}", what_, why);
    if (!answer.unreachable) work_.reached = true;
    // a host that was never there is rather a wrong address, or no network, than a passing fault
    const int attempts = work_.reached ? options.attempts : std::min(options.attempts, 2);
    if (++failures_ >= attempts)
      fail(ErrorKind::file, kPullWhere, "{}: {}; {} attempts; the same command resumes", what_, why,
           failures_);
    double seconds = options.first_wait * static_cast<double>(1 << std::min(failures_ - 1, 6));
    if (const double asked = retry_after(answer); asked >= 0) {
      if (asked > options.longest_wait)
        fail(ErrorKind::file, kPullWhere,
             "{}: {}; the server asks to wait {:.0f} s; try again then", what_, why, asked);
      seconds = asked;
    }
    work_.wait(seconds, fmt::format("{}: {}; again in {:.0f} s", what_, why, seconds));
  }

 private:
  /// Seconds; -1 = the server does not say, or by a date.
  static double retry_after(const HttpAnswer& answer) {
    const std::string text = answer.header("retry-after");
    if (text.empty() || text.size() > 9 ||
        text.find_first_not_of("0123456789") != std::string::npos)
      return -1;
    return std::strtod(text.c_str(), nullptr);
  }

  Work& work_;
  std::string what_;
  int failures_ = 0;
};

HttpSettings http_settings(const PullOptions& options) {
  HttpSettings settings;
  settings.endpoint = options.hub.endpoint;
  settings.token = options.hub.token;
  settings.stall_seconds = options.stall_seconds;
  settings.connect_seconds = options.stall_seconds;
  settings.cancel = options.cancel;
  return settings;
}

Listing ask_for_listing(HttpClient& http, Work& work) {
  const std::string url =
      fmt::format("{}/api/models/{}/revision/{}?blobs=true", work.options.hub.endpoint,
                  url_encoded(work.name.repo, true), url_encoded(work.name.revision, false));
  Attempts attempts(work, work.name.text());
  for (;;) {
    const HttpAnswer answer = http.get({url});
    if (answer.error.empty() && answer.status == 200) {
      work.reached = true;
      return read_listing(answer.body, kPullWhere);
    }
    attempts.after(answer);
  }
}

/// The file that a blob is downloaded into.
class Incomplete {
 public:
  explicit Incomplete(fs::path path) : path_(std::move(path)) {
    file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (file_.get() < 0) give_up(path_, "create");
    struct stat info {};
    if (::fstat(file_.get(), &info) != 0 || !S_ISREG(info.st_mode)) give_up(path_, "open");
    bytes_ = static_cast<uint64_t>(info.st_size);
  }
  uint64_t bytes() const { return bytes_; }
  const fs::path& path() const { return path_; }

  void clear() {
    if (::ftruncate(file_.get(), 0) != 0) give_up(path_, "truncate");
    bytes_ = 0;
  }
  /// False with errno.
  bool append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n =
          ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(bytes_));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      bytes_ += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }
  void become(const fs::path& target) {
    if (::fsync(file_.get()) != 0) give_up(path_, "flush");
    if (::rename(path_.c_str(), target.c_str()) != 0) give_up(path_, "rename");
  }
  void remove() noexcept { ::unlink(path_.c_str()); }

 private:
  fs::path path_;
  Descriptor file_;
  uint64_t bytes_ = 0;
};

std::string hash_of(const fs::path& path, const RemoteFile& file) {
  return file.hash.size() == 64 ? sha256_file(path) : git_blob_hash_of(path);
}

bool is_there(const fs::path& blob, const RemoteFile& file) {
  std::error_code error;
  return fs::is_regular_file(blob, error) && fs::file_size(blob, error) == file.bytes && !error;
}

/// First byte of "bytes 100-199/200"; nothing where it is another range, or of another length.
bool is_range(const std::string& text, uint64_t begin, uint64_t bytes) {
  return text == fmt::format("bytes {}-{}/{}", begin, bytes - 1, bytes);
}

/// One file, under its lock.
class BlobDownload {
 public:
  BlobDownload(HttpClient& http, Work& work, const RemoteFile& file)
      : http_(http),
        work_(work),
        file_(file),
        what_(fmt::format("{}: {}", work.name.repo, format::printable(file.path))),
        part_(work.repo / "blobs" / (file.hash + ".incomplete")) {}

  void run() {
    bool began_before = part_.bytes() > 0;
    if (part_.bytes() > file_.bytes) restart();
    count(part_.bytes());
    for (;;) {
      transfer();
      const std::string hash = hash_of(part_.path(), file_);
      if (hash == file_.hash) break;
      // what an earlier call left may be the fault
      const bool again = std::exchange(began_before, false);
      restart();
      if (again) continue;
      part_.remove();
      fail(ErrorKind::file, kPullWhere,
           "{}: its hash is {}; the hub's list says {}; it was not kept", what_, hash, file_.hash);
    }
    part_.become(work_.repo / "blobs" / file_.hash);
  }

 private:
  void count(uint64_t bytes) {
    counted_ += bytes;
    work_.bytes_done += bytes;
  }
  void restart() {
    part_.clear();
    work_.bytes_done -= std::exchange(counted_, 0);
  }

  /// Until all bytes are there.
  void transfer() {
    Attempts attempts(work_, what_);
    bool range_refused = false;
    while (part_.bytes() < file_.bytes || file_.bytes == 0) {
      work_.check();
      const uint64_t before = part_.bytes();
      std::string wrong;
      bool full_disk = false;
      int disk_error = 0;
      HttpRequest request;
      request.url = fmt::format("{}/{}/resolve/{}/{}", work_.options.hub.endpoint,
                                url_encoded(work_.name.repo, true), work_.commit,
                                url_encoded(file_.path, true));
      request.begin = before;
      request.accept = [&](const HttpAnswer& answer) {
        wrong = what_is_wrong(answer, before);
        return wrong.empty();
      };
      request.sink = [&](std::span<const std::byte> bytes) {
        if (work_.stopped()) return false;
        if (part_.bytes() + bytes.size() > file_.bytes) {
          wrong = fmt::format("sends more than the {} bytes of the hub's list", file_.bytes);
          return false;
        }
        if (!part_.append(bytes)) {
          full_disk = true;
          disk_error = errno;
          return false;
        }
        count(bytes.size());
        work_.downloaded += bytes.size();
        return true;
      };
      const HttpAnswer answer = http_.get(request);
      work_.check();
      if (full_disk) {
        errno = disk_error;
        give_up(part_.path(), "write");
      }
      if (!wrong.empty()) {
        part_.remove();
        fail(ErrorKind::file, kPullWhere, "{}: the server {}; it was not kept", what_, wrong);
      }
      if (file_.bytes == 0 && answer.error.empty() && answer.status == 200) return;
      if (part_.bytes() > before) attempts.progress();
      if (part_.bytes() == file_.bytes && file_.bytes > 0) return;
      if (answer.error.empty() && answer.status == 416 && before > 0 && !range_refused) {
        range_refused = true;
        restart();
        continue;
      }
      attempts.after(as_failure(answer));
    }
  }

  /// A body that ends early without an error of the transfer.
  static HttpAnswer as_failure(HttpAnswer answer) {
    if (answer.error.empty() && (answer.status == 200 || answer.status == 206)) {
      answer.error = "the connection ended before the file did";
      answer.may_pass = true;
    }
    return answer;
  }

  /// Of an answer with a body, before its first byte: "" where it is as it should be. A server that
  /// knows no ranges sends all again.
  std::string what_is_wrong(const HttpAnswer& answer, uint64_t begin) {
    const std::string commit = answer.header("x-repo-commit");
    if (!commit.empty() && commit != work_.commit)
      return fmt::format("sends commit {}; asked for {}", format::printable(commit, 40),
                         work_.commit);
    if (answer.status == 206) {
      if (begin > 0 && is_range(answer.header("content-range"), begin, file_.bytes)) return "";
      return fmt::format("sends the range {}; expected bytes {}-{}/{}",
                         format::in_quotes(answer.header("content-range")), begin, file_.bytes - 1,
                         file_.bytes);
    }
    if (const std::string length = answer.header("content-length");
        !length.empty() && length != std::to_string(file_.bytes))
      return fmt::format("has {} bytes; the hub's list says {}", format::printable(length, 30),
                         file_.bytes);
    if (begin > 0) restart();
    return "";
  }

  HttpClient& http_;
  Work& work_;
  const RemoteFile& file_;
  std::string what_;
  Incomplete part_;
  uint64_t counted_ = 0;
};

void download_blobs(Work& work) {
  HttpClient http(http_settings(work.options));
  for (size_t i; (i = work.next++) < work.blobs.size() && !work.stopped();) {
    const RemoteFile& file = work.blobs[i];
    const fs::path blob = work.repo / "blobs" / file.hash;
    const BlobLock lock(work.locks / (file.hash + ".lock"), work);
    // another process may have been first
    if (is_there(blob, file))
      work.bytes_done += file.bytes;
    else
      BlobDownload(http, work, file).run();
    ++work.done;
  }
}

PullProgress progress_of(Work& work, uint64_t bytes) {
  const std::lock_guard lock(work.mutex);
  return {work.blobs.size(), work.done, bytes, work.bytes_done, work.waiting};
}

/// All workers to their ends; throws the first error of one.
void download_all(Work& work) {
  uint64_t bytes = 0;
  for (const RemoteFile& file : work.blobs) bytes += file.bytes;
  const size_t count =
      std::min<size_t>(static_cast<size_t>(std::max(1, work.options.parallel)), work.blobs.size());
  std::vector<std::thread> threads;
  work.active = static_cast<int>(count);
  const auto end_all = [&] {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  };
  for (size_t i = 0; i < count; ++i)
    threads.emplace_back([&work] {
      try {
        download_blobs(work);
      } catch (...) {
        const std::lock_guard lock(work.mutex);
        // those that stop because of it come later
        if (!work.error) work.error = std::current_exception();
        work.stop = true;
      }
      --work.active;
    });
  try {
    while (work.active > 0) {
      if (work.options.progress) work.options.progress(progress_of(work, bytes));
      std::this_thread::sleep_for(kTick);
    }
  } catch (...) {
    work.stop = true;
    end_all();
    throw;
  }
  end_all();
  if (work.error) std::rethrow_exception(work.error);
  work.check();
  if (work.options.progress) work.options.progress(progress_of(work, bytes));
}

void check_room(const Work& work) {
  uint64_t missing = 0;
  std::error_code error;
  for (const RemoteFile& file : work.blobs) {
    const fs::path part = work.repo / "blobs" / (file.hash + ".incomplete");
    const auto there = fs::file_size(part, error);
    missing += file.bytes - (error ? 0 : std::min<uint64_t>(there, file.bytes));
  }
  fs::path folder = fs::absolute(work.repo);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs disk {};
  if (missing == 0 || ::statvfs(folder.c_str(), &disk) != 0) return;
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (missing + kSpare > free)
    fail(ErrorKind::resource, kPullWhere,
         "{}: {} to download, and {} are free in {}; nothing was downloaded", work.name.text(),
         readable_bytes(missing), readable_bytes(free), printed_path(folder));
}

/// Folders of the cache, none of them a link that leads out of it.
void make_folders(const Work& work) {
  const fs::path& cache = work.options.hub.cache;
  make_folder(cache);
  for (const fs::path& folder : {work.repo, work.repo / "blobs", work.repo / "snapshots",
                                 work.repo / "refs", cache / ".locks", work.locks}) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(folder, error);
    if (fs::exists(status) && !fs::is_directory(status))
      fail(ErrorKind::file, kPullWhere, "{}: is a link or a file; expected a folder of the cache",
           printed_path(folder));
    make_folder(folder);
  }
  // programs that make backups leave such a folder out (https://bford.info/cachedir)
  const fs::path tag = cache / "CACHEDIR.TAG";
  const Descriptor file(
      ::open(tag.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  constexpr std::string_view kTag =
      "Signature: 8a477f597d28d172789f06886806bc55\n# This folder can be downloaded again.\n";
  if (file.get() >= 0 && ::write(file.get(), kTag.data(), kTag.size()) < 0) give_up(tag, "write");
}

/// The snapshot with a link for every file: at once where it is a new one, else link by link.
fs::path place_snapshot(const Work& work, const std::vector<RemoteFile>& files) {
  const fs::path target = work.repo / "snapshots" / work.commit;
  // not below snapshots, where others would take it for one
  PartialPath staged(work.repo / "snapshot", PartialPath::Kind::folder);
  for (const RemoteFile& file : files) {
    const fs::path link = staged.path() / file.path;
    make_folder(link.parent_path());
    std::string up = "../../";
    for (const char c : file.path) up += c == '/' ? "../" : "";
    std::error_code error;
    fs::create_symlink(up + "blobs/" + file.hash, link, error);
    if (error)
      fail(ErrorKind::resource, kPullWhere, "{}: cannot link: {}", printed_path(link),
           error.message());
  }
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error)) && staged.rename_to(target) == 0)
    return target;
  if (!fs::is_directory(fs::symlink_status(target, error)))
    fail(ErrorKind::file, kPullWhere, "{}: is a link or a file; expected a folder of the cache",
         printed_path(target));
  for (const RemoteFile& file : files) {
    fs::path folder = target;
    for (const fs::path& part : fs::path(file.path).parent_path()) {
      folder /= part;
      make_folder(folder);
      if (!fs::is_directory(fs::symlink_status(folder, error)))
        fail(ErrorKind::file, kPullWhere, "{}: is a link; expected a folder of the cache",
             printed_path(folder));
    }
    const fs::path link = staged.path() / file.path, at = target / file.path;
    if (::rename(link.c_str(), at.c_str()) != 0) give_up(at, "link");
  }
  return target;
}

void write_ref(const Work& work) {
  if (work.name.revision == work.commit) return;
  const fs::path target = work.repo / "refs" / work.name.revision;
  make_folder(target.parent_path());
  // not below refs, where others would take it for one
  PartialPath staged(work.repo / "ref", PartialPath::Kind::file);
  const Descriptor file(staged.open_again());
  if (file.get() < 0 ||
      ::write(file.get(), work.commit.data(), work.commit.size()) !=
          static_cast<ssize_t>(work.commit.size()) ||
      ::fsync(file.get()) != 0)
    give_up(target, "write");
  if ((errno = staged.rename_to(target)) != 0) give_up(target, "write");
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

std::string trimmed(std::string text) {
  std::erase_if(text, [](char c) { return c == '\r' || c == '\n'; });
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

std::string token_of_environment() {
  if (is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return "";
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
    if (const char* value = std::getenv(name); value != nullptr && !trimmed(value).empty())
      return trimmed(value);
  const char* named = std::getenv("HF_TOKEN_PATH");
  const fs::path file =
      named != nullptr && *named != '\0' ? fs::path(named) : home_folder() / "token";
  std::error_code error;
  constexpr size_t kMost = 65536;
  return fs::is_regular_file(file, error) ? trimmed(read_text_file(file, kMost)) : "";
}

}  // namespace

HubSettings settings_of_environment() {
  HubSettings settings;
  settings.cache = cache_folder();
  if (const char* endpoint = std::getenv("HF_ENDPOINT"); endpoint != nullptr && *endpoint != '\0')
    settings.endpoint = endpoint;
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  settings.token = token_of_environment();
  if (std::any_of(settings.token.begin(), settings.token.end(),
                  [](unsigned char c) { return c <= ' ' || c >= 0x7f; }))
    fail(ErrorKind::usage, kPullWhere,
         "the token holds characters that no token has; see HF_TOKEN");
  settings.offline = is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE");
  return settings;
}

Pulled pull(const ModelName& name, const PullOptions& options) {
  if (options.hub.offline)
    fail(ErrorKind::usage, kPullWhere, "HF_HUB_OFFLINE is set; unset it to download {}",
         name.text());
  const fs::path& cache = options.hub.cache;
  Work work{name, options, "", cache / name.folder(), cache / ".locks" / name.folder(), {}};
  HttpClient http(http_settings(options));
  const Listing listing = ask_for_listing(http, work);
  work.commit = listing.commit;
  const std::vector<RemoteFile> files = wanted_files(listing, options.wanted, name.repo);
  Pulled pulled{work.repo / "snapshots" / work.commit, work.commit, files.size(), 0, 0};
  std::set<std::string> seen;
  for (const RemoteFile& file : files) {
    pulled.bytes += file.bytes;
    if (seen.insert(file.hash).second && !is_there(work.repo / "blobs" / file.hash, file))
      work.blobs.push_back(file);
  }
  check_room(work);
  make_folders(work);
  if (!work.blobs.empty()) download_all(work);
  pulled.snapshot = place_snapshot(work, files);
  write_ref(work);
  pulled.downloaded = work.downloaded;
  return pulled;
}

}  // namespace tessera::hub
