// Totals by tenant: sums by hand, and no more names than were allowed.
#include "monitoring/tenant_totals.hpp"

#include <gtest/gtest.h>

#include "monitoring/metrics.hpp"
#include "tests/monitoring/text_format.hpp"

namespace althing::monitoring {
namespace {

using tests::Page;
using tests::PageReader;

TenantUsage usage(std::uint64_t tokens) {
  TenantUsage one;
  one.prompt_tokens = tokens;
  one.completion_tokens = 2 * tokens;
  one.computed_tokens = 3 * tokens;
  one.recomputed_tokens = 1;
  one.expert_tokens = 12 * tokens;
  one.recomputed_expert_tokens = 4;
  one.device_seconds = 0.25;
  one.kv_byte_seconds = 1000;
  one.price_usd = 0.0000006;
  return one;
}

Page page_of(const Metrics& metrics) {
  Page page = PageReader::read(metrics.scrape());
  EXPECT_TRUE(page.problems.empty()) << page.problems.front();
  return page;
}

TEST(TenantTotals, are_sums_in_metrics_and_page_alike) {
  Metrics metrics({.version = "0.1.0", .model = "tiny", .layers = 1, .experts = 1, .tenants_max = 2});
  EXPECT_EQ(metrics.usage_json(), "{\"tenants_max\":2,\"tenants\":[]}\n");
  for (const auto& [tenant, tokens] : {std::pair{"b", 10u}, {"a", 1u}, {"b", 20u}}) metrics.tenant_usage(tenant, usage(tokens));
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_tenant_requests_total{tenant=\"b\"}"), 2);
  EXPECT_EQ(page.at("althing_tenant_prompt_tokens_total{tenant=\"b\"}"), 30);
  EXPECT_EQ(page.at("althing_tenant_completion_tokens_total{tenant=\"a\"}"), 2);
  EXPECT_EQ(page.at("althing_tenant_computed_tokens_total{tenant=\"b\"}"), 90);
  EXPECT_EQ(page.at("althing_tenant_expert_tokens_total{tenant=\"b\"}"), 368);
  EXPECT_EQ(page.at("althing_tenant_device_seconds_total{tenant=\"b\"}"), 0.5);
  EXPECT_EQ(page.at("althing_tenant_kv_byte_seconds_total{tenant=\"a\"}"), 1000);
  EXPECT_DOUBLE_EQ(page.at("althing_tenant_price_usd_total{tenant=\"b\"}"), 0.0000012);
  EXPECT_EQ(page.at("althing_series{path=\"/metrics\"}"), static_cast<double>(page.samples.size()));
  EXPECT_EQ(metrics.usage_json(),
            "{\"tenants_max\":2,\"tenants\":["
            "{\"tenant\":\"a\",\"requests\":1,\"prompt_tokens\":1,\"completion_tokens\":2,\"computed_tokens\":3,\"recomputed_tokens\":1,"
            "\"expert_tokens\":12,\"recomputed_expert_tokens\":4,\"device_ms\":250.000000,\"kv_byte_seconds\":1000.000,\"price_usd\":0.000001},"
            "{\"tenant\":\"b\",\"requests\":2,\"prompt_tokens\":30,\"completion_tokens\":60,\"computed_tokens\":90,\"recomputed_tokens\":2,"
            "\"expert_tokens\":360,\"recomputed_expert_tokens\":8,\"device_ms\":500.000000,\"kv_byte_seconds\":2000.000,\"price_usd\":0.000001}]}\n");
}

// Whoever says "other" is among the others, and takes no name from anybody.
TEST(TenantTotals, names_are_bounded_and_nobody_is_lost) {
  Metrics metrics({.version = "0.1.0", .model = "tiny", .layers = 1, .experts = 1, .tenants_max = 3});
  metrics.tenant_usage("other", usage(1));
  for (int i = 0; i < 1000; ++i) metrics.tenant_usage("tenant-" + std::to_string(i), usage(1));
  metrics.tenant_usage("tenant-1", usage(1));
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_tenant_requests_total{tenant=\"tenant-1\"}"), 2);
  EXPECT_EQ(page.at("althing_tenant_requests_total{tenant=\"tenant-2\"}"), 1);
  EXPECT_EQ(page.at("althing_tenant_requests_total{tenant=\"other\"}"), 998);
  EXPECT_EQ(page.samples.count("althing_tenant_requests_total{tenant=\"tenant-3\"}"), 0u);
  EXPECT_EQ(page.at("althing_series{path=\"/metrics\"}"), static_cast<double>(page.samples.size()));
}

TEST(TenantTotals, time_that_cannot_be_changes_nothing) {
  Metrics metrics({.version = "0.1.0", .model = "tiny", .layers = 1, .experts = 1});
  metrics.device_time(2.0, 0.5);
  metrics.device_time(-1.0, 0.0);
  metrics.usage_record(true);
  metrics.usage_record(false);
  metrics.usage_record(false);
  const Page page = page_of(metrics);
  EXPECT_EQ(page.at("althing_device_seconds_total"), 2.0);
  EXPECT_EQ(page.at("althing_device_unattributed_seconds_total"), 0.5);
  EXPECT_EQ(page.at("althing_reports_refused_total"), 1);
  EXPECT_EQ(page.at("althing_usage_records_total{outcome=\"written\"}"), 1);
  EXPECT_EQ(page.at("althing_usage_records_total{outcome=\"lost\"}"), 2);
}

}  // namespace
}  // namespace althing::monitoring
