// See http_origin.hpp. Everything is compared whole: no prefix and no suffix of a name is enough.
#include "monitoring/http_origin.hpp"

#include <arpa/inet.h>

#include <algorithm>

namespace althing::monitoring {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool names_loopback(std::string_view host) {
  const std::size_t from = host.starts_with('[') ? host.find(']') : 0;
  if (from == std::string_view::npos) return false;
  const std::size_t colon = host.find(':', from);
  if (colon != std::string_view::npos && !is_port(host.substr(colon + 1))) return false;
  const std::string name = lower(host.substr(0, colon));
  in_addr address{};
  return name == "localhost" || name == "[::1]" || (inet_pton(AF_INET, name.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

std::string why_foreign(std::string_view host, std::string_view origin, std::string_view site) {
  if (!names_loopback(host)) return "the Host header does not name this machine's loopback";
  if (origin.empty()) return "there is no Origin header; this is for the page at / and its browser";
  if (lower(origin) != "http://" + lower(host)) return "the request comes from another origin than this server's own page";
  if (!site.empty() && site != "same-origin") return "the browser says that the request comes from another site";
  return "";
}

bool is_json(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  return lower(type) == "application/json";
}

}  // namespace althing::monitoring
