# The binary form of Althing's wire protocol: what follows the frame header "ALT1c". docs/protocol.md tells the rules of the conversation and shows
# every message as bytes; protocol/wire/messages.hpp is the same as C++ values.
#
# Rules that every version keeps: fields and union members are only ever added, never renumbered or given another meaning; a reader ignores fields it
# does not know and answers a union member it does not know with the error `unsupported`. A body is one unpacked message with its segment table, a
# multiple of 8 bytes and nothing after it. Every Text is UTF-8. A null Text is an absent one where the prose says so and the empty one elsewhere.
@0xdb76a21634f543b3;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("althing::protocol::wire::schema");

struct ClientFrame {
  # What a client sends.
  requestId @0 :Text;
  # The request it is about, chosen by the client: 1 to 128 bytes without control characters. Empty for hello and ping. It stands outside of the union
  # so that a server can name the request even when it does not know the kind of message.
  union {
    hello @1 :Hello;
    # The first message on every connection.
    submit @2 :Submit;
    # Starts a request, or attaches to it when this client has used the id before.
    cancel @3 :Void;
    # Ends the request; its stream still gets its closing done or error.
    resume @4 :Resume;
    # Asks for everything after a sequence number once more, from this connection on.
    grant @5 :Grant;
    # Lets the stream send more deltas.
    ping @6 :Ping;
    # Keeps the session alive; answered by pong.
  }
}

struct Hello {
  versionMin @0 :UInt32;
  # The oldest protocol version this client speaks.
  versionMax @1 :UInt32;
  # The newest. The server picks the newest that both know.
  clientId @2 :Text;
  # 16 to 128 random bytes of text, kept secret and used again when reconnecting: who knows it can resume this client's requests.
  clientName @3 :Text;
  # For the server's log, e.g. "althing-cli/0.1".
}

struct Submit {
  messages @0 :List(Message);
  # The conversation so far. Either this or promptTokens, never both.
  tools @1 :List(Function);
  # What the model may call as functions.NAME.
  reasoningEffort @2 :ReasoningEffort;
  # For the system message that is put in front when the conversation has none.
  promptTokens @3 :List(UInt32);
  # Raw token ids instead of a conversation; then the stream carries token ids and no parsed messages.
  sampling @4 :Sampling;
  timeoutMs @5 :UInt32;
  # The request ends with the error `deadline` after this many milliseconds. 0: never.
  credit @6 :UInt32;
  # How many deltas the stream may send before it needs a grant. 0: no limit by count.
  returnTokens @7 :Bool;
  # Deltas also carry the generated token ids.
  traceTopM @8 :UInt32;
  # Deltas also tell where tokens were routed, with so many of the router's largest logits of each token and layer. 0: they do not.
  tenant @9 :Text;
  # Whose request it is, for accounting and a fair share: 1 to 64 of A-Z a-z 0-9 . _ -. Null or empty: "default".
  priority @10 :Int32;
  # Among the requests of its tenant, -4 to 4: the higher goes first.
  grammar :union {
    # What the answer is held to: the text of the final channel, or all of it where the chat format has no channels.
    none @11 :Void;
    jsonSchema @12 :Text;
    # JSON text.
    jsonObject @13 :Void;
    # Any JSON object.
    regex @14 :Text;
    # The whole text is the expression's.
  }
}

struct Sampling {
  # Every member left at `unset` takes the server's default.
  temperature :union {
    unset @0 :Void;
    value @1 :Float32;
    # 0 (greedy) to 2.
  }
  topP :union {
    unset @2 :Void;
    value @3 :Float32;
    # Over 0, up to 1.
  }
  minP :union {
    unset @4 :Void;
    value @5 :Float32;
    # 0 to 1.
  }
  topK :union {
    unset @6 :Void;
    value @7 :UInt32;
    # 0: all tokens.
  }
  seed :union {
    unset @8 :Void;
    value @9 :UInt64;
  }
  completionTokensMax :union {
    unset @10 :Void;
    value @11 :UInt32;
    # At least 1.
  }
  ignoreStop @12 :Bool;
  # Tokens that end a turn do not end it. Stop strings and stopTokens do.
  n @13 :UInt32 = 1;
  # So many completions (choices) of the same prompt, in one stream. At least 1.
  repetitionPenalty :union {
    unset @14 :Void;
    value @15 :Float32;
    # Over 0, up to 10. 1: none.
  }
  presencePenalty :union {
    unset @16 :Void;
    value @17 :Float32;
    # -2 to 2. 0: none.
  }
  frequencyPenalty :union {
    unset @18 :Void;
    value @19 :Float32;
    # -2 to 2. 0: none.
  }
  logprobs :union {
    unset @20 :Void;
    # Deltas carry none.
    value @21 :UInt32;
    # Each token's, and those of so many most likely tokens: 0 to 20.
  }
  logitBias @22 :List(TokenBias);
  # Each token at most once.
  stop @23 :List(Text);
  # Strings of 1 to 256 bytes. A choice ends where one of them stands in its visible text; neither it nor anything behind it is sent.
  stopTokens @24 :List(UInt32);
  # A choice ends behind any of these.
}

