// See the header. Each schema becomes one rule, made once however often it is referred to; schemas that were found and not built yet wait in a list,
// so that circles end and nothing recurses.
#include "protocol/grammar/json_schema.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "protocol/grammar/json_pieces.hpp"
#include "protocol/grammar/schema_reading.hpp"
#include "protocol/grammar/string_formats.hpp"
#include "protocol/wire/json_text.hpp"

namespace althing::protocol::grammar {
namespace {

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& document) : document_(document), pieces_(builder_) {}

  Result<std::shared_ptr<const Automaton>> compile() {
    const Rule root = rule_of({&document_, ""});
    while (!waiting_.empty() && !error_ && !builder_.full()) {
      const auto [place, rule] = waiting_.front();
      waiting_.pop_front();
      if (rules_.size() > schema_parts_max)
        return Error{ErrorCode::too_large, "the JSON schema has more than " + std::to_string(schema_parts_max) + " parts; split it", "grammar"};
      build(place, rule);
    }
    if (error_) return *error_;
    return builder_.finish(root);
  }

 private:
  Rule rule_of(const SchemaPlace& place) {
    const auto [found, is_new] = rules_.try_emplace(place.schema, 0);
    if (is_new) {
      found->second = builder_.add_rule();
      waiting_.emplace_back(place, found->second);
    }
    return found->second;
  }
  static SchemaPlace part(const SchemaPlace& place, const std::string& name, const Json& schema) { return {&schema, place.path + '/' + name}; }
  void fail(ErrorCode code, const SchemaPlace& place, const std::string& what) {
    if (!error_) error_ = schema_error(code, place.path, what);
  }
  void fail(const Error& error) {
    if (!error_) error_ = error;
  }

