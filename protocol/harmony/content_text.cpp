// Sections are joined by a blank line, lines of a section by a newline; a section that is not set leaves no trace.
#include "protocol/harmony/content_text.hpp"

#include <algorithm>

#include "protocol/harmony/schema_type.hpp"

namespace althing::protocol::harmony {
namespace {

// Lines end in LF or CRLF; the end of the text ends the last one, so a final newline adds no empty line.
template <class Each>
void for_each_line(std::string_view text, Each each) {
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    if (newline != std::string_view::npos && line.ends_with('\r')) line.remove_suffix(1);
    each(line);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  }
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) text += separator;
    text += part;
  }
  return text;
}

std::string namespace_text(const ToolNamespace& space) {
  std::vector<std::string> lines{"## " + space.name, ""};
  const bool callable = !space.functions.empty();
  if (space.description)
    for_each_line(*space.description, [&](std::string_view line) { lines.push_back((callable ? "// " : "") + std::string(line)); });
  if (callable) {
    lines.insert(lines.end(), {"namespace " + space.name + " {", ""});
    for (const Function& function : space.functions) {
      for_each_line(function.description, [&](std::string_view line) { lines.push_back("// " + std::string(line)); });
      const std::string parameters = function.parameters ? "(_: " + type_of_schema(*function.parameters) + ")" : "()";
      lines.insert(lines.end(), {"type " + function.name + " = " + parameters + " => any;", ""});
    }
    lines.push_back("} // namespace " + space.name);
  }
  return joined(lines, "\n");
}

std::string tools_text(const Tools& tools) {
  std::vector<const Tools::value_type*> ordered;
  for (const auto& entry : tools) ordered.push_back(&entry);
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  std::vector<std::string> sections{"# Tools"};
  for (const auto* entry : ordered) sections.push_back(namespace_text(entry->second));
  return joined(sections, "\n\n");
}

std::string channels_text(const ChannelConfig& channels, bool function_tools) {
  std::string text = "# Valid channels: " + joined(channels.valid_channels, ", ") + ".";
  if (channels.channel_required) text += " Channel must be included for every message.";
  if (function_tools) text += "\nCalls to these tools must go to the commentary channel: 'functions'.";
  return text;
}

}  // namespace

std::string system_text(const SystemContent& content, bool function_tools) {
  std::vector<std::string> top, sections;
  if (content.model_identity) top.push_back(*content.model_identity);
  if (content.knowledge_cutoff) top.push_back("Knowledge cutoff: " + *content.knowledge_cutoff);
  if (content.conversation_start_date) top.push_back("Current date: " + *content.conversation_start_date);
  if (!top.empty()) sections.push_back(joined(top, "\n"));
  if (content.reasoning_effort) sections.push_back("Reasoning: " + std::string(name_of(*content.reasoning_effort)));
  if (!content.tools.empty()) sections.push_back(tools_text(content.tools));
  if (content.channel_config && !content.channel_config->valid_channels.empty())
    sections.push_back(channels_text(*content.channel_config, function_tools));
  return joined(sections, "\n\n");
}

std::string developer_text(const DeveloperContent& content) {
  std::vector<std::string> sections;
  if (content.instructions) sections.insert(sections.end(), {"# Instructions", *content.instructions});
  if (!content.tools.empty()) sections.push_back(tools_text(content.tools));
  return joined(sections, "\n\n");
}

bool has_function_tools(const std::vector<Message>& messages) {
  for (const Message& message : messages) {
    for (const Content& content : message.content) {
      const auto* developer = std::get_if<DeveloperContent>(&content);
      if (!developer) continue;
      for (const auto& [key, space] : developer->tools)
        if (key == "functions" && !space.functions.empty()) return true;
    }
  }
  return false;
}

Status check_tools(const Tools& tools) {
  for (const auto& [key, space] : tools) {
    for (const Function& function : space.functions) {
      if (function.parameters && !nesting_at_most(*function.parameters, schema_depth_max))
        return Error{ErrorCode::invalid_argument,
                     "The parameters of " + key + "." + function.name + " are nested deeper than " + std::to_string(schema_depth_max) +
                         " levels; flatten the schema.",
                     "tools." + key + "." + function.name + ".parameters"};
    }
  }
  return Ok{};
}

}  // namespace althing::protocol::harmony
