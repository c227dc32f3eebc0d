// Memory that is handed out is ready: what the default stream began on it is over, whatever else the device has to do.
#include "gpu/cuda/device_memory.hpp"

#include "tests/gpu/cuda/device_array.hpp"

namespace althing::gpu::cuda {
namespace {

using tests::must;

// Zeroing so much takes milliseconds, and a stream of one's own does not wait for it.
TEST(DeviceMemory, zeroing_never_comes_after_the_first_use) {
  ALTHING_NEEDS_GPU();
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  constexpr std::size_t size = std::size_t{8} << 30, used = std::size_t{1} << 20;
  for (int round = 0; round < 3; ++round) {
    const auto memory = allocate_device<unsigned char>(size, "a test");
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    CUDA_OK(cudaMemsetAsync(memory->get() + size - used, 0x5A, used, stream));
    CUDA_OK(cudaDeviceSynchronize());
    std::vector<unsigned char> found(used);
    CUDA_OK(cudaMemcpy(found.data(), memory->get() + size - used, used, cudaMemcpyDeviceToHost));
    EXPECT_EQ(found, std::vector<unsigned char>(used, 0x5A));
  }
  must(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace althing::gpu::cuda
