// Streams of several choices in the token log: whatever the order in which choices speak, end and are cut, and wherever cores die, the next one says
// the same messages with the same numbers and submits exactly what has not ended. Failures print the seed.
#include <random>

#include "actors/frontend_actor.hpp"
#include "protocol/wire/codec.hpp"
#include "tests/actors/token_log_fixture.hpp"
#include "tests/protocol/harmony_support.hpp"

namespace althing::actors::tests {
namespace {

namespace wire = protocol::wire;
using althing::tests::o200k_format;

// One thing that happens to a stream.
struct Happening {
  enum class Kind : std::uint8_t { token, cut, close } kind;
  std::uint32_t choice = 0;
  TokenId token = 0;
};

LoggedSubmit several(std::uint32_t choices, std::uint32_t completion_tokens_max) {
  LoggedSubmit submit = logged_submit("r", completion_tokens_max);
  submit.choices = choices;
  return submit;
}

// Texts in which headers, calls and broken ends stand, so that a token given to the wrong choice changes more than itself.
std::vector<TokenId> tokens_of(std::mt19937& random) {
  static const char* const texts[] = {
      "<|channel|>analysis<|message|>Hm, let me see.<|end|><|start|>assistant<|channel|>final<|message|>Forty-two.<|return|>",
      "<|channel|>final<|message|>Grüße \xF0\x9F\x8E\x89 und mehr<|return|>",
      "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Oslo\"}<|call|>",
      "no header at all, only words",
      "<|channel|>final<|message|>cut in the",
  };
  return o200k_format().tokenizer->encode_with_special(texts[random() % std::size(texts)]);
}

std::vector<Happening> story_of(std::mt19937& random, std::uint32_t choices) {
  std::vector<std::vector<TokenId>> left(choices);
  for (auto& tokens : left) tokens = tokens_of(random);
  std::vector<std::size_t> at(choices, 0);
  std::vector<std::uint32_t> open(choices);
  for (std::uint32_t i = 0; i < choices; ++i) open[i] = i;
  std::vector<Happening> story;
  while (!open.empty()) {
    const std::size_t which = random() % open.size();
    const std::uint32_t choice = open[which];
    if (random() % 3 == 0) story.push_back({Happening::Kind::cut, static_cast<std::uint32_t>(random() % choices)});
    if (at[choice] < left[choice].size()) {
      story.push_back({Happening::Kind::token, choice, left[choice][at[choice]++]});
      continue;
    }
    story.push_back({Happening::Kind::close, choice});
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
  }
  for (std::uint32_t i = 0; i < choices; ++i) story.push_back({Happening::Kind::cut, i});
  return story;
}

// What a frontend does, without actors.
struct Teller {
  explicit Teller(std::uint32_t choices) : deltas("r", o200k_format(), true, choices) {}
  wire::DeltaLog deltas;
  StreamLog log;

