// Types are appended to one string; what was appended for a type is looked at again only to see whether it says "null" already.
#include "protocol/harmony/schema_type.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>
#include <vector>

namespace althing::protocol::harmony {
namespace {

using Json = nlohmann::ordered_json;

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

const std::string* string_member(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value ? value->get_ptr<const std::string*>() : nullptr;
}

const Json* array_member(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value && value->is_array() ? value : nullptr;
}

bool is_enum(const Json& schema) {
  const Json* values = array_member(schema, "enum");
  return values && !values->empty();
}

bool is_nullable(const Json& schema) {
  const Json* nullable = member(schema, "nullable");
  return nullable && nullable->is_boolean() && nullable->get<bool>();
}

// Shortest digits that read back as the same number; plain for exponents from -5 to 15, else with an exponent.
void append_float(double value, std::string& out) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  if (text.starts_with('-')) {
    out += '-';
    text.remove_prefix(1);
  }
  const std::size_t mark = text.find('e');
  if (mark == std::string_view::npos) {  // infinity; JSON text cannot hold one
    out += "null";
    return;
  }
  std::string digits;
  for (const char c : text.substr(0, mark))
    if (c != '.') digits += c;
  int exponent = 0;
  const char* first = text.data() + mark + 1;
  std::from_chars(*first == '+' ? first + 1 : first, text.data() + text.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent >= 0 && exponent < 16) {
    if (count <= exponent + 1) {
      out += digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
    } else {
      const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
      out += digits.substr(0, whole) + '.' + digits.substr(whole);
    }
  } else if (exponent < 0 && exponent >= -5) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    out += digits.substr(0, 1);
    if (count > 1) out += '.' + digits.substr(1);
    out += 'e' + std::to_string(exponent);
  }
}

