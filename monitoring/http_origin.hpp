// Who may use the page: two rules against web pages of others, which run in a browser on this machine and so reach loopback as well as its user does.
// A page that has rebound its own name to 127.0.0.1 is given away by the Host header, and one that posts across origins by the Origin header. Pure.
#pragma once

#include <string>
#include <string_view>

namespace althing::monitoring {

// True when a Host header names this machine's loopback by address, or as localhost, with or without a port. No name that a resolver answers for.
bool names_loopback(std::string_view host);

// Why a request that makes the server work is refused; "" when it is not. `origin` and `site` (Sec-Fetch-Site) are "" where the header is missing.
// Browsers send Origin with every POST, so one without it is no request of the page.
std::string why_foreign(std::string_view host, std::string_view origin, std::string_view site);

// True for application/json, with or without parameters. No form can send it, and a script of another origin must ask first (and is refused then).
bool is_json(std::string_view content_type);

}  // namespace althing::monitoring
