#include "tessera/base/version.h"
#include "tessera/serve/routes.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

/// OpenAPI schema of errors.
Json error_response() {
  const Json text = {{"type", "string"}}, text_or_null = {{"type", {"string", "null"}}};
  const Json error = {
      {"type", "object"},
      {"required", {"message", "type", "param", "code"}},
      {"properties",
       {{"message", text}, {"type", text}, {"param", text_or_null}, {"code", text_or_null}}}};
  const Json body = {
      {"type", "object"}, {"required", {"error"}}, {"properties", {{"error", error}}}};
  return {{"description", "an error: what is wrong, its kind, the parameter, a word for programs"},
          {"content", {{"application/json", {{"schema", body}}}}}};
}

/// "post_v1_models_id": generators of clients name functions by it.
std::string operation_id(const std::string& method, const std::string& path) {
  std::string out = method;
  for (const char c : path) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain)
      out += c;
    else if (out.back() != '_')
      out += '_';
  }
  while (out.back() == '_') out.pop_back();
  return out;
}

}  // namespace

void Routes::alias(const std::string& path) {
  Route route = all_.back();
  route.path = path;
  all_.push_back(std::move(route));
}

bool Routes::matches(const Route& route, const std::string& path, std::string& id) {
  constexpr std::string_view kId = "{id}";
  if (!route.path.ends_with(kId)) return route.path == path;
  const size_t n = route.path.size() - kId.size();
  if (path.size() <= n || path.compare(0, n, route.path, 0, n) != 0) return false;
  id = path.substr(n);
  return true;
}

Routes::Match Routes::find(const std::string& method, const std::string& path) const {
  const std::string asked = method == "HEAD" ? "GET" : method;
  std::string id;
  for (const Route& route : all_)
    if (route.method == asked && matches(route, path, id)) return {&route, id};
  if (const std::string methods = methods_of(path); !methods.empty())
    throw ApiError::wrong_method(methods);
  std::vector<std::string> paths;
  for (const Route& route : all_) paths.push_back(route.path);
  const std::string nearest = spec::nearest_name(path.substr(0, 100), paths);
  throw ApiError(404, "unknown_route",
                 "no such endpoint" + (nearest.empty() ? std::string("; /openapi.json lists them")
                                                       : "; did you mean " + nearest + "?"));
}

std::string Routes::name_of(const std::string& path) const {
  std::string id;
  for (const Route& route : all_)
    if (matches(route, path, id)) return route.path;
  return "none";
}

std::string Routes::methods_of(const std::string& path) const {
  std::string methods, id;
  for (const Route& route : all_)
    if (matches(route, path, id)) methods += (methods.empty() ? "" : ", ") + route.method;
  return methods;
}

Json Routes::openapi() const {
  Json paths = Json::object();
  for (const Route& route : all_) {
    std::string method = route.method;
    std::transform(method.begin(), method.end(), method.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    Json entry = {{"summary", route.doc},
                  {"operationId", operation_id(method, route.path)},
                  {"responses",
                   {{"200", {{"description", "the answer"}}},
                    {"default", {{"$ref", "#/components/responses/error"}}}}}};
    if (route.body)
      entry["requestBody"] = {{"required", true},
                              {"content", {{"application/json", {{"schema", route.body()}}}}}};
    if (route.path.ends_with("{id}"))
      entry["parameters"] = Json::array(
          {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
    if (route.open) entry["security"] = Json::array();
    paths[route.path][method] = entry;
  }
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "tessera"}, {"version", kVersion}}},
          {"components",
           {{"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}},
            {"responses", {{"error", error_response()}}}}},
          {"security", Json::array({{{"key", Json::array()}}})},
          {"paths", paths}};
}

}  // namespace tessera::serve
