// A CUDA device for a torch that was built without one, as far as autograd asks for it: streams and events that do
// nothing. Loaded before torch, whose own answers to the question for an accelerator it takes the place of.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

namespace accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return kCUDA; }
}  // namespace accelerator
}  // namespace at

namespace c10::impl {
struct Guard final : NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return {DeviceType::CUDA, 0}; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, {DeviceType::CUDA, 0}); }
  void record(void**, const Stream&, DeviceIndex, EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}  // namespace c10::impl