struct TokenBias {
  token @0 :UInt32;
  bias @1 :Float32;
  # Added to the token's logit. -100 to 100.
}

struct Resume {
  lastSequence @0 :UInt64;
  # The last sequence number the client has; everything after it is sent again.
}

struct Grant {
  credit @0 :UInt32;
  # How many more deltas the stream may send.
}

struct Ping {
  nonce @0 :UInt64;
}

struct Message {
  # One Harmony message.
  role @0 :Role;
  name @1 :Text;
  # Null: none. For role tool the author, e.g. "functions.get_current_weather".
  recipient @2 :Text;
  # Null: everybody.
  channel @3 :Text;
  # Null: none.
  contentType @4 :Text;
  # Null: none. E.g. "<|constrain|>json".
  content @5 :List(Content);
  tokens @6 :List(UInt32);
  # Of an assistant's message that this server's model generated: its ids, from behind <|start|>assistant (or with it) to the token that ended it. The
  # prompt repeats them as they are. They must say what the other members say. Empty: the message is encoded anew.
}

struct Content {
  union {
    text @0 :Text;
    system @1 :SystemContent;
    # In system messages only.
    developer @2 :DeveloperContent;
    # In developer messages only.
  }
}

struct SystemContent {
  modelIdentity @0 :Text;
  # Null: left out, here and below.
  reasoningEffort @1 :ReasoningEffort;
  knowledgeCutoff @2 :Text;
  # YYYY-MM.
  conversationStartDate @3 :Text;
  # YYYY-MM-DD.
  channelConfig @4 :ChannelConfig;
  tools @5 :List(ToolNamespace);
}

struct ChannelConfig {
  validChannels @0 :List(Text);
  channelRequired @1 :Bool;
}

struct DeveloperContent {
  instructions @0 :Text;
  # Null: none.
  tools @1 :List(ToolNamespace);
}

struct ToolNamespace {
  key @0 :Text;
  # Orders the namespaces (ascending bytes); as a rule the same as name.
  name @1 :Text;
  description @2 :Text;
  # Null: none.
  functions @3 :List(Function);
}

struct Function {
  name @0 :Text;
  description @1 :Text;
  parameters @2 :Text;
  # A JSON schema as text, whose order of keys is kept. Null: the function takes nothing.
}

enum Role {
  system @0;
  developer @1;
  user @2;
  assistant @3;
  tool @4;
}

enum ReasoningEffort {
  unset @0;
  low @1;
  medium @2;
  high @3;
}

struct ServerFrame {
  # What a server sends.
  requestId @0 :Text;
  # The request it is about; empty for welcome, pong, and errors of the session.
  sequence @1 :UInt64;
  # For delta, done and error: 1, 2, 3 … within the request. 0 in an error that is not part of a stream (a frame that was refused, a resume of an unknown
  # request, an error of the session).
  union {
    welcome @2 :Welcome;
    # Answers hello.
    accepted @3 :Accepted;
    # The request has entered the queue.
    delta @4 :Delta;
    # More of the answer.
    done @5 :Done;
    # The last message of a stream that went well: all choices have ended.
    error @6 :Failure;
    # The last message of one that did not, or an error of the session.
    pong @7 :Pong;
    # Answers ping.
  }
}

struct Welcome {
  version @0 :UInt32;
  # The protocol version of this session.
  serverInstance @1 :Text;
  # Of the serving process, or of the one whose requests it took over when that died. Another one knows none of them.
  model @2 :Text;
  contextTokensMax @3 :UInt32;
  # Prompt and completion of one request together.
  frameBytesMax @4 :UInt32;
  # Longer bodies from clients are refused.
  sessionSilenceMsMax @5 :UInt32;
  # Send something (a ping) more often than this, or the session ends.
}

struct Accepted {
  promptTokens @0 :UInt32;
  seed @1 :UInt64;
  # The request's own, or the one the server drew. Submitting it again gives the same answer.
}

struct Delta {
  events @0 :List(DeltaEvent);
  tokens @1 :List(UInt32);
  # Generated token ids, when they were asked for.
  choice @2 :UInt32;
  # Which of the request's n completions all of this belongs to: 0 … n-1.
  routing @3 :List(StepRouting);
  # What was computed for the choice, when it was asked for: in the order of steps.
  logprobs @4 :List(TokenLogprobs);
  # One for each token that this delta is made of, when they were asked for.
}

struct TokenLogprobs {
  # How likely a token was, before temperature and filters.
  token @0 :UInt32;
  logprob @1 :Float32;
  top @2 :List(TokenLogprob);
  # The most likely tokens, falling.
}

struct TokenLogprob {
  token @0 :UInt32;
  logprob @1 :Float32;
}

