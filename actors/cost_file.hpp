// What things cost, from a file of lines `name = number` in TOML's form, without sections. Reading is strict: a price that was meant and not
// understood would be charged as another.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/usage_ledger.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

// US dollars; each is charged for, so what is not to count is 0.
struct Prices {
  double gpu_hour_usd = 3.0;  // an hour of one rank's steps
  double per_million_prompt_tokens_usd = 0;
  double per_million_completion_tokens_usd = 0;
  double kv_gib_hour_usd = 0;  // a GiB of KV pages, over all ranks that hold a shard, for an hour
};

// `name` is for messages. Errors: invalid_argument, with line and key: no `name = number`, an unknown or repeated key, a number that is negative, not
// finite or over a million.
Result<Prices> parse_prices(std::string_view name, std::string_view text);
// The file's prices, or the defaults for "". Errors: those of parse_prices; not_found, too_large or io for the file.
Result<Prices> read_prices(const std::string& path);

// In dollars.
double price_of(const scheduler::UsageTally& tally, const Prices& prices);

}  // namespace althing::actors
