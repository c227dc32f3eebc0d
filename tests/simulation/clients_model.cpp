// The clients: see the header.
#include "tests/simulation/clients_model.hpp"

#include <algorithm>
#include <utility>

namespace althing::tests {
namespace {

constexpr std::uint32_t attempts_max = 40;
constexpr Timeline::Time miss_us = 1'000'000;  // after which a server misses a client that has gone

}  // namespace

ClientsModel::ClientsModel(Stage& stage, Links links, std::uint32_t tokens_max)
    : stage_(stage),
      links_(std::move(links)),
      tokens_max_(tokens_max),
      asks_(workload::asks_of(stage.setup.workload, stage.dice.bits())),
      followers_(asks_.size()),
      clients_(asks_.size()) {}

void ClientsModel::begin() {
  for (std::uint32_t number = 0; number < asks_.size(); ++number) {
    if (asks_[number].after)
      followers_[*asks_[number].after].push_back(number);
    else
      stage_.time.at(stage_.setup.asks_from_us + asks_[number].at_us, [this, number] { ask(number); });
  }
}

// A family's text and one's own words, or the conversation so far and some more; a conversation that has become too long begins anew.
std::vector<TokenId> ClientsModel::prompt_of(std::uint32_t number) {
  const workload::Ask& ask = asks_[number];
  const std::uint32_t most = stage_.setup.core.limits.context_tokens_max - 1, vocabulary = stage_.setup.core.vocabulary;
  std::vector<TokenId> prompt;
  if (ask.after) {
    const Client& before = clients_[*ask.after];
    prompt = before.request.submitted.prompt;
    prompt.insert(prompt.end(), before.expected[0].tokens.begin(), before.expected[0].tokens.begin() + before.heard[0]);
    if (prompt.size() + ask.prompt > most) prompt.resize(most / 4);
  }
  for (std::uint32_t i = 0; i < ask.shared; ++i) prompt.push_back(static_cast<TokenId>(mix(ask.family, i) % vocabulary));
  // Who says the same again and again is easily guessed.
  const std::uint32_t words = stage_.dice.one_in(stage_.setup.habits.repeat) ? 2 : vocabulary;
  for (std::uint32_t i = ask.shared; i < ask.prompt && prompt.size() < most; ++i) prompt.push_back(stage_.dice.between(0, words - 1));
  return prompt;
}

void ClientsModel::make(std::uint32_t number) {
  Dice& dice = stage_.dice;
  const ClientHabits& habits = stage_.setup.habits;
  Client& client = clients_[number];
  Submitted& s = client.request.submitted;
  s.prompt = prompt_of(number);
  const std::uint32_t bound = stage_.setup.core.limits.tenant_sequences_max, most = bound > 0 ? std::min(4u, bound) : 4;
  s.choices = dice.one_in(habits.choices) && most > 1 ? dice.between(2, most) : 1;
  s.tenant = TenantId{asks_[number].tenant + 1};
  s.salt = {asks_[number].tenant + 1, 7};
  s.priority = dice.one_in(4) ? static_cast<std::int32_t>(dice.between(0, 8)) - 4 : 0;
  s.boundaries = {std::min<std::uint32_t>(asks_[number].shared, static_cast<std::uint32_t>(s.prompt.size()))};
  if (dice.one_in(habits.trace)) s.trace_top_m = 1;
  // Some seeds of the pseudo model run into NaN.
  s.sampling.seed = dice.one_in(10) ? 7 + 8 * dice.between(0, 5) : 8 * dice.between(0, 5);
  s.sampling.completion_tokens_max = asks_[number].answer;
  if (dice.one_in(habits.stop_token)) s.sampling.stop_tokens = {dice.between(0, stage_.setup.core.vocabulary - 1), 0};
  if (dice.one_in(habits.penalty)) s.sampling.frequency_penalty = 0.5F;
  // An answer that is held to a grammar: the frontend decides about each draw.
  s.constrained = dice.one_in(habits.grammar);
  if (dice.one_in(habits.deadline)) client.request.timeout_ms = dice.between(20, 3'000);
  if (client.request.timeout_ms > 0) client.deadline = stage_.time.now() + client.request.timeout_ms * 1000;
  client.slow = dice.one_in(habits.slow);
  client.request.credit = client.slow ? std::max(stage_.setup.credit, 2u) : stage_.setup.credit;
  if (dice.one_in(habits.stop)) client.request.stop_at = dice.between(1, asks_[number].answer);
  expect(client);
}

void ClientsModel::expect(Client& client) {
  client.heard.assign(client.request.submitted.choices, 0);
  for (std::uint32_t choice = 0; choice < client.request.submitted.choices; ++choice) {
    Submitted alone = client.request.submitted;
    alone.sampling.choice += choice;
    LoneRun run = lone_run(alone, stage_.setup.core.limits, stage_.setup.core.vocabulary);
    if (const auto stop_at = client.request.stop_at; stop_at && run.tokens.size() >= *stop_at) {
      run.tokens.resize(*stop_at);
      run.reason = FinishReason::stop;
    }
    client.expected.push_back(std::move(run));
  }
}

void ClientsModel::ask(std::uint32_t number) {
  make(number);
  clients_[number].asked = true;
  ++asked_;
  open(number);
  change_mind(number);
}

void ClientsModel::open(std::uint32_t number) {
  Client& client = clients_[number];
  ++client.attempts;
  client.retries = false;
  links_.open(number, client.request, client.heard, client.request.credit - std::min(client.deltas, client.request.credit));
}

void ClientsModel::change_mind(std::uint32_t number) {
  Dice& dice = stage_.dice;
  const std::uint64_t soon_us = dice.between(0, 40) * std::uint64_t{stage_.setup.step_us};
  if (dice.one_in(stage_.setup.habits.cancel))
    stage_.time.after(soon_us, [this, number] {
      if (std::exchange(clients_[number].cancels, true) || clients_[number].over) return;
      links_.cancel(number, Error{ErrorCode::cancelled, "the client asked", {}});
    });
  // The server finds out by itself.
  if (dice.one_in(stage_.setup.habits.vanish))
    stage_.time.after(soon_us, [this, number] {
      if (clients_[number].over) return;
      clients_[number].vanished = true;
      ++sums_.given_up;
      end(number);
      stage_.time.after(miss_us, [this, number] { links_.cancel(number, Error{ErrorCode::cancelled, "the client is gone", {}}); });
    });
}

void ClientsModel::reconnect() {
  for (std::uint32_t number = 0; number < clients_.size(); ++number)
    if (clients_[number].asked && !clients_[number].over && !clients_[number].retries) open(number);
}

void ClientsModel::hear(std::uint32_t number, const ToClient& message) {
  Client& client = clients_[number];
  if (client.vanished) return;
  if (client.over) return fail(number, "something comes behind the end");
  stage_.note(number, message.kind, message.tokens.size());
  switch (message.kind) {
    case ToClient::Kind::accepted:
      client.accepted = true;
      return;
    case ToClient::Kind::delta:
      return hear_delta(number, message);
    case ToClient::Kind::done:
      return hear_done(number, message);
    case ToClient::Kind::error:
      return hear_error(number, message.error);
  }
}

void ClientsModel::hear_delta(std::uint32_t number, const ToClient& message) {
  Client& client = clients_[number];
  if (!client.accepted) return fail(number, "tokens come before it was accepted");
  std::uint32_t& heard = client.heard[message.choice];
  const std::vector<TokenId>& expected = client.expected[message.choice].tokens;
  if (message.first != heard) return fail(number, "token " + std::to_string(message.first) + " comes where " + std::to_string(heard) + " is due");
  for (const TokenId token : message.tokens) {
    if (heard >= expected.size()) return fail(number, "more tokens come than there are");
    if (expected[heard] != token) return fail(number, "token " + std::to_string(heard) + " is not the right one");
    ++heard;
  }
  sums_.tokens += message.tokens.size();
  if (client.request.credit == 0) return;
  if (++client.deltas > client.request.credit) return fail(number, "more deltas come than it has granted");
  const std::uint64_t read_us = client.slow ? stage_.dice.between(10'000, 2'500'000) : stage_.dice.between(0, 2'000);
  stage_.time.after(read_us, [this, number] {
    if (clients_[number].over) return;
    --clients_[number].deltas;
    links_.grant(number, 1);
  });
}

void ClientsModel::hear_done(std::uint32_t number, const ToClient& message) {
  Client& client = clients_[number];
  if (message.ends.size() != client.expected.size()) return fail(number, "not every choice has ended");
  for (std::size_t choice = 0; choice < message.ends.size(); ++choice) {
    const LoneRun& expected = client.expected[choice];
    const StreamEnd& end = message.ends[choice];
    if (client.heard[choice] != expected.tokens.size() || end.tokens != expected.tokens.size()) return fail(number, "it ends and is not whole");
    if (end.reason != expected.reason) return fail(number, "it ends for another reason than a lone run");
  }
  ++sums_.whole;
  end(number);
}

// Whether what the client did, or what it knows of the server, is a reason for this.
bool ClientsModel::explains(const Client& client, const Error& error) const {
  const Submitted& s = client.request.submitted;
  switch (error.code) {
    case ErrorCode::cancelled:
      return client.cancels;
    case ErrorCode::deadline:
      return client.deadline != 0 && client.deadline <= stage_.time.now() + 2'000;
    case ErrorCode::slow_reader:
      return client.slow;
    case ErrorCode::nonfinite:
      return std::all_of(client.expected.begin(), client.expected.end(), [](const LoneRun& run) { return run.reason == FinishReason::error; });
    case ErrorCode::too_large:
      return stage_.setup.smaller_pools || s.prompt.size() + s.sampling.completion_tokens_max > tokens_max_;
    case ErrorCode::draining:
      return stage_.setup.drain_at_us != 0 && !client.accepted;
    default:
      return false;
  }
}

void ClientsModel::hear_error(std::uint32_t number, const Error& error) {
  Client& client = clients_[number];
  if (!client.accepted && error.code == ErrorCode::busy) {
    ++sums_.retries;
    if (client.attempts < attempts_max) {
      client.retries = true;
      const std::uint64_t wait_us =
          std::max<std::uint64_t>(error.retry_after_ms * 1000, stage_.dice.between(1, 40) * std::uint64_t{stage_.setup.step_us});
      return stage_.time.after(wait_us, [this, number] {
        if (!clients_[number].over && clients_[number].retries) open(number);
      });
    }
    ++sums_.given_up;
    return end(number);
  }
  if (!explains(client, error)) return fail(number, "it fails with " + std::string(name_of(error.code)) + ": " + error.message);
  ++sums_.failed;
  end(number);
}

void ClientsModel::end(std::uint32_t number) {
  clients_[number].over = true;
  ++over_;
  for (const std::uint32_t next : followers_[number]) stage_.time.after(asks_[next].at_us, [this, next] { ask(next); });
}

std::string ClientsModel::missing() const {
  for (std::uint32_t number = 0; number < clients_.size(); ++number) {
    const Client& client = clients_[number];
    if (client.over) continue;
    std::string text = "client " + std::to_string(number) + (client.accepted ? ", which was accepted," : ", which was not accepted,");
    for (std::size_t choice = 0; choice < client.heard.size(); ++choice)
      text += " has " + std::to_string(client.heard[choice]) + " of " + std::to_string(client.expected[choice].tokens.size()) + " tokens";
    return text + " and no end";
  }
  return {};
}

}  // namespace althing::tests
