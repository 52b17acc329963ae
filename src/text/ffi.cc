#include "text/ffi.h"

#include "base/log.h"

namespace rota::ffi {

Status failure(RotaTextCode code, std::string_view what, std::string_view message) {
  switch (code) {
    case kRotaTextInvalid:
      return rota::error(StatusCode::kInvalidArgument, "{}: {}", what, message);
    case kRotaTextDamaged:
      return rota::error(StatusCode::kDataLoss, "{}: {}", what, message);
    case kRotaTextUnsupported:
      return rota::error(StatusCode::kUnsupported, "{}: {}", what, message);
    case kRotaTextOk:
    case kRotaTextInternal:
      break;
  }
  log::error("{}: panic in the text library: {}", what, message);
  return rota::error(StatusCode::kInternal, "{}: internal error, see the log", what);
}

}  // namespace rota::ffi
