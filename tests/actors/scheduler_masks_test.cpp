// Masks on their way from a frontend to the ranks: each goes with the draw that it was made for, also when that draw has to be made again.
#include "scheduler/vocabulary/token_mask.hpp"
#include "tests/actors/scheduler_fixture.hpp"

namespace althing::actors::tests {
namespace {

class SchedulerMasksTest : public SchedulerActorTest {
 protected:
  static std::shared_ptr<const std::string> mask(TokenId token) {
    std::vector<std::uint32_t> words(mask_words(100), 0);
    words[token / 32] |= 1u << (token % 32);
    return std::make_shared<const std::string>(encode_mask(words));
  }
  std::shared_ptr<Heard> submit_constrained(std::uint64_t id, std::uint32_t completion, std::uint32_t draws_ready,
                                            std::shared_ptr<const std::string> first) {
    auto heard = std::make_shared<Heard>();
    SubmitRequest request;
    request.submitted.request = RequestId{id};
    request.submitted.prompt.assign(20, 1);
    request.submitted.sampling.completion_tokens_max = completion;
    request.submitted.constrained = true;
    request.submitted.draws_ready = draws_ready;
    request.frontend = keep(system_.spawn(recorder, heard));
    request.mask = std::move(first);
    caf::anon_send(scheduler_, std::move(request));
    settle();
    return heard;
  }
  void allow(std::uint64_t id, std::uint32_t until, std::shared_ptr<const std::string> of = nullptr) {
    caf::anon_send(scheduler_, AllowDraws{RequestId{id}, until, std::move(of)});
    settle();
  }
  // Of the request's draws in order; "" for a free one.
  static std::vector<std::string> masks(const PretendRank& rank, RowIndex row = RowIndex{0}) {
    std::vector<std::string> found;
    for (const StepPlan& plan : rank.seen)
      for (const RowWork& work : plan.work)
        if (work.sample && work.row == row) found.push_back(work.mask);
    return found;
  }
};

TEST_F(SchedulerMasksTest, each_draw_has_its_own_mask_and_free_ones_have_none) {
  start();
  auto rank = std::make_shared<PretendRank>();
  join(1, rank);
  const auto heard = submit_constrained(1, 5, 1, mask(7));
  EXPECT_EQ(heard->tokens.size(), 1u);
  allow(1, 3);
  EXPECT_EQ(heard->tokens.size(), 3u);
  allow(1, 4, mask(9));
  allow(1, 5, mask(11));
  EXPECT_EQ(heard->finished.size(), 1u);
  EXPECT_EQ(masks(*rank), (std::vector<std::string>{*mask(7), "", "", *mask(9), *mask(11)}));
  allow(1, 6, mask(1));  // it is over
}

TEST_F(SchedulerMasksTest, a_draw_that_was_lost_is_made_again_under_its_mask) {
  start();
  auto first = std::make_shared<PretendRank>();
  first->answering = false;
  const caf::actor actor = join(1, first);
  const auto heard = submit_constrained(1, 2, 1, mask(7));
  EXPECT_EQ(masks(*first), (std::vector<std::string>{*mask(7)}));
  caf::anon_send(scheduler_, MembershipLost{1, 0, "exit"});
  settle();
  auto second = std::make_shared<PretendRank>();
  join(2, second);
  EXPECT_EQ(masks(*second), (std::vector<std::string>{*mask(7)}));
  allow(1, 2, mask(8));
  EXPECT_EQ(masks(*second), (std::vector<std::string>{*mask(7), *mask(8)}));
  EXPECT_EQ(heard->finished.size(), 1u);
}

TEST_F(SchedulerMasksTest, a_row_that_somebody_else_gets_has_no_masks_of_its_last_owner) {
  options_.core.limits.rows_max = 1;
  start();
  auto rank = std::make_shared<PretendRank>();
  join(1, rank);
  submit_constrained(1, 2, 1, mask(7));
  const auto other = submit(2, 20, 2);
  EXPECT_TRUE(other->tokens.empty()) << "it waits for the row";
  allow(1, 2, mask(8));
  EXPECT_EQ(other->tokens.size(), 2u);
  EXPECT_EQ(masks(*rank), (std::vector<std::string>{*mask(7), *mask(8), "", ""}));
}

}  // namespace
}  // namespace althing::actors::tests
