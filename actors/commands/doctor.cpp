// The machine, checked for what the server needs: processor, kernel facilities, memory, limits, GPUs.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <caf/config.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "actors/commands/inspect.hpp"
#include "actors/commands/same_twice.hpp"
#include "actors/complain.hpp"
#include "actors/control_channel.hpp"
#include "actors/exit_codes.hpp"
#include "actors/serving_addresses.hpp"
#include "gpu/cuda/device_info.hpp"
#include "monitoring/json_line.hpp"
#include "protocol/wire/router_socket.hpp"

namespace althing::actors {
namespace {

enum class Finding : std::uint8_t { ok, note, wrong };

struct Line {
  Finding finding;
  std::string what;
  std::string detail;
};

Line processor() {
  const bool good = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const std::string cores = std::to_string(std::thread::hardware_concurrency()) + " hardware threads";
  if (good) return {Finding::ok, "processor", "AVX2 and FMA, " + cores};
  return {Finding::wrong, "processor", "no AVX2 or FMA; the CPU backend needs an x86-64-v3 processor (" + cores + ")"};
}

Line pidfd() {
  const Descriptor fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (fd) return {Finding::ok, "pidfd", "available"};
  return {Finding::wrong, "pidfd", std::string("pidfd_open: ") + std::strerror(errno) + "; Linux 5.3 or newer is needed"};
}

Line sealed_memory() {
  const Descriptor fd(::memfd_create("althing-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd) return {Finding::ok, "memfd", "available"};
  return {Finding::wrong, "memfd", std::string("memfd_create: ") + std::strerror(errno) + "; ranks share memory through it"};
}

Line memory() {
  struct sysinfo machine {};
  ::sysinfo(&machine);
  const auto mib = [&](unsigned long units) { return std::to_string(units * machine.mem_unit >> 20) + " MiB"; };
  return {Finding::ok, "memory", mib(machine.totalram) + ", " + mib(machine.freeram) + " free without the page cache"};
}

Line descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = std::to_string(limit.rlim_cur) + " open files allowed";
  if (limit.rlim_cur >= 1024) return {Finding::ok, "descriptors", text};
  return {Finding::note, "descriptors", text + "; a busy server wants 1024 or more (ulimit -n)"};
}

// A port that is taken is only noted: it may well be the server that one asks about.
Line port(const ServingAddress& address) {
  const std::string what = "--" + std::string(address.flag);
  if (address.port == 0) return {Finding::ok, what, address.text + ": any free port"};
  if (auto status = check_free(address); !status) return {Finding::note, what, status.error().message};
  return {Finding::ok, what, address.text + " is free"};
}

std::vector<Line> gpus() {
  const gpu::CudaReport report = gpu::cuda_devices();
  if (report.devices.empty()) return {{Finding::note, "GPU", report.reason}};
  std::vector<Line> lines;
  for (const gpu::CudaDevice& device : report.devices)
    lines.push_back({device.compute_major == 9 ? Finding::ok : Finding::note, "GPU",
                     device.name + ", " + std::to_string(device.memory_bytes >> 30) + " GiB, compute capability " +
                         std::to_string(device.compute_major) + "." + std::to_string(device.compute_minor) + ", driver for CUDA " +
                         gpu::cuda_version_text(report.driver_version)});
  return lines;
}

Line answers(const ServeSettings& settings) {
  auto found = same_twice(settings);
  if (!found) return {Finding::wrong, "model", found.error().message};
  const Finding finding = found->kind == TwiceFinding::Kind::same               ? Finding::ok
                          : found->kind == TwiceFinding::Kind::differs_slightly ? Finding::note
                                                                                : Finding::wrong;
  return {finding, "model", found->detail};
}

}  // namespace

int run_doctor(const ServeSettings& settings, bool json) {
  auto addresses = serving_addresses(settings.bind, settings.metrics, !settings.curve_key.empty());
  if (!addresses) return complain(addresses.error());
  std::vector<Line> lines{{Finding::ok, "althing", ALTHING_VERSION},
                          {Finding::ok, "libraries",
                           "CAF " + std::to_string(CAF_VERSION / 10000) + "." + std::to_string(CAF_VERSION / 100 % 100) + "." +
                               std::to_string(CAF_VERSION % 100) + ", " + protocol::wire::library_versions()},
                          processor(),
                          pidfd(),
                          sealed_memory(),
                          memory(),
                          descriptors()};
  for (const ServingAddress& address : *addresses) lines.push_back(port(address));
  for (Line& line : gpus()) lines.push_back(std::move(line));
  if (!settings.model.empty()) lines.push_back(answers(settings));
  bool wrong = false;
  for (const Line& line : lines) {
    wrong = wrong || line.finding == Finding::wrong;
    const char* word = line.finding == Finding::ok ? "ok" : line.finding == Finding::note ? "note" : "WRONG";
    if (json)
      std::printf("{\"finding\":\"%s\",\"what\":\"%s\",\"detail\":\"%s\"}\n", word, line.what.c_str(), monitoring::json_escaped(line.detail).c_str());
    else
      std::printf("%-6s %-12s %s\n", word, line.what.c_str(), line.detail.c_str());
  }
  return wrong ? exit_unsupported : exit_ok;
}

}  // namespace althing::actors
