// A browser for tests: Chromium by the WebDriver protocol, plain JSON over loopback.
#pragma once

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/serve/serve_testing.h"

namespace tessera::serve {

/// A program of the search path; "" where there is none.
inline std::string program_named(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::string folders = path == nullptr ? "" : path;
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::filesystem::path file =
        std::filesystem::path(folders.substr(begin, end - begin)) / name;
    if (::access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return "";
}

/// "chromedriver", on a port that it finds itself, as long as the object lives.
class DriverProgram {
 public:
  DriverProgram() {
    const std::string program = program_named("chromedriver");
    if (program.empty()) return;
    int ends[2];
    if (::pipe(ends) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    std::string port = "--port=0";
    char* arguments[] = {const_cast<char*>(program.c_str()), port.data(), nullptr};
    const int error = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error != 0) pid_ = 0;
    // "ChromeDriver was started successfully on port 41234."
    const std::string before = "successfully on port ";
    std::string said;
    for (char c = 0; error == 0 && port_ == 0 && ::read(ends[0], &c, 1) == 1; said += c)
      if (const size_t at = said.find(before); c == '.' && at != std::string::npos)
        port_ = std::atoi(said.c_str() + at + before.size());
    out_ = ends[0];
  }
  ~DriverProgram() {
    if (pid_ > 0) {
      ::kill(pid_, SIGTERM);
      ::waitpid(pid_, nullptr, 0);
    }
    if (out_ >= 0) ::close(out_);
  }
  DriverProgram(const DriverProgram&) = delete;
  DriverProgram& operator=(const DriverProgram&) = delete;
  /// 0 where there is no such program.
  int port() const { return port_; }

 private:
  pid_t pid_ = 0;
  int port_ = 0, out_ = -1;
};

/// A window of its own.
class Browser {
 public:
  struct Look {
    int width = 1280, height = 900;
    bool dark = false, reduced_motion = false;
  };

  explicit Browser(int driver_port) : port_(driver_port) {
    const Json options = {
        {"args",
         {"--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--js-flags=--expose-gc",
          "--enable-precise-memory-info",
          "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--window-size=1280,900"}}};
    const Json made =
        call("POST", "/session",
             {{"capabilities",
               {{"alwaysMatch",
                 {{"browserName", "chrome"},
                  {"goog:chromeOptions", options},
                  {"goog:loggingPrefs", {{"browser", "ALL"}, {"performance", "ALL"}}}}}}}});
    session_ = "/session/" + made.at("sessionId").get<std::string>();
    look({});
  }
  ~Browser() {
    try {
      call("DELETE", session_);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  void look(const Look& look) {
    devtools("Emulation.setDeviceMetricsOverride", {{"width", look.width},
                                                    {"height", look.height},
                                                    {"deviceScaleFactor", 1},
                                                    {"mobile", false}});
    devtools("Emulation.setEmulatedMedia",
             {{"features",
               {{{"name", "prefers-color-scheme"}, {"value", look.dark ? "dark" : "light"}},
                {{"name", "prefers-reduced-motion"},
                 {"value", look.reduced_motion ? "reduce" : "no-preference"}}}}});
  }
  void open(const std::string& address) { call("POST", session_ + "/url", {{"url", address}}); }

  /// What a function body returns.
  Json run(const std::string& script, const std::vector<Json>& arguments = {}) {
    return call("POST", session_ + "/execute/sync", {{"script", script}, {"args", arguments}});
  }
  /// Waits until it returns something that holds, which is given back.
  Json until(const std::string& script, const std::vector<Json>& arguments = {}) {
    for (int i = 0; i < 1500; ++i) {
      const Json value =
          run("const test = () => {" + script + "}; return test() || null;", arguments);
      if (!value.is_null()) return value;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "never came to hold: " << script << "\n"
                  << run("return document.getElementById('problem').textContent").dump() << "\n"
                  << run("return document.body.innerText.slice(0, 2000)").dump();
    return nullptr;
  }
  std::string element(const std::string& selector) {
    const Json found =
        call("POST", session_ + "/element", {{"using", "css selector"}, {"value", selector}});
    return found.begin().value();
  }
  void click(const std::string& selector) {
    call("POST", session_ + "/element/" + element(selector) + "/click", Json::object());
  }
  void type(const std::string& selector, const std::string& text) {
    call("POST", session_ + "/element/" + element(selector) + "/value", {{"text", text}});
  }
  std::string text(const std::string& selector) {
    return run("return document.querySelector(arguments[0])?.textContent ?? null", {selector})
        .get<std::string>();
  }
  /// A key of the keyboard, by its code point of WebDriver.
  void press(const std::string& key) {
    Json steps = Json::array();
    for (const char* step : {"keyDown", "keyUp"}) steps.push_back({{"type", step}, {"value", key}});
    const Json keyboard = {{"type", "key"}, {"id", "keyboard"}, {"actions", steps}};
    call("POST", session_ + "/actions", {{"actions", Json::array({keyboard})}});
  }
  /// As a screen reader has them.
  std::string role(const std::string& id) {
    return call("GET", session_ + "/element/" + id + "/computedrole");
  }
  std::string label(const std::string& id) {
    return call("GET", session_ + "/element/" + id + "/computedlabel");
  }
  /// What has come since the last call.
  Json log(const std::string& kind) { return call("POST", session_ + "/se/log", {{"type", kind}}); }
  Json devtools(const std::string& command, const Json& parameters) {
    return call("POST", session_ + "/goog/cdp/execute", {{"cmd", command}, {"params", parameters}});
  }

 private:
  Json call(const std::string& method, const std::string& path, const Json& body = nullptr) {
    Client client(port_);
    const Client::Reply reply =
        client.ask(method, path, body.is_null() ? std::string() : body.dump());
    Json value = reply.json()["value"];
    if (reply.status != 200)
      throw std::runtime_error(path + ": " + value.value("error", "") + ": " +
                               value.value("message", "").substr(0, 500));
    return value;
  }

  int port_;
  std::string session_;
};

}  // namespace tessera::serve
