// See the header.
#include "actors/commands/inject.hpp"

#include <cstdio>
#include <fstream>
#include <iterator>

#include "actors/complain.hpp"
#include "actors/fault_control.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::actors {
namespace {

Result<std::string> control_of(const std::string& ready_file) {
  std::ifstream file(ready_file);
  if (!file)
    return Error{ErrorCode::not_found, "there is no ready file " + ready_file + "; give the one of `althing serve --ready-file`, or --control",
                 "ready-file"};
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto members = protocol::wire::parse_json(text, 4);
  if (!members || !members->is_object() || !members->contains("control") || !members->at("control").is_string())
    return Error{ErrorCode::corrupt, ready_file + " is not a ready file: it has no \"control\"", "ready-file"};
  std::string control = members->at("control");
  if (control.empty())
    return Error{ErrorCode::unsupported, "the server of " + ready_file + " does not allow faults; start it with --allow-faults", "control"};
  return control;
}

Result<FaultOrder> order_of(const InjectSettings& settings) {
  if (settings.order.core == (settings.rank >= 0))
    return Error{ErrorCode::invalid_argument, "say whom, and one of them: --rank R, or --core", "rank"};
  FaultOrder order = settings.order;
  order.rank = settings.rank >= 0 ? static_cast<std::uint32_t>(settings.rank) : 0;
  // The kind is read by the same code that the server reads it with.
  const std::string text = to_text(order);
  std::vector<std::string> words{settings.kind};
  for (std::size_t at = text.find(' '); at != std::string::npos;) {
    const std::size_t end = text.find(' ', at + 1);
    words.push_back(text.substr(at + 1, end == std::string::npos ? end : end - at - 1));
    at = end;
  }
  return fault_order_of(words);
}

}  // namespace

int run_inject(InjectSettings settings) {
  if (settings.control.empty() == settings.ready_file.empty())
    return complain({ErrorCode::invalid_argument, "say which server: --ready-file FILE, or --control SOCKET", "control"});
  const auto order = order_of(settings);
  if (!order) return complain(order.error());
  if (settings.control.empty()) {
    auto control = control_of(settings.ready_file);
    if (!control) return complain(control.error());
    settings.control = *control;
  }
  const auto answer = order_fault(settings.control, *order);
  if (!answer) return complain(answer.error());
  std::printf("%s%s\n", answer->c_str(), *answer == "armed" ? (": " + to_text(*order)).c_str() : "");
  return exit_ok;
}

}  // namespace althing::actors
