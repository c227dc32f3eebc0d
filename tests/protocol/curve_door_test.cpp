// The door: what the ZAP handler answers, and that whoever is not on the list stays outside in every order of start and death.
#include "protocol/client/client.hpp"
#include "protocol/curve/door.hpp"
#include "protocol/curve/zap.hpp"
#include "protocol/wire/router_socket.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>

namespace althing::protocol::curve {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds patience{10'000};

std::string bytes_of(const PublicKey& key) {
  std::string bytes(key_bytes, '\0');
  EXPECT_NE(zmq_z85_decode(reinterpret_cast<std::uint8_t*>(bytes.data()), key.text.c_str()), nullptr);
  return bytes;
}

KeyPair copy(const KeyPair& pair) { return {pair.public_key, *SecretKey::of(pair.secret.text())}; }

TEST(zap, every_question_has_an_answer) {
  const KeyPair known = *KeyPair::make(), unknown = *KeyPair::make();
  KeyRing ring({{Role::client, "a", known.public_key, ""}}, {});
  const ZapFrames good{"1.0", "7", zap_domain, "10.0.0.1", "", "CURVE", bytes_of(known.public_key)};
  const auto with = [&](std::size_t frame, const std::string& text) {
    ZapFrames frames = good;
    frames[frame] = text;
    return frames;
  };
  ZapAnswer answer = zap_answer(good, ring);
  EXPECT_EQ(answer.result, ZapResult::accepted);
  EXPECT_EQ(answer.frames, (ZapFrames{"1.0", "7", "200", "", known.public_key.text, ""}));

  for (const ZapFrames& bad :
       {with(6, bytes_of(unknown.public_key)), with(2, "other"), with(2, ""), with(5, "NULL"), with(5, "PLAIN"), with(5, "")}) {
    answer = zap_answer(bad, ring);
    EXPECT_EQ(answer.result, ZapResult::denied);
    EXPECT_EQ(answer.frames, (ZapFrames{"1.0", "7", "400", "denied", "", ""})) << "whatever was wrong, the same words";
  }
  ZapFrames null_mechanism(good.begin(), good.end() - 1);
  null_mechanism[5] = "NULL";
  EXPECT_EQ(zap_answer(null_mechanism, ring).result, ZapResult::denied);

  ZapFrames more = good, none, one{"1.0"};
  more.emplace_back("x");
  for (const ZapFrames& bad : {with(0, "2.0"), with(0, ""), with(6, ""), with(6, std::string(31, 'k')), with(6, std::string(33, 'k')), more, none,
                               one, ZapFrames(good.begin(), good.end() - 1)}) {
    answer = zap_answer(bad, ring);
    EXPECT_EQ(answer.result, ZapResult::malformed);
    EXPECT_EQ(answer.frames[2], "500");
    EXPECT_EQ(answer.frames[1], bad.size() > 1 ? "7" : "");
    EXPECT_EQ(answer.frames.size(), 6u);
  }
}

// A ROUTER as RouterSocket makes it, with a handler that a test can take away.
struct Door {
  zmq::context_t context;
  KeyPair server = *KeyPair::make(), listed = *KeyPair::make();
  KeyRing ring{{{Role::client, "a", listed.public_key, ""}}, {}};
  std::unique_ptr<ZapHandler> handler;
  zmq::socket_t socket{context, zmq::socket_type::router};
  std::string endpoint;

