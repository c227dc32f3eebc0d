// How benchmarks of kernels check CUDA's answers and time launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace althing::bench {

inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define MUST(call) must(call, #call)

// Seconds of one launch among `launches` in a captured graph: the median of some rounds.
inline double graph_seconds(std::uint32_t launches, const std::function<cudaError_t(std::uint32_t, cudaStream_t)>& enqueue) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  MUST(cudaStreamCreate(&stream));
  MUST(cudaEventCreate(&begin));
  MUST(cudaEventCreate(&end));
  MUST(enqueue(0, stream));  // loads the kernel
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (std::uint32_t i = 0; i < launches; ++i) MUST(enqueue(i, stream));
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<double> times;
  for (int round = 0; round < 9; ++round) {
    MUST(cudaEventRecord(begin, stream));
    MUST(cudaGraphLaunch(executable, stream));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaEventSynchronize(end));
    float milliseconds = 0;
    MUST(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round >= 2) times.push_back(milliseconds * 1e-3 / launches);
  }
  MUST(cudaGraphExecDestroy(executable));
  MUST(cudaGraphDestroy(graph));
  MUST(cudaEventDestroy(begin));
  MUST(cudaEventDestroy(end));
  MUST(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace althing::bench
