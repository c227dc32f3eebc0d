// See the header.
#include "protocol/wire/delta_stream.hpp"

#include <utility>

namespace althing::protocol::wire {

void DeltaStream::push(TokenId token, std::vector<DeltaEvent>& out) {
  parser_->push(token, events_);
  tell(out);
  if (reasons_) ++reasoning_tokens_;
}

void DeltaStream::finish(std::vector<DeltaEvent>& out) {
  parser_->finish(events_);
  tell(out);
}

void DeltaStream::tell(std::vector<DeltaEvent>& out) {
  for (harmony::RecoveredEvent& event : events_) {
    if (auto* start = std::get_if<harmony::RecoveredStart>(&event)) {
      reasons_ = start->channel == "analysis" || (start->channel == "commentary" && !start->recipient.empty());
      out.emplace_back(MessageStarted{index_, start->role, std::move(start->channel), std::move(start->recipient), std::move(start->content_type)});
    } else if (auto* text = std::get_if<harmony::RecoveredText>(&event)) {
      auto* const last = out.empty() ? nullptr : std::get_if<Text>(&out.back());
      if (last != nullptr && last->index == index_) {
        last->text += text->text;
      } else {
        out.emplace_back(Text{index_, std::move(text->text)});
      }
    } else {
      reasons_ = false;
      out.emplace_back(MessageEnded{index_++});
    }
  }
  events_.clear();
}

}  // namespace althing::protocol::wire
