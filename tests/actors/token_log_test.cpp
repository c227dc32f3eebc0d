// The token log as the next core finds it: killed at any store, with any byte changed, full, and over and over again.
#include "actors/token_log.hpp"

#include <algorithm>
#include <thread>

#include "tests/actors/token_log_fixture.hpp"

namespace althing::actors::tests {
namespace {

using token_log::Block;
using token_log::Read;
using token_log::Slot;
using token_log::word_closed;
using token_log::word_cut;

const LoggedEnd whole_end{FinishReason::length, {4, 3, 1}, {}};
const LoggedEnd error_end{FinishReason::error, {4, 2, 0}, Error{ErrorCode::deadline, "too late \xC3\xBC", "deadline_ms"}};

Slot slot_of(const Bytes& image, std::uint32_t index) {
  Slot slot;
  std::memcpy(&slot, image.data() + token_log::slots_at + sizeof(Slot) * index, sizeof slot);
  return slot;
}
void set_slot(Bytes& image, std::uint32_t index, const Slot& slot) {
  std::memcpy(image.data() + token_log::slots_at + sizeof(Slot) * index, &slot, sizeof slot);
}
std::vector<Read> reads(const Bytes& image) {
  EXPECT_TRUE(token_log::instance_of(image).has_value());
  return token_log::read(image).requests;
}
bool same(const Read& a, const Read& b) {
  return a.logprobs == b.logprobs && a.serial == b.serial && a.submit == b.submit && a.accepted == b.accepted && a.story == b.story &&
         a.closed == b.closed && a.ended == b.ended;
}

TEST(TokenLog, gives_back_what_was_written) {
  TokenLogFixture f;
  const LoggedSubmit submit = logged_submit();
  StreamLog first = f.open(submit), second = f.open(logged_submit("second"));
  first.accepted();
  first.tokens(std::vector<TokenId>{10, 11});
  first.cut();
  first.credit(12);
  first.tokens(std::vector<TokenId>{12});
  first.closed(whole_end);
  first.cut();
  first.ended(whole_end);
  second.accepted();
  second.ended(error_end);

  const auto taken = TokenLogFixture::next_core(f.image());
  EXPECT_EQ(taken.instance, "first") << "the name stays when the streams do";
  EXPECT_EQ(taken.damaged, 0u);
  ASSERT_EQ(taken.streams.size(), 2u);
  const Read& one = taken.streams[0].read;
  EXPECT_EQ(one.submit, submit);
  EXPECT_EQ(one.story, (std::vector<std::uint32_t>{10, 11, word_cut, 12, word_closed, word_cut}));
  EXPECT_EQ(one.closed, (std::vector<std::optional<LoggedEnd>>{whole_end}));
  EXPECT_EQ(one.ended, whole_end);
  EXPECT_EQ(one.credit, 12u);
  EXPECT_EQ(taken.streams[1].read.submit.request_id, "second");
  EXPECT_EQ(taken.streams[1].read.ended, error_end);
  EXPECT_FALSE(taken.streams[1].read.closed[0].has_value());
}

LoggedSubmit with_logprobs(std::uint32_t top, std::uint32_t choices = 1, std::uint32_t completion_tokens_max = 100) {
  LoggedSubmit submit = logged_submit("r", completion_tokens_max);
  submit.sampling.logprobs = true;
  submit.sampling.top_logprobs = top;
  submit.choices = choices;
  return submit;
}

// As many most likely tokens as the index says; what they are looks like marks of the log.
TokenLogprobs told(TokenId token, std::uint32_t count) {
  TokenLogprobs logprobs{token, -0.125F * static_cast<float>(token), {}};
  for (std::uint32_t i = 0; i < count; ++i) logprobs.top.push_back({0xFFFF'FFFFu - i, -1e-38F * static_cast<float>(i)});
  return logprobs;
}

TEST(TokenLog, logprobs_come_back_with_their_tokens) {
  TokenLogFixture f;
  StreamLog stream = f.open(with_logprobs(20, 2));
  stream.accepted();
  stream.tokens(std::vector<TokenId>{10, 11}, std::vector<TokenLogprobs>{told(10, 20), told(11, 0)});
  stream.choose(1);
  stream.tokens(std::vector<TokenId>{12}, std::vector<TokenLogprobs>{told(12, 3)});
  stream.cut();
  const auto found = reads(f.image());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].logprobs, (std::vector<TokenLogprobs>{told(10, 20), told(11, 0), told(12, 3)}));
  EXPECT_EQ(found[0].story, (std::vector<std::uint32_t>{10, 11, token_log::word_choice + 1, 12, word_cut})) << "the story is as without";
}

TEST(TokenLog, there_is_room_for_the_logprobs_of_every_token) {
  for (const std::uint32_t top : {0u, 1u, 20u})
    for (const std::uint32_t choices : {1u, 3u}) {
      TokenLogFixture f(std::size_t{1} << 20);
      StreamLog stream = f.open(with_logprobs(top, choices, 200));
      stream.accepted();
      // Choices take turns, and each token is a delta of its own.
      for (TokenId token = 0; token < 200; ++token)
        for (std::uint32_t choice = 0; choice < choices; ++choice) {
          stream.choose(choice);
          stream.tokens(std::vector<TokenId>{token}, std::vector<TokenLogprobs>{told(token, top)});
          stream.cut();
        }
      for (std::uint32_t choice = 0; choice < choices; ++choice) {
        stream.choose(choice);
        stream.closed(whole_end);
        stream.cut();
      }
      stream.ended(whole_end);
      ASSERT_TRUE(stream.open()) << "it outgrew its promise";
      const auto found = reads(f.image());
      ASSERT_EQ(found.size(), 1u) << top << " " << choices;
      EXPECT_EQ(found[0].logprobs.size(), 200u * choices);
    }
}

TEST(TokenLog, a_token_without_logprobs_where_they_were_asked_for_is_damage_and_so_are_those_that_nobody_asked_for) {
  TokenLogFixture f;
  StreamLog without = f.open(with_logprobs(2)), unasked = f.open(logged_submit("u"));
  for (StreamLog* stream : {&without, &unasked}) stream->accepted();
  without.tokens(std::vector<TokenId>{10});
  unasked.tokens(std::vector<TokenId>{10}, std::vector<TokenLogprobs>{told(10, 2)});
  EXPECT_EQ(token_log::read(f.image()).damaged.size(), 2u);
}

TEST(TokenLog, the_last_tokens_of_a_choice_count_with_its_end_or_not_at_all) {
  TokenLogFixture f;
  StreamLog stream = f.open(with_logprobs(1));
  stream.accepted();
  stream.tokens(std::vector<TokenId>{10}, std::vector<TokenLogprobs>{told(10, 1)});
  const auto before = reads(f.image());
  stream.tokens(std::vector<TokenId>{11}, std::vector<TokenLogprobs>{told(11, 1)}, true);
  EXPECT_TRUE(same(reads(f.image())[0], before[0])) << "it will be drawn again";
  const LoggedEnd end{FinishReason::stop, {4, 2, 0}, {}, 7};
  stream.closed(end);
  const auto after = reads(f.image());
  EXPECT_EQ(after[0].story, (std::vector<std::uint32_t>{10, 11, word_closed}));
  EXPECT_EQ(after[0].closed[0], end);
}

TEST(TokenLog, a_stream_goes_on_where_the_dead_core_stopped) {
  TokenLogFixture f;
  StreamLog stream = f.open(logged_submit());
  stream.accepted();
  std::vector<std::uint32_t> story;
  Bytes image = f.image();
  // Many cores, each of which adds a little; blocks end in the middle of what some of them write.
  for (TokenId token = 0; token < 90; token += 6) {
    auto taken = TokenLogFixture::next_core(image);
    ASSERT_EQ(taken.streams.size(), 1u);
    EXPECT_EQ(taken.streams[0].read.story, story);
    for (TokenId next = token; next < token + 6; ++next) {
      taken.streams[0].log.tokens(std::vector<TokenId>{next});
      taken.streams[0].log.cut();
      story.insert(story.end(), {next, word_cut});
    }
    image.assign(taken.log->bytes().begin(), taken.log->bytes().end());
  }
}

// Words are only ever appended, and one store makes them count. So what a writer killed before that store leaves is the bytes with the words there
// and the commit of before.
TEST(TokenLog, a_writer_killed_at_any_store_leaves_its_last_commit) {
  TokenLogFixture f;
  std::vector<std::pair<std::uint64_t, std::vector<std::uint32_t>>> commits;
  StreamLog stream = f.open(logged_submit("r", 600));
  std::vector<std::uint32_t> story;
  const auto note = [&] { commits.emplace_back(slot_of(f.image(), 0).commit, story); };
  note();
  stream.accepted();
  note();
  for (TokenId token = 0; token < 600; ++token) {
    stream.tokens(std::vector<TokenId>{token, token + 1});
    story.insert(story.end(), {token, token + 1});
    if (token % 100 == 0) note();
    if (token % 7 == 0) {
      stream.cut();
      story.push_back(word_cut);
    }
    if (token % 31 == 0) note();
  }
  Bytes image = f.image();
  ASSERT_GT(slot_of(image, 0).commit & 0xFFFF'FFFF, 4u * token_log::block_words) << "several blocks";
  for (const auto& [commit, expected] : commits) {
    Slot slot = slot_of(image, 0);
    slot.commit = commit;
    set_slot(image, 0, slot);
    const auto found = reads(image);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].story, expected);
    // And any other count of words than one that was committed is no stream at all.
    slot.commit += 1;
    set_slot(image, 0, slot);
    EXPECT_TRUE(reads(image).empty());
  }
}

TEST(TokenLog, a_request_is_there_with_its_first_commit_and_gone_with_its_release) {
  TokenLogFixture f;
  StreamLog stream = f.open(logged_submit());
  Bytes image = f.image();
  EXPECT_EQ(reads(image).size(), 1u);
  const Slot whole = slot_of(image, 0);
  for (const Slot partly : {Slot{0, whole.commit, 5, whole.first_block, 0}, Slot{whole.serial, 0, 5, whole.first_block, 0},
                            Slot{whole.serial, 0, 0, 0, 0}, Slot{0, whole.commit, 0, 0, 0}}) {
    set_slot(image, 0, partly);
    EXPECT_TRUE(reads(image).empty());
    EXPECT_TRUE(token_log::read(image).damaged.empty());
  }
  // Not accepted: nobody was told anything, and its client submits it again.
  EXPECT_TRUE(TokenLogFixture::next_core(f.image()).streams.empty());
}

TEST(TokenLog, any_changed_byte_costs_one_request_and_never_changes_one) {
  TokenLogFixture f;
  StreamLog one = f.open(logged_submit("one")), two = f.open(logged_submit("two"));
  for (StreamLog* stream : {&one, &two}) {
    stream->accepted();
    for (TokenId token = 0; token < 40; ++token) stream->tokens(std::vector<TokenId>{token});
    stream->closed(error_end);
    stream->ended(error_end);
  }
  Bytes image = f.image();
  const auto before = reads(image);
  ASSERT_EQ(before.size(), 2u);
  const token_log::Counts counts = *token_log::counts_of(image.size());
  const std::size_t blocks = token_log::blocks_at(counts.slots);
  int lost = 0, refused = 0;
  for (std::size_t at = 0; at < image.size(); ++at) {
    // Free blocks hold nothing.
    if (at == blocks + 2 * sizeof(Block)) break;
    for (const auto flip : {std::byte{0x01}, std::byte{0x80}}) {
      image[at] ^= flip;
      if (!token_log::instance_of(image)) {
        ++refused;
      } else {
        const auto found = token_log::read(image).requests;
        EXPECT_GE(found.size(), 1u) << "byte " << at;
        lost += found.size() == 1;
        for (const Read& read : found) EXPECT_TRUE(same(read, before[0]) || same(read, before[1])) << "byte " << at << " made another request of it";
      }
      image[at] ^= flip;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(lost, 400);
}

TEST(TokenLog, a_shorter_log_is_none) {
  TokenLogFixture f(std::size_t{64} << 10);
  const Bytes image = f.image();
  for (std::size_t length = 0; length < image.size(); ++length) EXPECT_FALSE(token_log::instance_of({image.data(), length})) << length;
  EXPECT_TRUE(token_log::instance_of(image));
}

TEST(TokenLog, a_log_without_a_sound_header_begins_anew_under_another_name) {
  TokenLogFixture f;
  StreamLog stream = f.open(logged_submit());
  stream.accepted();
  Bytes image = f.image();
  image[3] ^= std::byte{1};
  auto taken = TokenLogFixture::next_core(image);
  EXPECT_EQ(taken.instance, "fresh");
  EXPECT_GT(taken.damaged, 0u);
  EXPECT_TRUE(taken.streams.empty());
  StreamLog again = *taken.log->open(logged_submit(), 100);
  again.accepted();
  const auto next = TokenLogFixture::next_core({taken.log->bytes().begin(), taken.log->bytes().end()});
  EXPECT_EQ(next.instance, "fresh");
  EXPECT_EQ(next.streams.size(), 1u);
}

TEST(TokenLog, two_chains_never_share_a_block) {
  TokenLogFixture f;
  StreamLog one = f.open(logged_submit("one")), two = f.open(logged_submit("two"));
  Bytes image = f.image();
  // A copy of the first slot claims the same block with the same serial, so its checksum is right.
  set_slot(image, 1, slot_of(image, 0));
  EXPECT_EQ(reads(image).size(), 1u);
  EXPECT_EQ(token_log::read(image).damaged, (std::vector<std::uint32_t>{1}));
}

TEST(TokenLog, a_full_log_refuses_new_requests_and_no_open_stream_fails) {
  TokenLogFixture f(std::size_t{64} << 10);
  std::vector<StreamLog> streams;
  std::optional<Error> refusal;
  while (!refusal) {
    auto stream = f.log->open(logged_submit(std::to_string(streams.size()), 1000), 1000);
    if (stream)
      streams.push_back(std::move(*stream));
    else
      refusal = stream.error();
  }
  ASSERT_GE(streams.size(), 2u);
  EXPECT_EQ(refusal->code, ErrorCode::busy);
  EXPECT_NE(refusal->message.find("--token-log-mib"), std::string::npos);
  EXPECT_EQ(f.log->open(logged_submit("huge", 1'000'000), 1'000'000).error().code, ErrorCode::too_large);
  // The worst that a stream may write: every token a delta of its own, two ends with long reasons.
  for (StreamLog& stream : streams) {
    stream.accepted();
    for (TokenId token = 0; token < 1000; ++token) {
      stream.tokens(std::vector<TokenId>{token});
      stream.cut();
    }
    const LoggedEnd longest{FinishReason::error, {1, 2, 3}, Error{ErrorCode::internal, std::string(5000, 'm'), std::string(5000, 'f')}};
    stream.closed(longest);
    stream.cut();
    stream.ended(longest);
    EXPECT_TRUE(stream.open());
  }
  const auto found = reads(f.image());
  ASSERT_EQ(found.size(), streams.size());
  for (const Read& read : found) {
    EXPECT_EQ(read.story.size(), 2002u);
    EXPECT_EQ(read.ended->error->message, std::string(logged_text_bytes_max, 'm')) << "long words are cut";
  }
}

TEST(TokenLog, finished_streams_make_room_for_new_ones_oldest_first) {
  TokenLogFixture f(std::size_t{64} << 10);
  std::vector<StreamLog> finished;
  for (int i = 0; i < 200; ++i) {
    StreamLog stream = f.open(logged_submit(std::to_string(i), 1000));
    ASSERT_TRUE(stream.open()) << i;
    stream.accepted();
    stream.ended(whole_end);
    finished.push_back(std::move(stream));
  }
  const auto found = reads(f.image());
  ASSERT_FALSE(found.empty());
  EXPECT_LT(found.size(), 60u);
  EXPECT_EQ(found.back().submit.request_id, "199");
  // Those that were forgotten are still held by somebody, whose end must not hurt who has the place now.
  const std::size_t before = found.size();
  finished.erase(finished.begin(), finished.begin() + 50);
  EXPECT_EQ(reads(f.image()).size(), before);
  finished.clear();
  EXPECT_TRUE(reads(f.image()).empty());
}

TEST(TokenLog, what_is_over_leaves_nothing_behind) {
  TokenLogFixture f;
  const std::size_t free = f.log->blocks_free();
  {
    StreamLog open = f.open(logged_submit("one", 600)), moved = f.open(logged_submit("two"));
    for (TokenId token = 0; token < 600; ++token) open.tokens(std::vector<TokenId>{token});
    moved = std::move(open);
    EXPECT_LT(f.log->blocks_free(), free);
  }
  EXPECT_EQ(f.log->blocks_free(), free);
  const Bytes image = f.image();
  EXPECT_TRUE(std::all_of(image.begin() + token_log::slots_at, image.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(TokenLog, an_acceptance_that_comes_after_the_end_is_no_part_of_the_story) {
  TokenLogFixture f;
  StreamLog stream = f.open(logged_submit("rejected"));
  stream.ended({FinishReason::error, {}, Error{ErrorCode::busy, "full", ""}});
  const Bytes image = f.image();
  stream.accepted();
  EXPECT_EQ(f.image(), image);
  StreamLog control = f.open(logged_submit("control"));
  const Bytes opened = f.image();
  control.accepted();
  EXPECT_NE(f.image(), opened) << "before the end it is";
}

TEST(TokenLog, what_a_dead_core_had_in_hand_leaves_nothing_behind_either) {
  TokenLogFixture f;
  StreamLog dropped = f.open(logged_submit("not accepted")), kept = f.open(logged_submit("kept"));
  kept.accepted();
  Bytes image = f.image();
  TokenLog::TakenOver taken;
  {
    Descriptor file(::memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(::write(file.get(), image.data(), image.size()), static_cast<ssize_t>(image.size()));
    TokenLog::note_core_death(file.get(), 3, 77);
    taken = *TokenLog::take_over(file, "fresh");
  }
  EXPECT_EQ(taken.core_deaths, 3u);
  EXPECT_EQ(taken.died_ns, 77u);
  ASSERT_EQ(taken.streams.size(), 1u);
  taken.streams.clear();
  const auto bytes = taken.log->bytes();
  EXPECT_TRUE(std::all_of(bytes.begin() + token_log::slots_at, bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(TokenLog, a_request_that_cores_die_of_is_given_up_and_one_that_moves_is_not) {
  TokenLogFixture f;
  StreamLog poison = f.open(logged_submit("poison")), fine = f.open(logged_submit("fine"));
  poison.accepted();
  fine.accepted();
  Bytes image = f.image();
  std::uint32_t deaths = 0;
  for (bool there = true; there && deaths < 50; ++deaths) {
    auto taken = TokenLogFixture::next_core(image);
    there = taken.streams.size() == 2;
    EXPECT_EQ(taken.given_up, there ? 0u : 1u);
    taken.streams.back().log.tokens(std::vector<TokenId>{deaths});
    EXPECT_EQ(taken.streams.back().read.submit.request_id, "fine");
    image.assign(taken.log->bytes().begin(), taken.log->bytes().end());
  }
  EXPECT_EQ(deaths, TokenLog::takeovers_max + 1);
}

TEST(TokenLog, streams_of_many_threads_do_not_mix) {
  TokenLogFixture f(std::size_t{2} << 20);
  std::vector<std::thread> threads;
  std::vector<StreamLog> kept(4);
  for (std::uint32_t t = 0; t < kept.size(); ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        StreamLog stream = f.open(logged_submit(std::to_string(t), 1000));
        stream.accepted();
        for (TokenId token = 0; token < 1000; ++token) {
          const TokenId mine = token * 4 + t;
          stream.tokens(std::span(&mine, 1));
        }
        kept[t] = std::move(stream);
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto found = reads(f.image());
  ASSERT_EQ(found.size(), kept.size());
  for (const Read& read : found) {
    ASSERT_EQ(read.story.size(), 1000u);
    for (TokenId token = 0; token < 1000; ++token) EXPECT_EQ(read.story[token], token * 4 + static_cast<TokenId>(std::stoul(read.submit.request_id)));
  }
}

TEST(TokenLog, a_token_that_would_read_as_a_mark_is_not_kept) {
  TokenLogFixture f;
  StreamLog stream = f.open(logged_submit());
  stream.accepted();
  stream.tokens(std::vector<TokenId>{1, word_closed});
  EXPECT_FALSE(stream.open());
  EXPECT_TRUE(reads(f.image()).empty());
}

TEST(TokenLog, sizes_that_cannot_be_are_refused) {
  EXPECT_EQ(TokenLog::create(1000, "x").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(TokenLog::create(std::size_t{5} << 30, "x").error().code, ErrorCode::invalid_argument);
}

TEST(TokenLog, tp_degrees_are_part_of_the_story_and_of_the_promise) {
  TokenLogFixture f(std::size_t{64} << 10);
  StreamLog log = f.open(logged_submit("r", 20));
  log.accepted();
  log.drawn_under(4);
  const std::vector<TokenId> tokens(10, 7);
  log.tokens(tokens);
  log.drawn_under(2);
  log.tokens(tokens);
  log.drawn_under(0);    // of no ranks
  log.drawn_under(200);  // nor of these
  const token_log::Contents contents = token_log::read(f.image());
  ASSERT_EQ(contents.requests.size(), 1u);
  std::vector<std::uint32_t> tps;
  std::size_t drawn = 0;
  for (const std::uint32_t word : contents.requests[0].story)
    if (token_log::is_tp(word))
      tps.push_back(word - token_log::word_tp);
    else
      ++drawn;
  EXPECT_EQ(tps, (std::vector<std::uint32_t>{4, 2}));
  EXPECT_EQ(drawn, 20u);
  log.closed({});
  log.ended({});
  EXPECT_TRUE(log.open()) << "there was room for all of it";
  EXPECT_TRUE(token_log::read(f.image()).requests.at(0).ended.has_value());
}

}  // namespace
}  // namespace althing::actors::tests
