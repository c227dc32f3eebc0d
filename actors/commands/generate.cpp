// See the header. A scoped actor stands where the gateway stands in a server.
#include "actors/commands/generate.hpp"

#include <caf/scoped_actor.hpp>
#include <cstdio>
#include <utility>

#include "actors/actor_system.hpp"
#include "actors/commands/stream_printer.hpp"
#include "actors/commands/trace_lines.hpp"
#include "actors/complain.hpp"
#include "actors/exit_codes.hpp"
#include "actors/frontend_actor.hpp"
#include "actors/in_process_ranks.hpp"
#include "actors/memory_budget.hpp"
#include "actors/monitor_actor.hpp"
#include "actors/scheduler_actor.hpp"
#include "protocol/tokenizer/detokenizer.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
namespace {

// The text of choices that come as token ids: of one as it comes, of several one after the other at the end.
class RawText {
 public:
  RawText(const protocol::chat::ChatFormat& format, std::uint32_t choices)
      : texts_(choices, protocol::Detokenizer(format.tokenizer())), held_(choices) {}

  void print(const wire::Delta& delta) {
    for (const TokenId token : delta.tokens) held_[delta.choice] += texts_[delta.choice].push(token);
    for (const wire::DeltaEvent& event : delta.events)  // in front of a stop string
      if (const auto* rest = std::get_if<wire::Text>(&event)) held_[delta.choice] += texts_[delta.choice].finish() + rest->text;
    if (held_.size() > 1) return;
    print_text(held_[0]);
    std::fflush(stdout);
    held_[0].clear();
  }
  void finish() {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (held_.size() > 1) std::printf("[choice %zu]\n", i);
      print_text(held_[i] + texts_[i].finish() + "\n");
    }
  }

 private:
  std::vector<protocol::Detokenizer> texts_;
  std::vector<std::string> held_;  // not printed yet
};

// Passes on what the frontend says until somebody has heard enough.
int listen(caf::scoped_actor& self, const std::function<std::optional<int>(const wire::ServerMessage&)>& hear) {
  std::optional<int> code;
  while (!code) self->receive([&](ToClient& out) { code = hear(out.message); }, [](const StreamClosed&) {});
  return *code;
}

}  // namespace

Result<wire::Submit> request_of(const GenerateSettings& settings, const protocol::chat::ChatFormat& format) {
  auto submit = submit_of(settings.ask);
  if (!submit) return submit;
  submit->request_id = "generate";
  if (settings.raw) {
    submit->messages.clear();
    submit->prompt_tokens = format.tokenizer()->encode_with_special(settings.prompt);
    if (submit->prompt_tokens.empty()) return Error{ErrorCode::invalid_argument, "the prompt is empty; give some text to continue", "prompt"};
  } else {
    submit->messages.push_back(user_message(settings.prompt));
  }
  return submit;
}

int run_generate(const GenerateSettings& settings) {
  auto colour = colour_choice_of(settings.ask.colour);
  if (!colour) return complain(colour.error());
  auto trace = TraceFile::create(settings.ask.trace_file);
  if (!trace) return complain(trace.error());
  StreamPrinter printer(*colour, settings.ask.json, settings.ask.sampling.n);
  const bool raw = settings.raw && !settings.ask.json;
  std::optional<RawText> text;
  const auto ask = [&](const protocol::chat::ChatFormat& format) {
    text.emplace(format, settings.ask.sampling.n);
    return request_of(settings, format);
  };
  return answer_here(settings, ask, [&](const wire::ServerMessage& message) -> std::optional<int> {
    if (const auto* delta = std::get_if<wire::Delta>(&message)) {
      raw ? text->print(*delta) : printer.print(*delta);
      trace->take(*delta);
    } else if (const auto* done = std::get_if<wire::Done>(&message)) {
      if (raw) text->finish();
      if (!raw || done->choices.empty()) printer.done(*done);
      const Status written = trace->close();
      return written ? exit_ok : complain(written.error());
    } else if (const auto* error = std::get_if<wire::ErrorReply>(&message)) {
      printer.fail(error->error);
      return exit_failed;
    }
    return std::nullopt;
  });
}

int answer_here(const GenerateSettings& settings, const std::function<Result<wire::Submit>(const protocol::chat::ChatFormat&)>& ask,
                const std::function<std::optional<int>(const wire::ServerMessage&)>& hear) {
  auto setup = set_up_engine(settings.engine);
  if (!setup) return complain(setup.error());
  if (auto status = check_memory_here(*setup, 0, RanksLive::in_one_process); !status) return complain(status.error());
  auto format = chat_format(settings.engine);
  if (!format) return complain(format.error());
  auto submit = ask(*format);
  if (!submit) return complain(submit.error());

  LocalSystemConfig config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  const gpu::DecoderSpec& spec = setup->model->spec;
  auto metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsConfig{ALTHING_VERSION, model_name(settings.engine), settings.engine.ranks,
                                                                                 static_cast<std::uint32_t>(spec.layers.size()), spec.experts});
  SchedulerOptions options;
  options.core = setup->core_config();
  options.ranks = settings.engine.ranks;
  options.metrics = metrics;
  if (auto probe = scheduler::Core::create(options.core); !probe) return complain(probe.error());
  const caf::actor scheduler = system.spawn(scheduler_actor, std::move(options));
  int code = exit_ok;
  {
    auto ranks = InProcessRanks::start(system, *setup, settings.engine.threads, scheduler);
    if (ranks) {
      auto shared = std::make_shared<FrontendShared>();
      shared->format = *format;
      shared->stop_tokens = setup->stop_tokens(*format);
      shared->limits = setup->limits;
      shared->metrics = metrics;
      shared->scheduler = scheduler;
      shared->linger = std::chrono::milliseconds(0);
      system.spawn(frontend_actor, std::shared_ptr<const FrontendShared>(std::move(shared)),
                   FrontendStart{RequestId{1}, "generate", std::move(*submit), caf::actor_cast<caf::actor>(self), std::chrono::steady_clock::now()});
      code = listen(self, hear);
    } else {
      code = complain(ranks.error());
    }
    // The scheduler first: to it, ranks that end before it look like ranks that died.
    self->send_exit(scheduler, caf::exit_reason::user_shutdown);
    self->wait_for(scheduler);
  }
  return code;
}

}  // namespace althing::actors
