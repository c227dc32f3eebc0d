// See live_figures.hpp.
#include "monitoring/live_figures.hpp"

#include <limits>

#include "monitoring/json_line.hpp"

namespace althing::monitoring {
namespace {

std::string json_of(std::size_t rank, const RankFigures& figures) {
  JsonLine line;
  line.add("rank", rank).add("state", figures.state).add("epoch", figures.epoch).add("dp_group", figures.dp_group);
  line.add("experts", figures.experts.size()).add("expert_ids", ranges_of(figures.experts));
  line.add("kv_pages_used", figures.kv_pages_used).add("kv_pages", figures.kv_pages);
  if (figures.state == "absent") return line.raw("progress_age_ms", "null").object();
  return line.add("progress_age_ms", figures.progress_age_ms).object();
}

// Milliseconds; null before anything was measured.
std::string json_of(const Latency& latency) {
  const auto ms = [](std::optional<double> seconds) { return seconds.value_or(std::numeric_limits<double>::quiet_NaN()) * 1e3; };
  JsonLine line;
  line.add("count", latency.count).add("p50", ms(latency.p50)).add("p95", ms(latency.p95)).add("p99", ms(latency.p99));
  return line.add("bound", latency.bound * 1e3).object();
}

}  // namespace

std::string ranges_of(const std::vector<std::uint32_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (i == 0 ? "" : ",") + std::to_string(numbers[i]) + (last == i ? "" : "-" + std::to_string(numbers[last]));
    i = last + 1;
  }
  return text;
}

std::string to_json(const LiveFigures& f, const TrafficWindow& traffic) {
  std::size_t rank = 0;
  const std::string ranks = json_list(f.ranks, [&](const RankFigures& figures) { return json_of(rank++, figures); });
  JsonLine line;
  line.add("model", f.model).add("version", f.version).add("instance", f.instance).add("state", f.state);
  line.add("uptime_seconds", f.uptime_seconds).add("epoch", f.epoch).add("dp", f.dp).add("tp", f.tp).add("ep", f.ep);
  line.add("ranks_wanted", f.ranks_wanted).raw("ranks", ranks).add("spares", f.spares).add("quarantined", f.quarantined);
  line.add("degraded", f.degraded).add("running", f.running).add("waiting", f.waiting);
  line.add("tokens_in_per_second", traffic.prompt_rate()).add("tokens_out_per_second", traffic.generated_rate());
  const Traffic& totals = traffic.newest();
  line.add("tokens_in", totals.prompt_tokens).add("tokens_out", totals.generated_tokens).add("requests_ended", totals.requests_ended);
  line.raw("first_token_ms", json_of(traffic.first_token())).raw("inter_token_ms", json_of(traffic.inter_token()));
  return line.add("newest_event", f.newest_event).object() + "\n";
}

}  // namespace althing::monitoring
