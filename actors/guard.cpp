// See the header. An exception in an actor is a bug of ours: the process ends at once, and its supervisor starts a clean one.
#include "actors/guard.hpp"

#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/deep_to_string.hpp>
#include <caf/result.hpp>
#include <exception>
#include <string>

#include "actors/exit_codes.hpp"
#include "actors/logging.hpp"

namespace althing::actors {

void guard(caf::scheduled_actor* self) {
  self->set_default_handler([](caf::scheduled_actor* me, caf::message_view& view) -> caf::result<caf::message> {
    log(LogLevel::warning, "unexpected_message", {{"actor", me->name()}, {"type", caf::deep_to_string(view.content().type_token())}});
    return caf::make_message();
  });
  self->set_error_handler([](caf::scheduled_actor* me, caf::error& error) {
    log(LogLevel::warning, "actor_error", {{"actor", me->name()}, {"error", me->system().render(error)}});
  });
  self->set_down_handler([](caf::scheduled_actor* me, caf::down_msg& down) {
    log(LogLevel::debug, "actor_down", {{"actor", me->name()}, {"reason", me->system().render(down.reason)}});
  });
  self->set_exit_handler([](caf::scheduled_actor* me, caf::exit_msg& exit) { me->quit(exit.reason); });
  self->set_exception_handler([](caf::scheduled_actor* me, std::exception_ptr& exception) -> caf::error {
    std::string what = "unknown exception";
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& e) {
      what = e.what();
    } catch (...) {
    }
    log(LogLevel::error, "actor_exception", {{"actor", me->name()}, {"what", what}});
    ::_exit(exit_internal);
  });
}

}  // namespace althing::actors
