// The HTTP gateway's own numbers. It is a process of its own, so it has a registry of its own; labels are the names that it is made with and no
// others, so a scrape's size is known at start. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace althing::monitoring {

class GatewayMetrics {
 public:
  // What series there are. Anything else is counted as "other".
  struct Names {
    std::vector<std::string_view> routes, rejections, connection_refusals;
  };
  explicit GatewayMetrics(const Names& names);
  ~GatewayMetrics();

  // `bytes`: of head and body. `broken_off`: the client had gone before the end.
  void answered(std::string_view route, std::uint16_t status, std::uint64_t bytes, bool broken_off);
  void rejected(std::string_view why);
  void refused_connection(std::string_view why);
  void open_requests(std::size_t count);
  void first_event(double seconds);
  void tokens(std::uint64_t prompt, std::uint64_t completion, std::uint64_t reasoning);

  std::string scrape() const;  // Prometheus' text form

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace althing::monitoring
