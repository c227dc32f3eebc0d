// Prints what gpu/weights/verify.hpp finds, and tries the tokenizer as well.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "actors/commands/inspect.hpp"
#include "actors/engine_setup.hpp"
#include "actors/exit_codes.hpp"
#include "gpu/weights/verify.hpp"
#include "monitoring/json_line.hpp"

namespace althing::actors {
namespace {

void print_json(const gpu::VerifyReport& report) {
  std::printf("{\"ok\":%s,\"files\":%zu,\"tensors\":%zu,\"bytes\":%llu,\"parameters\":%llu,\"problems\":[", report.ok() ? "true" : "false",
              report.files, report.tensors, static_cast<unsigned long long>(report.bytes), static_cast<unsigned long long>(report.parameters));
  for (std::size_t i = 0; i < report.problems.size(); ++i)
    std::printf("%s\"%s\"", i == 0 ? "" : ",", monitoring::json_escaped(report.problems[i]).c_str());
  std::printf("]}\n");
}

}  // namespace

int run_verify(const std::string& directory, bool json) {
  if (!std::filesystem::is_directory(directory)) {
    std::fprintf(stderr, "althing: %s is not a folder; give the folder that holds config.json\n", directory.c_str());
    return exit_not_found;
  }
  const bool show_progress = !json && ::isatty(STDERR_FILENO) == 1;
  gpu::VerifyReport report = gpu::verify_model(directory, [&](std::uint64_t done, std::uint64_t total) {
    if (show_progress && total > 0) std::fprintf(stderr, "\r%3llu %% read", static_cast<unsigned long long>(done * 100 / total));
  });
  if (show_progress) std::fprintf(stderr, "\r            \r");
  ServeSettings settings;
  settings.model = directory;
  if (auto format = chat_format(settings); !format) report.problems.push_back(format.error().message);
  if (json) {
    print_json(report);
  } else {
    for (const std::string& problem : report.problems) std::printf("WRONG  %s\n", problem.c_str());
    std::printf("%s: %zu files, %zu tensors, %llu bytes, %llu parameters: %s\n", directory.c_str(), report.files, report.tensors,
                static_cast<unsigned long long>(report.bytes), static_cast<unsigned long long>(report.parameters),
                report.ok() ? "all good" : (std::to_string(report.problems.size()) + " problems").c_str());
  }
  return report.ok() ? exit_ok : exit_corrupt;
}

}  // namespace althing::actors