  void build(const SchemaPlace& place, Rule rule) {
    const Json& schema = *place.schema;
    const State start = builder_.start(rule), end = builder_.end(rule);
    if (schema.is_boolean()) {
      if (schema.get<bool>()) builder_.call(start, pieces_.value(), end);
      return;
    }
    if (!schema.is_object())
      return fail(ErrorCode::invalid_argument, place, "a schema is an object, true or false, and this is " + schema.dump().substr(0, 60));
    if (auto status = check_keywords(place); !status) return fail(status.error());
    if (schema.contains("$ref")) {
      const auto target = resolve(document_, place);
      if (!target) return fail(target.error());
      return builder_.call(start, rule_of(*target), end);
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"})
      if (schema.contains(keyword)) return build_alternatives(place, keyword, start, end);
    const auto types = types_of(place);
    if (!types) return fail(types.error());
    if (schema.contains("enum") || schema.contains("const")) return build_values(place, *types, start, end);
    if (*types == type_any) return builder_.call(start, pieces_.value(), end);
    if ((*types & type_null) != 0) builder_.literal(start, "null", end);
    if ((*types & type_boolean) != 0) pieces_.add_literals(start, {"true", "false"}, end);
    if ((*types & type_number) != 0)
      build_number(place, start, end);
    else if ((*types & type_integer) != 0)
      build_integer(place, start, end);
    if ((*types & type_string) != 0) build_string(place, start, end);
    if ((*types & type_array) != 0) build_array(place, start, end);
    if ((*types & type_object) != 0) build_object(place, start, end);
  }

  void build_alternatives(const SchemaPlace& place, const std::string& keyword, State start, State end) {
    const Json& parts = (*place.schema)[keyword];
    if (!parts.is_array() || parts.empty()) return fail(ErrorCode::invalid_argument, place, keyword + " must be a list of one schema or more");
    if (keyword == "allOf" && parts.size() > 1)
      return fail(ErrorCode::unsupported, place,
                  "allOf of " + std::to_string(parts.size()) + " schemas is not supported; write their conditions into one");
    std::vector<SchemaPlace> places;
    for (std::size_t i = 0; i < parts.size(); ++i) places.push_back(part(place, keyword + '/' + std::to_string(i), parts[i]));
    if (keyword == "oneOf") {
      if (places.size() > one_of_max)
        return fail(ErrorCode::too_large, place, "oneOf of more than " + std::to_string(one_of_max) + " schemas; use anyOf");
      for (std::size_t i = 0; i < places.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
          if (!are_disjoint(document_, places[j], places[i]))
            return fail(ErrorCode::unsupported, place,
                        "oneOf: a value might satisfy both schema " + std::to_string(j) + " and schema " + std::to_string(i) +
                            "; use anyOf, or tell them apart by type or by a required property with a const or enum each");
    }
    for (const SchemaPlace& each : places) builder_.call(start, rule_of(each), end);
  }

  void build_values(const SchemaPlace& place, std::uint8_t types, State start, State end) {
    std::vector<std::string> texts;
    const auto add = [&](const Json& value) {
      if ((type_of_value(value) & types) != 0) texts.push_back(canonical(value));
    };
    if (place.schema->contains("const")) {
      add(place.schema->at("const"));
    } else {
      const Json& values = place.schema->at("enum");
      if (!values.is_array() || values.empty()) return fail(ErrorCode::invalid_argument, place, "enum must be a list of one value or more");
      for (const Json& value : values) add(value);
    }
    pieces_.add_literals(start, texts, end);
  }

  std::optional<double> number_at(const SchemaPlace& place, const char* keyword) {
    const auto found = place.schema->find(keyword);
    if (found == place.schema->end()) return std::nullopt;
    if (found->is_number() && std::isfinite(found->get<double>())) return found->get<double>();
    fail(ErrorCode::invalid_argument, place, std::string(keyword) + " is " + found->dump().substr(0, 60) + "; it must be a number");
    return std::nullopt;
  }

  // The narrower of the two bounds that a side may have.
  std::optional<Bound> bound_at(const SchemaPlace& place, const char* included, const char* excluded, bool is_least) {
    const auto in = number_at(place, included), out = number_at(place, excluded);
    if (out && (!in || (is_least ? *out >= *in : *out <= *in))) return Bound{*out, true};
    return in ? std::optional(Bound{*in, false}) : std::nullopt;
  }
  NumberRange range_at(const SchemaPlace& place) {
    return {bound_at(place, "minimum", "exclusiveMinimum", true), bound_at(place, "maximum", "exclusiveMaximum", false)};
  }

  void build_number(const SchemaPlace& place, State start, State end) {
    const NumberRange range = range_at(place);
    if (!range.least && !range.most) return builder_.call(start, pieces_.number(), end);
    add_number(builder_, start, range, end);
  }

  void build_integer(const SchemaPlace& place, State start, State end) {
    const NumberRange range = range_at(place);
    if (!range.least && !range.most) return builder_.call(start, pieces_.integer(), end);
    const auto whole = [](double value) { return static_cast<std::int64_t>(std::clamp(value, -2e15, 2e15)); };
    IntegerRange integers;
    if (range.least) {
      integers.least = whole(std::ceil(range.least->value));
      if (range.least->is_excluded && std::ceil(range.least->value) == range.least->value) ++integers.least;
    }
    if (range.most) {
      integers.most = whole(std::floor(range.most->value));
      if (range.most->is_excluded && std::floor(range.most->value) == range.most->value) --integers.most;
    }
    add_integer(builder_, start, integers, end);
  }

  void build_string(const SchemaPlace& place, State start, State end) {
    const auto least = count_of(place, "minLength", 0), most = count_of(place, "maxLength", Lengths{}.most);
    if (!least) return fail(least.error());
    if (!most) return fail(most.error());
    const Lengths lengths{*least, *most};
    const bool has_pattern = place.schema->contains("pattern"), has_format = place.schema->contains("format");
    if (!has_pattern && !has_format)
      return *least == 0 && *most == Lengths{}.most ? builder_.call(start, pieces_.string(), end) : pieces_.add_string(start, lengths, end);
    if (has_pattern && has_format)
      return fail(ErrorCode::unsupported, place, "\"pattern\" beside \"format\" is not supported; use the pattern alone");
    const char* keyword = has_pattern ? "pattern" : "format";
    const Json& value = place.schema->at(keyword);
    if (!value.is_string()) return fail(ErrorCode::invalid_argument, place, std::string(keyword) + " must be a string");
    const auto& text = value.get_ref<const std::string&>();
    const std::string_view expression = has_pattern ? std::string_view(text) : expression_of_format(text);
    if (expression.empty() && has_format)
      return fail(ErrorCode::unsupported, place,
                  "the format \"" + text.substr(0, 60) + "\" is not supported; known are " + std::string(known_formats) + "; or use a pattern");
    const State open = builder_.literal(start, "\""), close = builder_.add_state();
    if (auto status = add_regex(pieces_.characters(), open, expression, has_pattern ? Anchoring::part : Anchoring::whole, lengths, close); !status)
      return fail(status.error().code, place, std::string(keyword) + ": " + status.error().message);
    builder_.literal(close, "\"", end);
  }

  // The schema of item i; null: there is none.
  void build_array(const SchemaPlace& place, State start, State end) {
    const auto least = count_of(place, "minItems", 0), most = count_of(place, "maxItems", no_most);
    if (!least) return fail(least.error());
    if (!most) return fail(most.error());
    std::vector<Rule> firsts;
    if (const auto prefix = place.schema->find("prefixItems"); prefix != place.schema->end()) {
      if (!prefix->is_array() || prefix->empty()) return fail(ErrorCode::invalid_argument, place, "prefixItems must be a list of one schema or more");
      for (std::size_t i = 0; i < prefix->size(); ++i) firsts.push_back(rule_of(part(place, "prefixItems/" + std::to_string(i), (*prefix)[i])));
    }
    const auto items = place.schema->find("items");
    if (items != place.schema->end() && items->is_array())
      return fail(ErrorCode::unsupported, place, "a list of schemas as items is not supported; use prefixItems");
    // Behind what prefixItems names there are no items unless the schema speaks of them.
    const bool has_others = items != place.schema->end() ? *items != Json(false) : firsts.empty() || *least > firsts.size();
    const Rule others = items != place.schema->end() ? rule_of(part(place, "items", *items)) : pieces_.value();
    const std::uint32_t count_max = has_others ? *most : std::min(*most, static_cast<std::uint32_t>(firsts.size()));
    const State open = builder_.literal(start, "[");
    if (*least == 0) builder_.literal(open, "]", end);
    if (count_max == 0) return;
    State item = builder_.call(open, pieces_.line_space());
    const State close = builder_.add_state();
    builder_.literal(builder_.call(close, pieces_.line_space()), "]", end);
    for (std::uint32_t i = 0; i < count_max && !builder_.full(); ++i) {
      const bool repeats = count_max == no_most && i >= firsts.size() && i + 1 >= *least;
      const State after = builder_.call(item, i < firsts.size() ? firsts[i] : others);
      if (i + 1 >= *least) builder_.free(after, close);
      if (i + 1 == count_max) break;
      const State next = builder_.call(builder_.literal(after, ","), pieces_.line_space());
      if (repeats) return builder_.free(next, item);
      item = next;
    }
  }

  struct Member {
    std::string name;
    Rule value = 0;
    bool is_required = false;
  };

  void build_object(const SchemaPlace& place, State start, State end) {
    std::vector<Member> members;
    std::vector<std::string> names;
    std::set<std::string> required;
    if (const auto listed = place.schema->find("required"); listed != place.schema->end()) {
      const auto names_of = required_of(*place.schema);
      if (!listed->is_array() || names_of.size() != listed->size())
        return fail(ErrorCode::invalid_argument, place, "required must be a list of names");
      required.insert(names_of.begin(), names_of.end());
    }
    const auto properties = place.schema->find("properties");
    if (properties != place.schema->end()) {
      if (!properties->is_object()) return fail(ErrorCode::invalid_argument, place, "properties must be an object of schemas");
      for (const auto& [name, schema] : properties->items()) {
        names.push_back(name);
        members.push_back({name, rule_of(part(place, "properties/" + name, schema)), required.erase(name) > 0});
      }
    }
    if (!required.empty())
      return fail(ErrorCode::unsupported, place,
                  "\"" + required.begin()->substr(0, 60) + "\" is required and not among the properties; add it there");
    const auto others = place.schema->find("additionalProperties");
    std::optional<Rule> other;
    if (others != place.schema->end()) {
      if (*others != Json(false)) other = rule_of(part(place, "additionalProperties", *others));
    } else if (members.empty()) {
      other = pieces_.value();
    }
    add_object(members, names, other, start, end);
  }

  // Two places for each member: where none stands in front of it, and where one does.
  void add_object(const std::vector<Member>& members, const std::vector<std::string>& names, std::optional<Rule> other, State start, State end) {
    const State open = builder_.literal(start, "{");
    bool may_be_empty = true;
    State first = builder_.call(open, pieces_.line_space()), later = builder_.add_state();
    const auto add_member = [&](State from, State to, Rule value, const std::string* name, Rule any_key) {
      const State key = name != nullptr ? builder_.literal(from, json_string(*name)) : builder_.call(from, any_key);
      builder_.call(builder_.call(key, pieces_.colon()), value, to);
    };
    const auto add_comma = [&](State from) { return builder_.call(builder_.literal(from, ","), pieces_.line_space()); };
    for (const Member& member : members) {
      if (builder_.full()) return;
      const State next_later = builder_.add_state(), key = builder_.add_state();
      builder_.free(first, key);
      builder_.free(add_comma(later), key);
      add_member(key, next_later, member.value, &member.name, 0);
      const State next_first = builder_.add_state();
      if (!member.is_required) {
        builder_.free(first, next_first);
        builder_.free(later, next_later);
      } else {
        may_be_empty = false;
      }
      first = next_first;
      later = next_later;
    }
    if (other) {
      const State key = builder_.add_state();
      builder_.free(first, key);
      builder_.free(add_comma(later), key);
      add_member(key, later, *other, nullptr, pieces_.key_except(names));
    }
    if (may_be_empty) builder_.literal(open, "}", end);
    builder_.literal(builder_.call(later, pieces_.line_space()), "}", end);
  }

  static constexpr std::uint32_t no_most = 0xFFFF'FFFFu;
  static constexpr std::size_t one_of_max = 256;

  const Json& document_;
  AutomatonBuilder builder_;
  JsonPieces pieces_;
  std::map<const Json*, Rule> rules_;
  std::deque<std::pair<SchemaPlace, Rule>> waiting_;
  std::optional<Error> error_;
};

}  // namespace

Result<std::shared_ptr<const Automaton>> compile_json_schema(std::string_view text) {
  if (text.size() > schema_bytes_max)
    return Error{ErrorCode::too_large,
                 "the JSON schema has " + std::to_string(text.size()) + " bytes and " + std::to_string(schema_bytes_max) + " are the most",
                 "grammar"};
  auto schema = wire::parse_json(text, wire::json_schema_depth_max);
  if (!schema) return Error{ErrorCode::invalid_argument, "the JSON schema: " + schema.error().message, "grammar"};
  return SchemaCompiler(*schema).compile();
}

Result<std::shared_ptr<const Automaton>> compile_json_object() {
  AutomatonBuilder builder;
  JsonPieces pieces(builder);
  return builder.finish(pieces.object());
}

Result<std::shared_ptr<const Automaton>> compile_regex(std::string_view expression) {
  AutomatonBuilder builder;
  CharacterRules characters(builder, Spelling::plain);
  const Rule root = builder.add_rule();
  if (auto status = add_regex(characters, builder.start(root), expression, Anchoring::whole, {}, builder.end(root)); !status) {
    Error error = status.error();
    error.field = "grammar";
    return error;
  }
  return builder.finish(root);
}

}  // namespace althing::protocol::grammar
