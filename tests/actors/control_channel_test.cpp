// The line between supervisor and children: whole messages, descriptors that arrive, an end of file that is seen.
#include "actors/control_channel.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "actors/certificates.hpp"

namespace althing::actors {
namespace {

using std::chrono::milliseconds;

TEST(control_channel, words_arrive_in_order_and_the_rest_of_a_sentence_stays_together) {
  auto ends = ControlChannel::pair();
  ASSERT_TRUE(ends);
  EXPECT_TRUE(ends->first.send("ready 7"));
  EXPECT_TRUE(ends->first.send("a b c d e f g h i"));
  auto first = ends->second.receive(milliseconds(1000));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->words, (std::vector<std::string>{"ready", "7"}));
  auto second = ends->second.receive(milliseconds(1000));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->words.size(), 8U);
  EXPECT_EQ(second->words.back(), "h i");
}

TEST(control_channel, a_descriptor_travels_with_its_message) {
  auto ends = ControlChannel::pair();
  ASSERT_TRUE(ends);
  const Descriptor file(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.get(), "hello", 5), 5);
  EXPECT_TRUE(ends->first.send("take", file.get()));
  auto message = ends->second.receive(milliseconds(1000));
  ASSERT_TRUE(message);
  ASSERT_TRUE(message->descriptor);
  char text[6] = "";
  EXPECT_EQ(::pread(message->descriptor.get(), text, 5, 0), 5);
  EXPECT_STREQ(text, "hello");
}

TEST(control_channel, the_other_side_s_end_is_seen_after_its_last_message) {
  auto ends = ControlChannel::pair();
  ASSERT_TRUE(ends);
  EXPECT_TRUE(ends->first.send("failed 4 why"));
  ends->first = ControlChannel(Descriptor());
  ASSERT_TRUE(ends->second.receive(milliseconds(1000)));
  EXPECT_FALSE(ends->second.closed());
  EXPECT_FALSE(ends->second.receive(milliseconds(1000)));
  EXPECT_TRUE(ends->second.closed());
  EXPECT_FALSE(ends->second.send("anybody?"));
}

TEST(control_channel, a_reader_that_never_reads_does_not_block_the_sender) {
  auto ends = ControlChannel::pair();
  ASSERT_TRUE(ends);
  int sent = 0;
  while (sent < 1'000'000 && ends->first.send("ready 1")) ++sent;
  EXPECT_LT(sent, 1'000'000);
}

TEST(certificates, leaf_is_signed_by_the_authority_and_the_memory_is_sealed) {
  auto certificates = make_certificates();
  ASSERT_TRUE(certificates) << certificates.error().message;
  for (const Descriptor* file : {&certificates->authority, &certificates->certificate, &certificates->key}) {
    EXPECT_EQ(::write(file->get(), "x", 1), -1);
    EXPECT_EQ(::access(path_of(file->get()).c_str(), R_OK), 0);
  }
  auto others = make_certificates();
  ASSERT_TRUE(others);
  char one[4096] = "", other[4096] = "";
  EXPECT_GT(::pread(certificates->key.get(), one, sizeof one - 1, 0), 0);
  EXPECT_GT(::pread(others->key.get(), other, sizeof other - 1, 0), 0);
  EXPECT_STRNE(one, other);
}

}  // namespace
}  // namespace althing::actors
