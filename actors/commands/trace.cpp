// See the header. Lines go to standard output as they come; how long things took goes to standard error, so that a file of lines stays one.
#include "actors/commands/trace.hpp"

#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "actors/complain.hpp"
#include "actors/exit_codes.hpp"
#include "protocol/client/client.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace {

class TracePrinter {
 public:
  void take(const wire::Delta& delta) {
    const std::string text = lines_.take(delta);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }

  // What there is, is worth having also when the request failed.
  int finish(const TraceSettings& settings, const std::optional<Error>& failure) {
    std::fflush(stdout);
    if (lines_.lines() > 0) {
      std::fputs(lines_.timings().c_str(), stderr);
      if (auto status = draw(settings.heat_map); !status) return complain(status.error());
    }
    if (failure) {
      complain(*failure);
      return failure->code == ErrorCode::unavailable || failure->code == ErrorCode::core_lost ? exit_code_of(failure->code) : exit_failed;
    }
    if (lines_.lines() == 0)
      return complain(
          Error{ErrorCode::unsupported, "the server answered and told nothing of its routing: it is older than traces; start a newer one", ""});
    return exit_ok;
  }

 private:
  Status draw(const std::string& file) const {
    if (file.empty()) return Ok{};
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out << lines_.heat_maps("Routing of one request");
    out.close();
    if (out) return Ok{};
    return Error{ErrorCode::io, "cannot write the heat maps to " + file + "; name a file in a folder that is there and may be written", "heat-map"};
  }

  TraceLines lines_;
};

int trace_here(const TraceSettings& settings, TracePrinter& printer) {
  std::optional<Error> failure;
  bool answered = false;
  const int code = answer_here(
      settings.here,
      [&](const protocol::chat::ChatFormat& format) {
        auto submit = request_of(settings.here, format);
        if (submit) submit->trace_top_m = settings.top_m;
        return submit;
      },
      [&](const wire::ServerMessage& message) {
        if (const auto* delta = std::get_if<wire::Delta>(&message)) printer.take(*delta);
        if (const auto* error = std::get_if<wire::ErrorReply>(&message)) failure = error->error;
        answered = failure || std::holds_alternative<wire::Done>(message);
        return answered ? std::optional<int>(exit_ok) : std::nullopt;
      });
  return answered ? printer.finish(settings, failure) : code;
}

int trace_server(const TraceSettings& settings, TracePrinter& printer) {
  auto submit = submit_of(settings.here.ask);
  if (!submit) return complain(submit.error());
  submit->messages.push_back(user_message(settings.here.prompt));
  submit->trace_top_m = settings.top_m;
  auto options = client_options_of(settings.server, "althing-trace/" ALTHING_VERSION);
  if (!options) return complain(options.error());
  auto client = protocol::Client::connect(*options);
  if (!client) return complain(client.error());
  std::optional<Error> failure;
  bool over = false;
  auto id = client->submit(std::move(*submit), [&](const protocol::StreamEvent& event) {
    if (const auto* delta = std::get_if<wire::Delta>(&event)) printer.take(*delta);
    if (const auto* error = std::get_if<Error>(&event)) failure = *error;
    over = over || failure || std::holds_alternative<wire::Done>(event);
  });
  if (!id) return complain(id.error());
  while (!over) client->poll(std::chrono::milliseconds(100));
  return printer.finish(settings, failure);
}

}  // namespace

int run_trace(const TraceSettings& settings) {
  TracePrinter printer;
  if (!settings.here.engine.model.empty()) return trace_here(settings, printer);
  if (settings.here.raw)
    return complain(Error{ErrorCode::invalid_argument, "--raw needs the model's tokenizer; name its folder with --model", "raw"});
  return trace_server(settings, printer);
}

}  // namespace althing::actors
