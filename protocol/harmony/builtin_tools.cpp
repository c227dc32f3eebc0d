// Nothing here may be reworded: the models know these texts.
#include "protocol/harmony/builtin_tools.hpp"

namespace althing::protocol::harmony {
namespace {

Function function(const char* name, const char* description, const char* parameters) {
  return {name, description, nlohmann::ordered_json::parse(parameters)};
}

}  // namespace

ToolNamespace browser_tools() {
  ToolNamespace browser{"browser",
                        "Tool for browsing.\n"
                        "The `cursor` appears in brackets before each browsing display: `[{cursor}]`.\n"
                        "Cite information from the tool using the following format:\n"
                        "`【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.\n"
                        "Do not quote more than 10 words directly from the tool output.\n"
                        "sources=web (default: web)",
                        {}};
  browser.functions.push_back(function("search", "Searches for information related to `query` and displays `topn` results.", R"({
    "type": "object", "required": ["query"],
    "properties": {"query": {"type": "string"}, "topn": {"type": "number", "default": 10}, "source": {"type": "string"}}})"));
  browser.functions.push_back(
      function("open",
               "Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, showing `num_lines` lines.\n"
               "Valid link ids are displayed with the formatting: `【{id}†.*】`.\n"
               "If `cursor` is not provided, the most recent page is implied.\n"
               "If `id` is a string, it is treated as a fully qualified URL associated with `source`.\n"
               "If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most relevant "
               "passage, if available.\n"
               "Use this function without `id` to scroll to a new location of an opened page.",
               R"({"type": "object", "properties": {
    "id": {"type": ["number", "string"], "default": -1}, "cursor": {"type": "number", "default": -1},
    "loc": {"type": "number", "default": -1}, "num_lines": {"type": "number", "default": -1},
    "view_source": {"type": "boolean", "default": false}, "source": {"type": "string"}}})"));
  browser.functions.push_back(function("find", "Finds exact matches of `pattern` in the current page, or the page given by `cursor`.", R"({
    "type": "object", "required": ["pattern"],
    "properties": {"pattern": {"type": "string"}, "cursor": {"type": "number", "default": -1}}})"));
  return browser;
}

ToolNamespace python_tools() {
  return {"python",
          "Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool should be used for "
          "internal reasoning, but not for code that is intended to be visible to the user (e.g. when creating plots, tables, or files).\n\n"
          "When you send a message containing Python code to python, it will be executed in a stateful Jupyter notebook environment. python will "
          "respond with the output of the execution or time out after 120.0 seconds. The drive at '/mnt/data' can be used to save and persist "
          "user files. Internet access for this session is UNKNOWN. Depends on the cluster.",
          {}};
}

}  // namespace althing::protocol::harmony
