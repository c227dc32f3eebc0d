// A frontend's dealings with grammars: it follows each choice's text, and tells the scheduler what the next draws may yield before they are made.
// What it knows follows from the choice's tokens alone, so after a core's death it is made again from those.
#include <algorithm>
#include <utility>

#include "actors/frontend_actor.hpp"

namespace althing::actors {
namespace wire = protocol::wire;
using protocol::grammar::ConstrainedReply;

// Errors: GrammarLibrary::get's; unsupported.
Status Frontend::constrain(const wire::Grammar& asked, bool raw, bool has_tools, std::size_t choices) {
  if (!shared_->grammars)
    return Error{ErrorCode::unsupported, "this server's engine draws tokens without a model and can hold no text to a grammar; leave it out",
                 "grammar"};
  const protocol::harmony::Format* harmony = raw ? nullptr : shared_->format.harmony();
  auto grammar = shared_->grammars->get(asked, ConstrainedReply::ends_of(harmony, shared_->stop_tokens));
  if (!grammar) return grammar.error();
  for (std::size_t i = 0; i < choices; ++i)
    constrained_.push_back(
        {std::make_unique<ConstrainedReply>(*grammar, ConstrainedReply::Setting{harmony, has_tools, shared_->grammars->vocabulary()}), 0});
  return Ok{};
}

// All choices begin alike.
Status Frontend::constrain_submit(Submitted& submitted, protocol::grammar::Mask& mask) {
  const wire::Submit& submit = start_.submit;
  if (submit.sampling.ignore_stop)
    return Error{ErrorCode::invalid_argument, "a grammar ends with the text that it allows, and ignore_stop would go on; leave one of them out",
                 "ignore_stop"};
  if (auto status = constrain(*submit.grammar, !submit.prompt_tokens.empty(), !submit.tools.empty(), submitted.choices); !status) return status;
  auto first = constrained_.front().reply->next();
  if (!first) return first.error();
  submitted.constrained = true;
  submitted.draws_ready = first->mask ? 1 : first->free;
  mask = std::move(first->mask);
  return Ok{};
}

void Frontend::restore_grammar(const token_log::Read& read) {
  if (!read.submit.grammar || read.ended) return;
  waits_to_allow_ = true;
  // What was accepted once is refused only while too many others are followed; allow() says so then.
  if (!constrain(*read.submit.grammar, read.submit.raw, read.submit.has_tools, read.submit.choices)) return;
  std::uint32_t choice = 0;
  for (const std::uint32_t word : read.story) {
    if (word < token_log::word_marks)
      push_constrained(choice, word);
    else if (token_log::is_choice(word, read.submit.choices))
      choice = word - token_log::word_choice;
  }
}

// Whether the choice ends here, though the token is none that ends a turn.
bool Frontend::push_constrained(std::uint32_t choice, TokenId token) {
  if (constrained_.empty()) return false;
  Constrained& of = constrained_[choice];
  of.reply->push(token);
  ++of.drawn;
  const std::vector<TokenId>& stops = shared_->stop_tokens;
  return of.reply->is_over() && std::find(stops.begin(), stops.end(), token) == stops.end();
}

void Frontend::allow(std::uint32_t choice) {
  auto next = constrained_.empty()
                  ? Result<protocol::grammar::Allowance>(Error{ErrorCode::busy, "too many different grammars are being followed", "grammar"})
                  : constrained_[choice].reply->next();
  if (!next) {
    cancel_open(next.error());
    return end(wire::ErrorReply{start_.submit.request_id, 0, next.error()});
  }
  const std::uint32_t until = constrained_[choice].drawn + (next->mask ? 1 : next->free);
  self_->send(shared_->scheduler, AllowDraws{RequestId{start_.request.value + choice}, until, std::move(next->mask)});
}

}  // namespace althing::actors
