// See the header.
#include "monitoring/gateway_metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace althing::monitoring {
namespace {

using prometheus::Counter;
using prometheus::Registry;
using Counters = std::map<std::string, Counter*, std::less<>>;

constexpr std::array<std::string_view, 4> classes = {"2xx", "4xx", "5xx", "other"};
constexpr std::array<std::string_view, 3> kinds = {"prompt", "completion", "reasoning"};
constexpr std::string_view other = "other";

std::size_t class_of(std::uint16_t status) {
  const int hundred = status / 100;
  return hundred == 2 ? 0 : hundred == 4 ? 1 : hundred == 5 ? 2 : 3;
}

Counter& counter(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

Counters counters(Registry& registry, const char* name, const char* help, const char* label, std::vector<std::string_view> values) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  values.push_back(other);
  Counters all;
  for (const std::string_view value : values) all[std::string(value)] = &family.Add({{label, std::string(value)}});
  return all;
}

prometheus::Histogram& histogram(Registry& registry, const char* name, const char* help) {
  const prometheus::Histogram::BucketBoundaries bounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
}

Counter& of(const Counters& all, std::string_view name) {
  const auto found = all.find(name);
  return *(found == all.end() ? all.find(other) : found)->second;
}

}  // namespace

struct GatewayMetrics::State {
  explicit State(const Names& names)
      : sent_bytes(counters(registry, "althing_gateway_sent_bytes_total", "Bytes of answers, heads included.", "route", names.routes)),
        rejected(counters(registry, "althing_gateway_rejected_total", "Requests that were refused.", "reason", names.rejections)),
        refused(counters(registry, "althing_gateway_refused_connections_total", "Connections that were not served.", "reason",
                         names.connection_refusals)),
        broken_off(counter(registry, "althing_gateway_broken_off_total", "Answers whose client had gone before the end.")),
        open_requests(
            prometheus::BuildGauge().Name("althing_gateway_open_requests").Help("Requests that the engine works for.").Register(registry).Add({})),
        first_event(histogram(registry, "althing_gateway_first_event_seconds", "From a request to its first token.")) {
    auto& family =
        prometheus::BuildCounter().Name("althing_gateway_responses_total").Help("Answers by route and class of status.").Register(registry);
    std::vector<std::string_view> routes = names.routes;
    routes.push_back(other);
    for (const std::string_view route : routes)
      for (std::size_t i = 0; i < classes.size(); ++i)
        responses[std::string(route)][i] = &family.Add({{"route", std::string(route)}, {"status", std::string(classes[i])}});
    auto& by_kind = prometheus::BuildCounter().Name("althing_gateway_tokens_total").Help("Tokens of answered requests.").Register(registry);
    for (std::size_t i = 0; i < kinds.size(); ++i) tokens[i] = &by_kind.Add({{"kind", std::string(kinds[i])}});
  }

  Registry registry;
  Counters sent_bytes, rejected, refused;
  Counter& broken_off;
  prometheus::Gauge& open_requests;
  prometheus::Histogram& first_event;
  std::map<std::string, std::array<Counter*, classes.size()>, std::less<>> responses;
  std::array<Counter*, kinds.size()> tokens{};
};

GatewayMetrics::GatewayMetrics(const Names& names) : state_(std::make_unique<State>(names)) {}
GatewayMetrics::~GatewayMetrics() = default;

void GatewayMetrics::answered(std::string_view route, std::uint16_t status, std::uint64_t bytes, bool broken_off) {
  auto found = state_->responses.find(route);
  if (found == state_->responses.end()) found = state_->responses.find(other);
  found->second[class_of(status)]->Increment();
  of(state_->sent_bytes, route).Increment(static_cast<double>(bytes));
  if (broken_off) state_->broken_off.Increment();
}

void GatewayMetrics::rejected(std::string_view why) { of(state_->rejected, why).Increment(); }
void GatewayMetrics::refused_connection(std::string_view why) { of(state_->refused, why).Increment(); }
void GatewayMetrics::open_requests(std::size_t count) { state_->open_requests.Set(static_cast<double>(count)); }
void GatewayMetrics::first_event(double seconds) { state_->first_event.Observe(seconds); }

void GatewayMetrics::tokens(std::uint64_t prompt, std::uint64_t completion, std::uint64_t reasoning) {
  const std::array<std::uint64_t, kinds.size()> counts = {prompt, completion, reasoning};
  for (std::size_t i = 0; i < counts.size(); ++i) state_->tokens[i]->Increment(static_cast<double>(counts[i]));
}

std::string GatewayMetrics::scrape() const {
  auto families = state_->registry.Collect();
  // The registry's own order is that of its hash tables.
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (auto& family : families) std::sort(family.metric.begin(), family.metric.end(), [](const auto& a, const auto& b) { return a.label < b.label; });
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace althing::monitoring
