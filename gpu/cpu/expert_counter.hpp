// How many tokens each expert of this rank has computed: written by the step, read by whoever asks meanwhile.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "gpu/executor.hpp"

namespace althing::gpu::cpu {

class ExpertCounter {
 public:
  ExpertCounter(std::uint32_t layers, std::uint32_t experts) : counts_{layers, experts, std::vector<std::uint64_t>(std::size_t{layers} * experts)} {}

  // REQUIRES: layer and expert are below what the constructor was told.
  void add(std::uint32_t layer, ExpertId expert, std::uint64_t tokens) {
    const std::lock_guard lock(mutex_);
    counts_.tokens[std::size_t{layer} * counts_.experts + expert.value] += tokens;
  }
  ExpertCounts copy() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  ExpertCounts counts_;
};

}  // namespace althing::gpu::cpu