  void open() {
    ASSERT_TRUE(make_door(socket, server.secret));
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::handshake_ivl, 1000);
    socket.set(zmq::sockopt::rcvtimeo, static_cast<int>(patience.count()));
    socket.bind("tcp://127.0.0.1:*");
    endpoint = socket.get(zmq::sockopt::last_endpoint);
  }
  void answer_with(ZapHandler::Answer answer) {
    auto started = ZapHandler::start(context, std::move(answer));
    ASSERT_TRUE(started) << started.error().message;
    handler = std::move(*started);
  }
  void answer_truly() {
    answer_with([this](const ZapFrames& request) { return zap_answer(request, ring).frames; });
  }
  Knock knock_with(const KeyPair& key, milliseconds wait = patience) const { return knock(endpoint, server.public_key, key, wait); }
};

TEST(door, listed_keys_come_in_and_no_others) {
  Door door;
  door.answer_truly();
  door.open();
  EXPECT_EQ(door.knock_with(door.listed), Knock::accepted);
  EXPECT_EQ(door.knock_with(*KeyPair::make()), Knock::denied);
  EXPECT_EQ(knock(door.endpoint, KeyPair::make()->public_key, door.listed, milliseconds(500)), Knock::silent) << "another server's key";
  EXPECT_TRUE(try_door(door.endpoint, door.server.public_key, door.listed));
}

TEST(door, a_handler_that_lets_everybody_in_is_found_out) {
  Door door;
  door.answer_with([](const ZapFrames& request) { return ZapFrames{"1.0", request[1], "200", "", "anybody", ""}; });
  door.open();
  auto tried = try_door(door.endpoint, door.server.public_key, door.listed);
  ASSERT_FALSE(tried);
  EXPECT_NE(tried.error().message.find("did not turn away"), std::string::npos);
}

TEST(door, a_handler_that_lets_nobody_in_is_found_out) {
  Door door;
  door.answer_with([](const ZapFrames& request) { return ZapFrames{"1.0", request[1], "400", "denied", "", ""}; });
  door.open();
  auto tried = try_door(door.endpoint, door.server.public_key, door.listed);
  ASSERT_FALSE(tried);
  EXPECT_NE(tried.error().message.find("did not let in"), std::string::npos);
}

TEST(door, without_a_handler_it_is_shut) {
  Door door;
  door.open();
  EXPECT_EQ(door.knock_with(door.listed, milliseconds(700)), Knock::silent);
  door.answer_truly();
  EXPECT_EQ(door.knock_with(door.listed), Knock::accepted) << "a handler that comes later opens it";
}

TEST(door, when_the_handler_dies_nobody_new_comes_in_and_those_inside_go_on) {
  Door door;
  door.answer_truly();
  door.open();
  zmq::context_t context;
  zmq::socket_t inside(context, zmq::socket_type::dealer);
  inside.set(zmq::sockopt::linger, 0);
  use_keys(inside, door.server.public_key, door.listed);
  inside.connect(door.endpoint);
  const auto hears = [&](const std::string& word) {
    inside.send(zmq::buffer(word), zmq::send_flags::none);
    zmq::message_t route, text;
    return door.socket.recv(route) && door.socket.recv(text) && text.to_string_view() == word &&
           zmq_msg_gets(text.handle(), "User-Id") == door.listed.public_key.text;
  };
  EXPECT_TRUE(hears("one"));
  door.handler.reset();
  EXPECT_EQ(door.knock_with(door.listed, milliseconds(700)), Knock::silent);
  EXPECT_TRUE(hears("two"));
}

TEST(door, a_handler_that_hangs_lets_nobody_in_until_it_goes_on) {
  Door door;
  std::mutex mutex;
  std::condition_variable released;
  bool hangs = true;
  door.answer_with([&](const ZapFrames& request) {
    std::unique_lock lock(mutex);
    released.wait(lock, [&] { return !hangs; });
    return zap_answer(request, door.ring).frames;
  });
  door.open();
  EXPECT_EQ(door.knock_with(door.listed, milliseconds(1500)), Knock::silent) << "longer than a handshake may take";
  {
    const std::lock_guard lock(mutex);
    hangs = false;
  }
  released.notify_all();
  EXPECT_EQ(door.knock_with(door.listed), Knock::accepted);
}

TEST(door, nonsense_from_the_handler_lets_nobody_in) {
  const KeyPair stranger = *KeyPair::make();
  for (const ZapFrames& nonsense : {ZapFrames{}, ZapFrames{"1.0"}, ZapFrames{"1.0", "", "200", "", "x", ""}, ZapFrames{"9", "1", "200", "", "x", ""},
                                    ZapFrames{"1.0", "1", "999", "", "x", ""}, ZapFrames{"1.0", "1", "", "", "x", ""}}) {
    Door door;
    door.answer_with([&](const ZapFrames&) { return nonsense; });
    door.open();
    EXPECT_NE(door.knock_with(stranger, milliseconds(500)), Knock::accepted);
  }
}

wire::RouterKeys router_keys(const KeyPair& server, const KeyPair& inside, std::shared_ptr<KeyRing> ring, std::atomic<int>* counts) {
  return {std::make_shared<const SecretKey>(*SecretKey::of(server.secret.text())), std::make_shared<const KeyPair>(copy(inside)), std::move(ring),
          [counts](ZapResult result) { ++counts[static_cast<int>(result)]; }};
}

TEST(router_with_keys, tells_who_speaks_and_cuts_who_may_no_more) {
  const KeyPair server = *KeyPair::make(), inside = *KeyPair::make(), other = *KeyPair::make();
  const KeyEntry own{Role::gateway, "inside", inside.public_key, ""}, listed{Role::client, "other", other.public_key, ""};
  auto ring = std::make_shared<KeyRing>(AllowList{listed}, AllowList{own});
  std::array<std::atomic<int>, 3> counts{};
  auto router = wire::RouterSocket::bind("tcp://127.0.0.1:0", Limits{}, router_keys(server, inside, ring, counts.data()));
  ASSERT_TRUE(router) << router.error().message;
  EXPECT_EQ(counts[0], 1) << "the door was tried";
  EXPECT_EQ(counts[1], 1);

  zmq::context_t context;
  const auto connect = [&](const KeyPair& key) {
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    use_keys(socket, server.public_key, key);
    socket.connect(router->endpoint());
    return socket;
  };
  const auto hear = [&](zmq::socket_t& from) {
    from.send(zmq::str_buffer("x"), zmq::send_flags::none);
    for (const auto deadline = std::chrono::steady_clock::now() + patience; std::chrono::steady_clock::now() < deadline;) {
      router->wait(-1, milliseconds(100));
      if (auto received = router->receive()) return *received;
    }
    return wire::RouterSocket::Received{};
  };
  zmq::socket_t first = connect(inside), second = connect(other);
  const auto from_first = hear(first), from_second = hear(second);
  EXPECT_EQ(from_first.key, inside.public_key.text);
  EXPECT_EQ(from_second.key, other.public_key.text);
  ASSERT_GE(from_first.connection, 0);
  ASSERT_NE(from_first.connection, from_second.connection);

  ring->replace({});
  EXPECT_EQ(router->cut_all_but({from_first.connection}), 1u);
  EXPECT_EQ(hear(first).connection, from_first.connection) << "the other connection was left alone";
  EXPECT_EQ(knock(router->endpoint(), server.public_key, other, patience), Knock::denied);
}

TEST(router_with_keys, other_interfaces_need_keys) {
  EXPECT_FALSE(wire::RouterSocket::check("tcp://0.0.0.0:4550", false));
  EXPECT_NE(wire::RouterSocket::check("tcp://0.0.0.0:4550", false).error().message.find("--curve-key"), std::string::npos);
  for (const char* good : {"tcp://0.0.0.0:4550", "tcp://*:0", "tcp://192.168.1.2:1", "tcp://[::]:1", "tcp://[fe80::1]:1", "tcp://127.0.0.1:1"})
    EXPECT_TRUE(wire::RouterSocket::check(good, true)) << good;
  for (const char* bad : {"tcp://example.org:1", "tcp://eth0:1", "tcp://1.2.3:1", "tcp://[::1:1", "tcp://999.1.1.1:1", "ipc://x", "tcp://*"})
    EXPECT_FALSE(wire::RouterSocket::check(bad, true)) << bad;
}

TEST(client_with_keys, says_why_it_is_not_let_in) {
  const KeyPair server = *KeyPair::make(), inside = *KeyPair::make();
  auto ring = std::make_shared<KeyRing>(AllowList{}, AllowList{{Role::gateway, "inside", inside.public_key, ""}});
  std::array<std::atomic<int>, 3> counts{};
  auto router = wire::RouterSocket::bind("tcp://127.0.0.1:0", Limits{}, router_keys(server, inside, ring, counts.data()));
  ASSERT_TRUE(router);
  const auto refusal = [&](const PublicKey* server_key, const std::string& endpoint) {
    ClientOptions options{.endpoint = endpoint, .timeout = milliseconds(1500), .limits = {}};
    if (server_key != nullptr) options.keys = std::make_shared<const ClientKeys>(ClientKeys{*server_key, *KeyPair::make()});
    auto client = Client::connect(options);
    return client ? Error{} : client.error();
  };
  const PublicKey other = KeyPair::make()->public_key;
  Error error = refusal(&server.public_key, router->endpoint());
  EXPECT_EQ(error.code, ErrorCode::denied);
  EXPECT_NE(error.message.find("does not let this key in"), std::string::npos) << error.message;
  error = refusal(nullptr, router->endpoint());
  // Which of the two sides hangs up first is a race.
  EXPECT_TRUE(error.code == ErrorCode::denied || error.code == ErrorCode::unavailable);
  EXPECT_NE(error.message.find("--server-key"), std::string::npos) << error.message;
  error = refusal(&other, router->endpoint());
  EXPECT_EQ(error.code, ErrorCode::denied);
  EXPECT_EQ(error.field, "server-key") << error.message;
  auto open = wire::RouterSocket::bind("tcp://127.0.0.1:0", Limits{});
  ASSERT_TRUE(open);
  error = refusal(&other, open->endpoint());
  EXPECT_EQ(error.code, ErrorCode::denied) << error.message;
}

}  // namespace
}  // namespace althing::protocol::curve
