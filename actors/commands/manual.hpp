// Manual pages, made of the tables that the command line is parsed with: a page cannot name an option that there is not, nor leave one out.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

struct ManualSettings {
  std::string command;  // "" for the program's own page
  std::string folder;   // write all pages there instead of printing one; "" for standard output
};

// The page of `program`, or of its command of that name, as roff for man(1). Errors: not_found (no such command).
Result<std::string> manual_page(const CLI::App& program, const std::string& command);

// Prints a page, or writes all of them as althing.1, althing-serve.1, … Returns the exit code.
int run_manual(const CLI::App& program, const ManualSettings& settings);

}  // namespace althing::actors
