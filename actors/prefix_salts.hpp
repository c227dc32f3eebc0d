// Who may share KV pages with whom, as the number that the core compares: one a tenant, or one for all. Tenants' names are hashed under a secret of
// the core process, so nobody can choose a name that shares with another.
#pragma once

#include <random>
#include <string>

#include "scheduler/token_chain.hpp"

namespace althing::actors {

struct PrefixSalts {
  bool by_tenant = true;
  PageKey secret{};

  static PrefixSalts drawn(bool by_tenant) {
    std::random_device device;
    const auto word = [&] { return (std::uint64_t{device()} << 32) | device(); };
    const std::uint64_t high = word();
    return {by_tenant, {high, word()}};
  }

  PageKey of(const std::string& tenant) const { return by_tenant ? key(tenant) : PageKey{}; }
  // Whose share of the server it is.
  TenantId tenant(const std::string& name) const { return TenantId{key(name).low}; }

 private:
  PageKey key(const std::string& tenant) const {
    scheduler::TokenChain chain(secret, tenant.size());
    for (const char c : tenant) chain.add(static_cast<unsigned char>(c));
    return chain.key(0);
  }
};

}  // namespace althing::actors
