// Kernels with launch attributes (D04). launch.rbundle has them as a cubin for sm_90 and as PTX 8.0; `python launch.py` builds it
// with nvcc.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;
extern __shared__ unsigned tile[];

// The words of dynamic shared memory that the launch gave.
static __device__ unsigned words() {
  unsigned size;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
  return size / 4;
}

// Each workgroup turns round a tile as large as its dynamic shared memory, which takes all of it.
extern "C" __global__ void turn(const unsigned *x, unsigned *out, unsigned n) {
  const unsigned count = words(), first = blockIdx.x * count;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) tile[i] = first + i < n ? x[first + i] : 0;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
    if (first + i < n) out[first + i] = tile[count - 1 - i];
}

// The same with 4 KiB that the code declares.
extern "C" __global__ void turn_beside(const unsigned *x, unsigned *out, unsigned n) {
  __shared__ unsigned mine[1024];
  const unsigned count = words(), first = blockIdx.x * count;
  for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) mine[i] = i;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) tile[i] = first + i < n ? x[first + i] : 0;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
    if (first + i < n) out[first + i] = tile[count - 1 - i] + mine[i % 1024] - i % 1024;
}

// Workgroup b writes to out[4 * b]: the workgroups of its cluster, its rank, its cluster's number in x, and what its neighbour in
// the cluster has put into that one's shared memory: the neighbour's number in the grid.
static __device__ void tell(unsigned *out) {
  __shared__ unsigned mine;
  cg::cluster_group cluster = cg::this_cluster();
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) mine = block;
  cluster.sync();
  const unsigned rank = cluster.block_rank(), size = cluster.num_blocks();
  unsigned number;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
  if (threadIdx.x == 0) {
    unsigned *to = out + 4 * block;
    to[0] = size, to[1] = rank, to[2] = number, to[3] = *cluster.map_shared_rank(&mine, (rank + 1) % size);
  }
  cluster.sync();  // the memory that a neighbour reads lives until here
}

extern "C" __global__ void ranks(unsigned *out) { tell(out); }
extern "C" __global__ void __cluster_dims__(2, 1, 1) pairs(unsigned *out) { tell(out); }
