// See the header. One function a level: choice, sequence, repetition, atom. The first error is kept, and everything after it is void.
#include "protocol/grammar/regex_syntax.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "protocol/tokenizer/utf8.hpp"

namespace althing::protocol::grammar {
namespace {

using Kind = RegexNode::Kind;

CodePointSet digits() { return CodePointSet({{'0', '9'}}); }
CodePointSet word_characters() { return CodePointSet({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}); }
CodePointSet white_space() {
  return CodePointSet({{'\t', '\r'},
                       {' ', ' '},
                       {0xA0, 0xA0},
                       {0x1680, 0x1680},
                       {0x2000, 0x200A},
                       {0x2028, 0x2029},
                       {0x202F, 0x202F},
                       {0x205F, 0x205F},
                       {0x3000, 0x3000},
                       {0xFEFF, 0xFEFF}});
}
CodePointSet line_ends() { return CodePointSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}); }

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Regex> read() {
    if (text_.size() > regex_bytes_max)
      return Error{ErrorCode::too_large,
                   "the expression has " + std::to_string(text_.size()) + " bytes and " + std::to_string(regex_bytes_max) + " are the most", "regex"};
    add(Kind::nothing);  // node 0: what stands where an error was
    regex_.root = read_choice();
    if (!error_ && at_ < text_.size()) fail("a ) without its (");
    if (error_) return *error_;
    return std::move(regex_);
  }

 private:
  std::uint32_t add(RegexNode node) {
    regex_.nodes.push_back(std::move(node));
    return static_cast<std::uint32_t>(regex_.nodes.size() - 1);
  }
  std::uint32_t add(Kind kind) {
    RegexNode node;
    node.kind = kind;
    return add(std::move(node));
  }
  std::uint32_t add(CodePointSet set) {
    RegexNode node;
    node.kind = Kind::characters;
    node.set = std::move(set);
    return add(std::move(node));
  }
  void fail(const std::string& what, ErrorCode code = ErrorCode::invalid_argument) {
    if (!error_) error_ = Error{code, "the expression has " + what + " at byte " + std::to_string(at_), "regex"};
    at_ = text_.size();
  }
  void refuse(const std::string& what) { fail(what + ", which is not supported,", ErrorCode::unsupported); }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }

  std::uint32_t read_choice() {
    std::vector<std::uint32_t> parts{read_sequence()};
    while (take("|")) parts.push_back(read_sequence());
    if (parts.size() == 1) return parts[0];
    const std::uint32_t node = add(Kind::choice);
    regex_.nodes[node].parts = std::move(parts);
    return node;
  }

  std::uint32_t read_sequence() {
    std::vector<std::uint32_t> parts;
    while (at_ < text_.size() && !is_at('|') && !is_at(')')) parts.push_back(read_repeat());
    if (parts.empty()) return add(Kind::nothing);
    if (parts.size() == 1) return parts[0];
    const std::uint32_t node = add(Kind::sequence);
    regex_.nodes[node].parts = std::move(parts);
    return node;
  }

  std::uint32_t read_repeat() {
    std::uint32_t node = read_atom();
    for (;;) {
      std::uint32_t least = 0, most = unbounded;
      if (take("*")) {
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (!is_at('{') || !read_counts(least, most)) {
        return node;
      }
      if (take("+")) refuse("a possessive repetition");
      take("?");
      const Kind kind = regex_.nodes[node].kind;
      if (kind == Kind::at_start || kind == Kind::at_end) fail("a repetition of ^ or $");
      const std::uint32_t repeat = add(Kind::repeat);
      regex_.nodes[repeat].parts = {node};
      regex_.nodes[repeat].least = least;
      regex_.nodes[repeat].most = most;
      node = repeat;
    }
  }

  // {n}, {n,} or {n,m}. Anything else in braces means itself in some dialects and is an error in others: it is one here.
  bool read_counts(std::uint32_t& least, std::uint32_t& most) {
    ++at_;
    const auto first = read_number();
    if (!first) return fail("a { that begins no repetition (write \\{ for the character)"), false;
    least = most = *first;
    if (take(",")) {
      most = unbounded;
      if (!is_at('}')) {
        const auto second = read_number();
        if (!second || *second < least) return fail("a repetition whose most is less than its least"), false;
        most = *second;
      }
    }
    if (!take("}")) return fail("a repetition without its }"), false;
    return true;
  }

  std::optional<std::uint32_t> read_number() {
    const std::size_t begin = at_;
    std::uint32_t number = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      number = number * 10 + static_cast<std::uint32_t>(text_[at_] - '0');
      if (number > regex_repeats_max) {
        fail("more than " + std::to_string(regex_repeats_max) + " repetitions", ErrorCode::too_large);
        return std::nullopt;
      }
    }
    return at_ == begin ? std::nullopt : std::optional(number);
  }

  std::uint32_t read_atom() {
    if (take("^")) return add(Kind::at_start);
    if (take("$")) return add(Kind::at_end);
    if (take(".")) return add(line_ends().complement());
    if (take("(")) return read_group();
    if (take("[")) return add(read_class());
    if (is_at('*') || is_at('+') || is_at('?')) return fail("a repetition of nothing"), 0;
    if (is_at('{')) return fail("a { with nothing to repeat (write \\{ for the character)"), 0;
    if (take("\\")) return add(read_escape(false));
    return add(one(read_character()));
  }

  std::uint32_t read_group() {
    if (take("?")) {
      if (is_at('=') || is_at('!')) return refuse("a lookahead"), 0;
      if (text_.substr(at_).starts_with("<=") || text_.substr(at_).starts_with("<!")) return refuse("a lookbehind"), 0;
      if (take("P<") || take("<")) {
        const std::size_t close = text_.find('>', at_);
        if (close == std::string_view::npos) return fail("a group name without its >"), 0;
        at_ = close + 1;
      } else if (!take(":")) {
        return refuse("a group of the kind (?" + std::string(text_.substr(at_, 1)) + "…)"), 0;
      }
    }
    if (++groups_ > regex_groups_max) return fail("more than " + std::to_string(regex_groups_max) + " open groups", ErrorCode::too_large), 0;
    const std::uint32_t node = read_choice();
    --groups_;
    if (!take(")")) return fail("a ( without its )"), 0;
    return node;
  }

  static CodePointSet one(std::uint32_t c) { return CodePointSet({{c, c}}); }

  std::uint32_t read_character() {
    if (at_ >= text_.size()) return 0;
    const Utf8Step next = utf8_step(text_, at_);
    if (next.kind != Utf8Kind::valid) return fail("a byte that is not UTF-8"), 0;
    at_ += next.length;
    return next.code_point;
  }

  // Behind a backslash.
  CodePointSet read_escape(bool in_class) {
    if (at_ >= text_.size()) return fail("a \\ with nothing behind it"), CodePointSet();
    const char c = text_[at_];
    switch (c) {
      case 'd':
        return ++at_, digits();
      case 'D':
        return ++at_, digits().complement();
      case 'w':
        return ++at_, word_characters();
      case 'W':
        return ++at_, word_characters().complement();
      case 's':
        return ++at_, white_space();
      case 'S':
        return ++at_, white_space().complement();
      case 't':
        return ++at_, one('\t');
      case 'n':
        return ++at_, one('\n');
      case 'r':
        return ++at_, one('\r');
      case 'f':
        return ++at_, one('\f');
      case 'v':
        return ++at_, one('\v');
      case 'x':
        return ++at_, one(read_hex(2));
      case 'u':
        return ++at_, one(take("{") ? read_hex_in_braces() : read_hex(4));
      case 'b':
        if (in_class) return ++at_, one('\b');
        return refuse("a word boundary \\b"), CodePointSet();
      default:
        break;
    }
    if (c == '0' && !(at_ + 1 < text_.size() && text_[at_ + 1] >= '0' && text_[at_ + 1] <= '9')) return ++at_, one(0);
    if (c >= '0' && c <= '9') return refuse("a back reference \\" + std::string(1, c)), CodePointSet();
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return refuse("the escape \\" + std::string(1, c)), CodePointSet();
    return one(read_character());
  }

  std::uint32_t read_hex(std::uint32_t count) {
    std::uint32_t value = 0;
    for (std::uint32_t i = 0; i < count; ++i, ++at_) {
      const int digit = at_ < text_.size() ? hex_value(text_[at_]) : -1;
      if (digit < 0) return fail("an escape with fewer than " + std::to_string(count) + " hexadecimal digits"), 0;
      value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    return value;
  }
  std::uint32_t read_hex_in_braces() {
    std::uint32_t value = 0;
    for (; at_ < text_.size() && hex_value(text_[at_]) >= 0 && value <= code_point_max; ++at_)
      value = value * 16 + static_cast<std::uint32_t>(hex_value(text_[at_]));
    if (!take("}") || value > code_point_max) return fail("a \\u{…} that is no character"), 0;
    return value;
  }
  static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  }

  // Behind [.
  CodePointSet read_class() {
    const bool negated = take("^");
    CodePointSet set;
    while (!error_ && !is_at(']')) {
      if (at_ >= text_.size()) return fail("a [ without its ]"), set;
      const auto first = read_class_item();
      if (!is_at('-') || text_.substr(at_).starts_with("-]")) {
        set.add(first);
        continue;
      }
      ++at_;
      if (at_ >= text_.size()) return fail("a [ without its ]"), set;
      const auto last = read_class_item();
      if (error_) return set;
      const auto single = [](const CodePointSet& s) { return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].last; };
      if (!single(first) || !single(last) || last.ranges()[0].first < first.ranges()[0].first)
        return fail("a range in [] whose ends are no two characters in order"), set;
      set.add(CodePointSet({{first.ranges()[0].first, last.ranges()[0].first}}));
    }
    take("]");
    return negated ? set.complement() : set;
  }
  CodePointSet read_class_item() { return take("\\") ? read_escape(true) : one(read_character()); }

  std::string_view text_;
  std::size_t at_ = 0;
  std::uint32_t groups_ = 0;
  Regex regex_;
  std::optional<Error> error_;
};

}  // namespace

Result<Regex> parse_regex(std::string_view text) { return Reader(text).read(); }

}  // namespace althing::protocol::grammar