struct StepRouting {
  # Where consecutive tokens of one choice went in one step.
  step @0 :UInt64;
  epoch @1 :UInt64;
  # The membership of ranks that computed it.
  start @2 :UInt32;
  # Position of the first token.
  recomputed @3 :UInt32;
  # So many tokens from the first on had been computed by an accepted step before, and were lost.
  layers @4 :UInt32;
  topM @5 :UInt32;
  expertsPerToken @6 :UInt32;
  tokens @7 :List(UInt32);
  # Their ids.
  nanoseconds @8 :List(UInt64);
  # (layers, 5): what the whole step took for router, capacity, dispatch, experts and merge, on the rank that tells.
  logits @9 :List(RouterLogit);
  # (tokens, layers, topM), falling.
  experts @10 :List(RoutedExpert);
  # (tokens, layers, expertsPerToken), in the order of the router's choice.
}

struct RouterLogit {
  expert @0 :UInt32;
  logit @1 :Float32;
}

struct RoutedExpert {
  expert @0 :UInt16;
  # That computes it.
  chosen @1 :UInt16;
  # By the router.
  copy @2 :UInt16;
  rank @3 :UInt16;
  slot @4 :UInt16;
  # Which copy of the expert, and where that is; 0 where nobody computes it.
  fate @5 :PairFate;
  weight @6 :Float32;
  # 0 where nobody computes it.
}

enum PairFate {
  chosen @0;
  # By the expert that was chosen, by the copy whose turn it was.
  replica @1;
  # By another copy of it, because that one was full.
  rerouted @2;
  # By another expert, because the chosen one was full.
  dropped @3;
  # By nobody, because experts were full.
  omitted @4;
  # By nobody, because the token was sure without.
}

struct DeltaEvent {
  index @0 :UInt32;
  # Which generated message: 0, 1, 2 … within the choice.
  union {
    started @1 :MessageHeader;
    text @2 :Text;
    # More of the message's content: valid UTF-8, never empty.
    ended @3 :Void;
  }
}

struct MessageHeader {
  role @0 :Role;
  channel @1 :Text;
  recipient @2 :Text;
  contentType @3 :Text;
}

struct Done {
  reason @0 :FinishReason;
  # With several choices the gravest of theirs, in the order of the enum.
  promptTokens @1 :UInt32;
  # Of the prompt, once.
  completionTokens @2 :UInt32;
  # Of all choices together, and so below.
  preemptions @3 :UInt32;
  # How often the request gave up its memory to others on the way.
  choices @4 :List(ChoiceEnd);
  # By choice; empty when n is 1.
  layoutChanged @5 :Bool;
  # Ranks were lost or came back on the way, and some tokens were drawn by ranks that split attention otherwise. Nothing is missing, but the
  # same request may give other tokens another time.
  stopString @6 :Int32 = -1;
  # Index of the request's stop string that ended it; -1: none did, or n is over 1.
  reasoningTokens @7 :UInt32;
  # Of completionTokens those that were drawn inside of a message on the channel analysis, or on commentary to a recipient. 0 for raw prompts.
  cachedTokens @8 :UInt32;
  # Of promptTokens those that were not computed, because their keys and values were there from earlier requests.
  miss @9 :PrefixMiss;
  # Why there were no more.
}

enum PrefixMiss {
  none @0;
  # Nothing was missed that could be had.
  cold @1;
  # What follows was not there: a new text, or one that nobody may share with this request.
  evicted @2;
  # It was there, and made room for others.
  boundary @3;
  # It is there, but not what a sliding window needs to go on from its end; from an earlier message's end it is.
  tenant @4;
  # Never sent: for the operator's numbers alone.
  shortPrompt @5;
  # In JSON "short": the prompt fills no block of pages.
  traced @6;
  # A traced request computes every token.
  disabled @7;
  # This server shares nothing.
}

struct ChoiceEnd {
  # How one of several choices ended.
  reason @0 :FinishReason;
  completionTokens @1 :UInt32;
  preemptions @2 :UInt32;
  error @3 :Failure;
  # Set when the reason is error. Null: none.
  stopString @4 :Int32 = -1;
  # Index of the request's stop string that ended it; -1: none did.
}

enum FinishReason {
  stop @0;
  length @1;
  cancelled @2;
  error @3;
}

struct Failure {
  code @0 :ErrorCode;
  message @1 :Text;
  # What was wrong, where, and what to do about it.
  field @2 :Text;
  # The field it is about, e.g. "messages[3].role". May be empty.
  retryAfterMs @3 :UInt32;
  # When there may be room, where the code is busy. 0: not known.
}

enum ErrorCode {
  # A code that a reader does not know counts as `internal`.
  invalidArgument @0;
  notFound @1;
  corrupt @2;
  unsupported @3;
  tooLarge @4;
  busy @5;
  draining @6;
  cancelled @7;
  deadline @8;
  slowReader @9;
  rankLost @10;
  coreLost @11;
  unavailable @12;
  version @13;
  nonfinite @14;
  io @15;
  internal @16;
  denied @17;
}

struct Pong {
  nonce @0 :UInt64;
  serverInstance @1 :Text;
  state @2 :Text;
  # What the server says of itself: starting, ready, silent, recovering or draining. Empty: it does not tell.
}