  void hear(const Happening& h) {
    if (h.kind == Happening::Kind::cut && !deltas.pending(h.choice)) return;
    log.choose(h.choice);
    if (h.kind == Happening::Kind::token) {
      log.tokens(std::span(&h.token, 1));
      deltas.push(h.token, h.choice);
    } else if (h.kind == Happening::Kind::close) {
      log.closed({FinishReason::length, {4, h.choice, 0}, {}});
      deltas.close(h.choice);
    } else {
      log.cut();
      deltas.cut(h.choice);
    }
  }
  std::vector<std::string> said() const {
    std::vector<std::string> lines;
    for (const wire::ServerMessage& message : deltas.messages()) lines.push_back(wire::encode(message, wire::Encoding::json));
    return lines;
  }
};

void expect_resubmissions(const token_log::Read& read, const std::vector<Happening>& story, std::size_t died) {
  std::vector<std::vector<TokenId>> drawn(read.submit.choices);
  std::vector<bool> closed(read.submit.choices);
  for (std::size_t i = 0; i < died; ++i) {
    if (story[i].kind == Happening::Kind::token) drawn[story[i].choice].push_back(story[i].token);
    if (story[i].kind == Happening::Kind::close) closed[story[i].choice] = true;
  }
  const auto again = resubmission_of(read, RequestId{100}).choices;
  std::size_t next = 0;
  for (std::uint32_t choice = 0; choice < read.submit.choices; ++choice) {
    if (closed[choice]) continue;
    ASSERT_LT(next, again.size());
    const Submitted& submitted = again[next++].submitted;
    EXPECT_EQ(submitted.request, RequestId{100 + choice});
    EXPECT_EQ(submitted.sampling.choice, read.submit.sampling.choice + choice);
    EXPECT_EQ(submitted.drawn, drawn[choice]);
    EXPECT_EQ(submitted.choices, 1u);
  }
  EXPECT_EQ(next, again.size());
}

TEST(ChoicesRebuild, any_interleaving_survives_deaths_anywhere) {
  std::size_t deaths = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::uint32_t choices = 2 + random() % 4;
    const std::vector<Happening> story = story_of(random, choices);
    Teller lone(choices);
    for (const Happening& h : story) lone.hear(h);
    ASSERT_GT(lone.said().size(), choices);

    // Cores die one after the other, a few happenings apart; each goes on writing where the one before it stopped.
    TokenLogFixture f(std::size_t{128} << 10);
    Bytes image;
    {
      Teller first(choices);
      first.log = f.open(several(choices, 400));
      first.log.accepted();
      image = f.image();
    }
    for (std::size_t at = 0; at <= story.size();) {
      auto taken = TokenLogFixture::next_core(image);
      ASSERT_EQ(taken.streams.size(), 1u);
      expect_resubmissions(taken.streams[0].read, story, at);
      Teller next(choices);
      replay(taken.streams[0].read.story, next.deltas);
      Teller whole(choices);
      for (std::size_t i = 0; i < at; ++i) whole.hear(story[i]);
      ASSERT_EQ(next.said(), whole.said()) << "after " << at;
      next.log = std::move(taken.streams[0].log);
      ++deaths;
      const std::size_t until = std::min(story.size(), at + 1 + random() % 9);
      for (std::size_t i = at; i < until; ++i) next.hear(story[i]);
      if (at == story.size()) {
        EXPECT_EQ(next.said(), lone.said());
        break;
      }
      at = until;
      image.assign(taken.log->bytes().begin(), taken.log->bytes().end());
    }
  }
  EXPECT_GT(deaths, 500u);
}

TEST(ChoicesRebuild, the_worst_that_choices_may_write_has_its_room) {
  constexpr std::uint32_t choices = 3, tokens = 300;
  TokenLogFixture f(std::size_t{64} << 10);
  std::vector<StreamLog> streams;
  std::optional<Error> refusal;
  while (!refusal) {
    auto stream = f.log->open(several(choices, tokens), tokens);
    if (stream)
      streams.push_back(std::move(*stream));
    else
      refusal = stream.error();
  }
  ASSERT_GE(streams.size(), 2u);
  EXPECT_EQ(refusal->code, ErrorCode::busy);
  const Error never = f.log->open(several(16, 100'000), 100'000).error();
  EXPECT_EQ(never.code, ErrorCode::too_large);
  EXPECT_NE(never.message.find("16"), std::string::npos) << never.message;
  const LoggedEnd longest{FinishReason::error, {1, 2, 3}, Error{ErrorCode::nonfinite, std::string(5000, 'm'), std::string(5000, 'f')}};
  for (StreamLog& stream : streams) {
    stream.accepted();
    // Choices take turns with every word.
    for (TokenId token = 0; token < tokens; ++token) {
      for (std::uint32_t choice = 0; choice < choices; ++choice) {
        stream.choose(choice);
        stream.tokens(std::span(&token, 1));
      }
      for (std::uint32_t choice = 0; choice < choices; ++choice) {
        stream.choose(choice);
        stream.cut();
      }
    }
    for (std::uint32_t choice = 0; choice < choices; ++choice) {
      stream.choose(choice);
      stream.closed(longest);
    }
    for (std::uint32_t choice = 0; choice < choices; ++choice) {
      stream.choose(choice);
      stream.cut();
    }
    stream.ended(longest);
    EXPECT_TRUE(stream.open());
  }
  const auto found = token_log::read(f.image()).requests;
  ASSERT_EQ(found.size(), streams.size());
  for (const token_log::Read& read : found) {
    EXPECT_TRUE(read.ended.has_value());
    for (const auto& closed : read.closed) EXPECT_TRUE(closed.has_value());
  }
}

TEST(ChoicesRebuild, a_stream_of_one_costs_what_it_did) {
  TokenLogFixture one, marked;
  StreamLog plain = one.open(several(1, 50)), chosen = marked.open(several(1, 50));
  for (TokenId token = 0; token < 50; ++token) {
    plain.tokens(std::span(&token, 1));
    chosen.choose(0);
    chosen.tokens(std::span(&token, 1));
  }
  EXPECT_EQ(one.image(), marked.image());
}

TEST(ChoicesRebuild, a_choice_that_the_submit_does_not_have_makes_no_request_of_it) {
  TokenLogFixture f;
  StreamLog stream = f.open(several(2, 50));
  stream.accepted();
  stream.choose(1);
  stream.tokens(std::vector<TokenId>{1});
  EXPECT_EQ(token_log::read(f.image()).requests.size(), 1u) << "the control";
  stream.choose(2);
  stream.tokens(std::vector<TokenId>{1});
  EXPECT_TRUE(token_log::read(f.image()).requests.empty());
  EXPECT_EQ(token_log::read(f.image()).damaged.size(), 1u);
}

TEST(ChoicesRebuild, a_failure_of_the_whole_stream_is_not_computed_again) {
  for (const bool own : {true, false}) {
    TokenLogFixture f;
    StreamLog stream = f.open(several(3, 50));
    stream.accepted();
    stream.choose(1);
    stream.closed({FinishReason::error, {}, Error{own ? ErrorCode::nonfinite : ErrorCode::deadline, "why", ""}});
    const auto found = token_log::read(f.image()).requests;
    ASSERT_EQ(found.size(), 1u);
    const ResubmitRequest again = resubmission_of(found[0], RequestId{1});
    EXPECT_EQ(again.choices.size(), own ? 2u : 0u);
    EXPECT_EQ(again.code, own ? ErrorCode::nonfinite : ErrorCode::internal) << "what the request counts as when the others have ended";
    EXPECT_EQ(again.reason, own ? FinishReason::error : FinishReason::stop);
  }
}

}  // namespace
}  // namespace althing::actors::tests
