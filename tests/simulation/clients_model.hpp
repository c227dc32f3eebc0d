// The clients: they ask as the workload says, read fast or slowly, change their minds, vanish, and come back when the server was gone. Each knows
// what its stream must say, because draws are a function of prompt and seed: token by token, no gap, none twice, one end. Whoever hears anything else
// says so.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/frontends_model.hpp"

namespace althing::tests {

class ClientsModel {
 public:
  // Messages to the server, as they leave.
  struct Links {
    std::function<void(std::uint32_t number, const StreamRequest& request, const std::vector<std::uint32_t>& heard, std::uint32_t room)> open;
    std::function<void(std::uint32_t number, std::uint32_t credit)> grant;
    std::function<void(std::uint32_t number, const Error& error)> cancel;
  };

  // `tokens_max`: of one request, in the full grid.
  ClientsModel(Stage& stage, Links links, std::uint32_t tokens_max);

  void begin();
  void hear(std::uint32_t number, const ToClient& message);
  // The server is another one: whoever waits for something comes back for it.
  void reconnect();

  bool over() const { return over_ == clients_.size(); }
  bool asked() const { return asked_ == clients_.size(); }
  std::string missing() const;  // who waits for what
  struct Sums {
    std::uint64_t whole = 0, failed = 0, given_up = 0, tokens = 0, retries = 0;
  };
  const Sums& sums() const { return sums_; }

 private:
  struct Client {
    StreamRequest request;
    std::vector<LoneRun> expected;     // by choice, up to its stop string
    std::vector<std::uint32_t> heard;  // tokens, likewise
    std::uint32_t deltas = 0;          // not granted again yet
    bool asked = false, accepted = false, retries = false, over = false;
    bool cancels = false, vanished = false, slow = false;
    std::uint32_t attempts = 0;
    Timeline::Time deadline = 0;
  };

  void ask(std::uint32_t number);
  void make(std::uint32_t number);
  std::vector<TokenId> prompt_of(std::uint32_t number);
  void expect(Client& client);
  void open(std::uint32_t number);
  void change_mind(std::uint32_t number);
  void hear_delta(std::uint32_t number, const ToClient& message);
  void hear_done(std::uint32_t number, const ToClient& message);
  void hear_error(std::uint32_t number, const Error& error);
  bool explains(const Client& client, const Error& error) const;
  void end(std::uint32_t number);
  void fail(std::uint32_t number, const std::string& why) { stage_.fail("client " + std::to_string(number) + ": " + why); }

  Stage& stage_;
  Links links_;
  std::uint32_t tokens_max_;
  std::vector<workload::Ask> asks_;
  std::vector<std::vector<std::uint32_t>> followers_;  // who goes on from whom
  std::vector<Client> clients_;                        // one an ask
  std::uint32_t over_ = 0, asked_ = 0;
  Sums sums_;
};

}  // namespace althing::tests
