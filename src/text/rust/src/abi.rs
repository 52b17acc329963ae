//! The C ABI: types and functions of `rota_text.h`. Every export is guarded: a panic is an error.

use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use crate::template::Template;
use crate::tokenizer::{Mode, Tokenizer};

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok = 0,
    Invalid = 1,
    Damaged = 2,
    Unsupported = 3,
    Internal = 4,
}

/// An error on its way to the C++ side.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::Invalid, message: message.into() }
    }
    pub fn damaged(message: impl Into<String>) -> Self {
        Self { code: Code::Damaged, message: message.into() }
    }
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { code: Code::Unsupported, message: message.into() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

impl View {
    /// # Safety
    /// `data` must point to `size` readable bytes for as long as the slice is used.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }

    unsafe fn text<'a>(self) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.bytes())
            .map_err(|e| Failure::invalid(format!("not UTF-8 at byte {}", e.valid_up_to())))
    }
}

/// A Vec whose ownership went to the C++ side.
#[repr(C)]
pub struct Owned<T> {
    data: *mut T,
    size: usize,
    capacity: usize,
}

impl<T> Owned<T> {
    fn new(vector: Vec<T>) -> Self {
        let mut vector = ManuallyDrop::new(vector);
        Self { data: vector.as_mut_ptr(), size: vector.len(), capacity: vector.capacity() }
    }

    /// # Safety
    /// Must come from `new`, once.
    unsafe fn free(self) {
        if !self.data.is_null() {
            drop(Vec::from_raw_parts(self.data, self.size, self.capacity));
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Token {
    pub begin: u32,
    pub size: u32,
    pub present: u8,
    pub special: u8,
    pub byte: u8,
    pub reserved: u8,
}

#[repr(C)]
pub struct TokenTable {
    bytes: *const u8,
    tokens: *const Token,
    count: usize,
    byte_fallback: u8,
    strip_only_first_token: u8,
    space_between_tokens: u8,
    strip_leading_spaces: u32,
    max_text_bytes: usize,
}

#[repr(C)]
pub struct Markers {
    first: u32,
    originals: *const u32,
    count: usize,
}

impl Markers {
    /// Pairs of (marker, the character it stands for).
    unsafe fn pairs(&self) -> Result<Vec<(char, char)>, Failure> {
        if self.count == 0 {
            return Ok(Vec::new());
        }
        let originals = std::slice::from_raw_parts(self.originals, self.count);
        originals
            .iter()
            .enumerate()
            .map(|(k, &original)| {
                let marker = self.first.checked_add(k as u32).and_then(char::from_u32);
                match (marker, char::from_u32(original)) {
                    (Some(marker), Some(original)) => Ok((marker, original)),
                    _ => Err(Failure::invalid("a marker is not a code point")),
                }
            })
            .collect()
    }
}

#[repr(C)]
pub struct EncodeOptions {
    special: i32,
    add_special_tokens: u8,
    markers: Markers,
}

#[repr(C)]
pub struct RenderOptions {
    fuel: u64,
    max_output: usize,
    unix_seconds: i64,
    markers: Markers,
}

/// Panics are reported through the ABI, so the default hook's lines on stderr would only be noise.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_string()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_string()
    }
}

/// Runs `body`; stores its message in `error` if it fails or panics.
unsafe fn guarded(error: *mut Owned<u8>, body: impl FnOnce() -> Result<(), Failure>) -> Code {
    silence_panics();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Code::Ok,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure { code: Code::Internal, message: panic_text(payload.as_ref()) },
    };
    if !error.is_null() {
        error.write(Owned::new(failure.message.into_bytes()));
    }
    failure.code
}

/// # Safety
/// Arguments as `rota_text.h` says; the same holds for every export below.
#[no_mangle]
pub unsafe extern "C" fn rota_tokenizer_load(
    json: View,
    out: *mut *mut Tokenizer,
    error: *mut Owned<u8>,
) -> Code {
    guarded(error, || {
        // Panics of the tokenizers crate while it reads a file are the file's fault.
        let loaded =
            catch_unwind(|| Tokenizer::from_json(json.bytes())).unwrap_or_else(|payload| {
                Err(Failure::damaged(format!("cannot be used: {}", panic_text(payload.as_ref()))))
            })?;
        out.write(Box::into_raw(Box::new(loaded)));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_tokenizer_free(tokenizer: *mut Tokenizer) {
    guarded(std::ptr::null_mut(), || {
        if !tokenizer.is_null() {
            drop(Box::from_raw(tokenizer));
        }
        Ok(())
    });
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_tokenizer_table(tokenizer: *const Tokenizer) -> TokenTable {
    let table = &(*tokenizer).table;
    TokenTable {
        bytes: table.bytes.as_ptr(),
        tokens: table.tokens.as_ptr(),
        count: table.tokens.len(),
        byte_fallback: table.plan.byte_fallback.into(),
        strip_only_first_token: table.plan.strip_only_first_token.into(),
        space_between_tokens: table.plan.space_between_tokens.into(),
        strip_leading_spaces: table.plan.strip_leading_spaces,
        max_text_bytes: table.max_text_bytes.unwrap_or(0),
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_tokenizer_id_of(tokenizer: *const Tokenizer, token: View) -> i32 {
    let mut id = -1;
    guarded(std::ptr::null_mut(), || {
        if let Some(found) = (*tokenizer).id_of(token.text()?) {
            id = found as i32;
        }
        Ok(())
    });
    id
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: View,
    options: *const EncodeOptions,
    out: *mut Owned<i32>,
    error: *mut Owned<u8>,
) -> Code {
    guarded(error, || {
        let options = &*options;
        let mode = match options.special {
            0 => Mode::Parse,
            1 => Mode::AsText,
            _ => Mode::Chat,
        };
        let markers = options.markers.pairs()?;
        let add_special_tokens = options.add_special_tokens != 0;
        let ids = (*tokenizer).encode(text.text()?, mode, &markers, add_special_tokens)?;
        out.write(Owned::new(ids));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_template_compile(
    source: View,
    out: *mut *mut Template,
    error: *mut Owned<u8>,
) -> Code {
    guarded(error, || {
        let compiled = Template::compile(source.text()?)?;
        out.write(Box::into_raw(Box::new(compiled)));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_template_free(compiled: *mut Template) {
    guarded(std::ptr::null_mut(), || {
        if !compiled.is_null() {
            drop(Box::from_raw(compiled));
        }
        Ok(())
    });
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_template_render(
    compiled: *const Template,
    context_json: View,
    options: *const RenderOptions,
    out: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> Code {
    guarded(error, || {
        let options = &*options;
        let limits = crate::template::Limits { fuel: options.fuel, max_output: options.max_output };
        let markers = options.markers.pairs()?.into_iter().map(|(marker, _)| marker).collect();
        let surroundings =
            crate::template::Surroundings { unix_seconds: options.unix_seconds, markers };
        let text = (*compiled).render(context_json.bytes(), limits, surroundings)?;
        out.write(Owned::new(text.into_bytes()));
        Ok(())
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_text_free_buffer(buffer: Owned<u8>) {
    buffer.free();
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn rota_text_free_ids(ids: Owned<i32>) {
    ids.free();
}