void append_compact(const Json& json, std::string& out) {
  if (json.is_number_float()) {
    append_float(json.get<double>(), out);
  } else if (json.is_array()) {
    out += '[';
    for (std::size_t i = 0; i < json.size(); ++i) {
      if (i > 0) out += ',';
      append_compact(json[i], out);
    }
    out += ']';
  } else if (json.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : json.items()) {
      if (!first) out += ',';
      first = false;
      append_compact(Json(key), out);
      out += ':';
      append_compact(value, out);
    }
    out += '}';
  } else {
    out += json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

// A default as a comment writes it. `bare` leaves the quotes off a string that is a member of an enum.
void append_default(const Json& value, bool of_enum, bool bare, std::string& out) {
  out += "default: ";
  const auto* text = value.get_ptr<const std::string*>();
  if (text && !of_enum) {
    out += '"' + *text + '"';
  } else if (text && bare) {
    out += *text;
  } else {
    append_compact(value, out);
  }
}

class TypeWriter {
 public:
  std::string out;

  void type(const Json& schema, const std::string& indent) {
    if (const Json* variants = array_member(schema, "oneOf")) return one_of(*variants, indent);
    if (const Json* types = array_member(schema, "type"); types && type_list(*types)) return;
    const std::string* name = string_member(schema, "type");
    if (!name) {
      out += "any";
    } else if (*name == "object") {
      object(schema, indent);
    } else if (*name == "string") {
      string(schema);
    } else if (*name == "number" || *name == "integer") {
      out += "number";
    } else if (*name == "boolean") {
      out += "boolean";
    } else if (*name == "array") {
      array(schema, indent);
    } else {
      out += "any";
    }
  }

 private:
  // The type, and ` | null` for a nullable schema whose type does not say so itself.
  void nullable_type(const Json& schema, const std::string& indent) {
    const std::size_t begin = out.size();
    type(schema, indent);
    if (is_nullable(schema) && out.find("null", begin) == std::string::npos) out += " | null";
  }

  void trailing_comment(const std::string* description, const Json& schema, bool bare_enum_default) {
    const Json* value = member(schema, "default");
    if (!description && !value) return;
    out += " // ";
    if (description) out += *description;
    if (!value) return;
    if (description) out += ' ';
    append_default(*value, is_enum(schema), bare_enum_default, out);
  }

  void one_of(const Json& variants, const std::string& indent) {
    for (const Json& variant : variants) {
      out += '\n' + indent + " | ";
      nullable_type(variant, indent + "   ");
      trailing_comment(string_member(variant, "description"), variant, false);
    }
  }

  bool type_list(const Json& types) {
    bool any = false;
    for (const Json& item : types) {
      const auto* name = item.get_ptr<const std::string*>();
      if (!name) continue;
      if (any) out += " | ";
      out += *name == "integer" ? "number" : *name;
      any = true;
    }
    return any;
  }

  void string(const Json& schema) {
    bool any = false;
    if (const Json* values = array_member(schema, "enum")) {
      for (const Json& value : *values) {
        const auto* text = value.get_ptr<const std::string*>();
        if (!text) continue;
        out += (any ? " | \"" : "\"") + *text + '"';
        any = true;
      }
    }
    if (!any) out += "string";
  }

  void array(const Json& schema, const std::string& indent) {
    const Json* items = member(schema, "items");
    if (!items) {
      out += "Array<any>";
      return;
    }
    type(*items, indent);
    out += "[]";
  }

  void object(const Json& schema, const std::string& indent) {
    if (const std::string* description = string_member(schema, "description")) comment(*description, indent);
    out += "{\n";
    std::set<std::string_view> required;
    if (const Json* names = array_member(schema, "required")) {
      for (const Json& name : *names)
        if (const auto* text = name.get_ptr<const std::string*>()) required.insert(*text);
    }
    const Json* properties = member(schema, "properties");
    if (properties && properties->is_object()) {
      for (const auto& [name, value] : properties->items()) property(name + (required.contains(name) ? "" : "?"), value, indent);
    }
    out += indent + '}';
  }

  void comment(const std::string& text, const std::string& indent) { out += indent + "// " + text + '\n'; }

  // `label` is the name, with its question mark when the property is optional.
  void property(const std::string& label, const Json& schema, const std::string& indent) {
    const bool has_one_of = member(schema, "oneOf") != nullptr;
    if (const std::string* title = string_member(schema, "title")) {
      comment(*title, indent);
      out += indent + "//\n";
    }
    const std::string* description = string_member(schema, "description");
    if (description && !has_one_of) comment(*description, indent);
    if (const Json* examples = array_member(schema, "examples"); examples && !examples->empty()) {
      comment("Examples:", indent);
      for (const Json& example : *examples)
        if (const auto* text = example.get_ptr<const std::string*>()) comment("- \"" + *text + '"', indent);
    }
    if (const Json* variants = array_member(schema, "oneOf")) return one_of_property(label, schema, *variants, indent);
    out += indent + label + ": ";
    nullable_type(schema, indent + "    ");
    out += ',';
    if (!has_one_of) trailing_comment(nullptr, schema, true);
    out += '\n';
  }

  void one_of_property(const std::string& label, const Json& schema, const Json& variants, const std::string& indent) {
    const std::string* description = string_member(schema, "description");
    const std::string* first = variants.empty() ? nullptr : string_member(variants[0], "description");
    const bool printed = description && !(first && *first == *description);
    if (printed) comment(*description, indent);
    if (const Json* value = member(schema, "default")) {
      out += indent + "// ";
      append_default(*value, is_enum(schema), true, out);
      out += '\n';
    }
    out += indent + label + ":\n";
    for (std::size_t i = 0; i < variants.size(); ++i) {
      out += indent + " | ";
      nullable_type(variants[i], indent + "   ");
      const std::string* own = string_member(variants[i], "description");
      if (own && ((i == 0 && printed) || (description && *own == *description))) own = nullptr;
      trailing_comment(own, variants[i], true);
      out += '\n';
    }
    out += indent + ",\n";
  }
};

}  // namespace

bool nesting_at_most(const nlohmann::ordered_json& json, int levels) {
  if (!json.is_structured()) return true;
  if (levels == 0) return false;
  return std::all_of(json.begin(), json.end(), [levels](const auto& child) { return nesting_at_most(child, levels - 1); });
}

std::string type_of_schema(const nlohmann::ordered_json& schema) {
  TypeWriter writer;
  writer.type(schema, "");
  return std::move(writer.out);
}

std::string compact_json(const nlohmann::ordered_json& json) {
  std::string out;
  append_compact(json, out);
  return out;
}

}  // namespace althing::protocol::harmony
