// Attention: kernels/lanes/attention.h over AVX2's vectors.
#include "kernels/lanes/attention.h"

#include "kernels/avx2/avx2_kernels.h"
#include "kernels/avx2/lanes.h"

namespace rota::avx2 {

Bytes kv_page_bytes(const KvShape& shape) { return lanes::kv_page_bytes<Lanes>(shape); }
Bytes attend_scratch_bytes(const KvShape& shape, int64_t /*query_heads*/) {
  return lanes::attend_scratch_bytes<Lanes>(shape);
}
void store_kv(const StoreKvArgs& args) { lanes::store_kv<Lanes>(args); }
void attend(const AttendArgs& args) { lanes::attend<Lanes>(args); }

}  // namespace rota::avx2
