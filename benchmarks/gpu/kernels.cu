// Kernels that are wrong in one way each, and what launches them on torch's stream; stage_faults.py builds them by nvcc.
// `hit` is 1 for the sample that the fault belongs to.
#include <cuda_runtime.h>

__global__ void illegal(float *x, int hit) { if (hit) x[threadIdx.x + (1LL << 38)] = 1.0f; }
__global__ void misaligned(float *x, int hit) { if (hit) *(float4 *)((char *)x + 4) = make_float4(1, 2, 3, 4); }
__global__ void trap(float *x, int hit) { if (hit) asm volatile("trap;"); }
__global__ void endless(float *x, int hit) { volatile float *flag = x; while (hit && *flag != 12345.0f) { } }
__global__ void resources(float *x, int hit) {
    extern __shared__ float rows[];
    rows[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = rows[threadIdx.x] + hit;
}

#define LAUNCH(name) \
    extern "C" void launch_##name(float *x, int hit, void *stream) { name<<<1, 32, 0, (cudaStream_t)stream>>>(x, hit); }
LAUNCH(illegal)
LAUNCH(misaligned)
LAUNCH(trap)
LAUNCH(endless)
extern "C" void launch_resources(float *x, int hit, void *stream) {
    resources<<<1, hit ? 2048 : 32, 4096 * sizeof(float), (cudaStream_t)stream>>>(x, hit);
}

// For stage_kernel.py: what the runtime answers to a launch, and how many blocks of it are resident at once.
extern "C" int launch_status(float *x, unsigned gx, unsigned gy, unsigned bx, unsigned by, unsigned bz, size_t shared) {
    resources<<<dim3(gx, gy), dim3(bx, by, bz), shared>>>(x, 0);
    int status = (int)cudaGetLastError();
    cudaDeviceSynchronize();
    return status;
}
extern "C" int resident_blocks(int threads, size_t shared) {
    int blocks = -1;
    cudaFuncSetAttribute(resources, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, resources, threads, shared);
    return blocks;
}
