//! What each token adds to a text, as bytes: the file's decoder, taken apart so that the C++ side can
//! decode a stream one token at a time.

use std::collections::HashMap;
use std::sync::LazyLock;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::Decoder;

use crate::abi::{Failure, Token};

/// What cannot be said token by token.
#[derive(Clone, Copy, Default, Debug)]
pub struct Plan {
    pub byte_fallback: bool,
    pub strip_leading_spaces: u32,
    pub strip_only_first_token: bool,
    pub space_between_tokens: bool,
}

#[derive(Default)]
pub struct Table {
    pub bytes: Vec<u8>,
    pub tokens: Vec<Token>,
    pub plan: Plan,
    pub max_text_bytes: Option<usize>, // see text_bound.rs
}

/// One way from a token's name to its bytes.
enum Step<'a> {
    ByteLevel,
    ByteFallback,
    Each(&'a DecoderWrapper), // looks at one token alone
    Metaspace(char),
}

pub struct Rules<'a> {
    steps: Vec<Step<'a>>,
    pub plan: Plan,
}

/// The characters with which byte-level vocabularies write bytes (GPT-2's table).
static BYTE_OF_CHAR: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let printable = |b: &u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0..256u32).filter(|b| !printable(b)).zip(256u32..);
    let same = (0..256u32).filter(printable).map(|b| (b, b));
    same.chain(others).filter_map(|(b, c)| Some((char::from_u32(c)?, b as u8))).collect()
});

/// The same characters, one for each of the 256 bytes.
pub fn byte_level_alphabet() -> impl Iterator<Item = char> {
    BYTE_OF_CHAR.keys().copied()
}

fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

impl<'a> Rules<'a> {
    pub fn of(decoder: Option<&'a DecoderWrapper>) -> Result<Self, Failure> {
        let mut rules = Rules { steps: Vec::new(), plan: Plan::default() };
        let Some(decoder) = decoder else {
            rules.plan.space_between_tokens = true;
            return Ok(rules);
        };
        let single = std::slice::from_ref(decoder);
        let chain = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            _ => single,
        };
        let mut fused = false;
        for part in chain {
            rules.add(part, &mut fused)?;
        }
        Ok(rules)
    }

    fn add(&mut self, part: &'a DecoderWrapper, fused: &mut bool) -> Result<(), Failure> {
        let after_bytes = self.plan.byte_fallback || *fused;
        match part {
            DecoderWrapper::Fuse(_) => *fused = true,
            DecoderWrapper::Strip(strip) if *fused && strip.content == ' ' && strip.stop == 0 => {
                self.plan.strip_leading_spaces = u32::try_from(strip.start).unwrap_or(u32::MAX);
            }
            _ if after_bytes => return Err(refused(part)),
            DecoderWrapper::ByteLevel(_) => {
                self.steps.push(Step::ByteLevel);
                *fused = true;
            }
            DecoderWrapper::ByteFallback(_) if !self.plan.strip_only_first_token => {
                self.steps.push(Step::ByteFallback);
                self.plan.byte_fallback = true;
            }
            DecoderWrapper::Metaspace(metaspace) => {
                use tokenizers::pre_tokenizers::metaspace::PrependScheme;
                self.steps.push(Step::Metaspace(metaspace.get_replacement()));
                if metaspace.get_prepend_scheme() != PrependScheme::Never {
                    self.plan.strip_only_first_token = true;
                    self.plan.strip_leading_spaces = u32::MAX;
                }
            }
            DecoderWrapper::Replace(_) => self.steps.push(Step::Each(part)),
            _ => return Err(refused(part)),
        }
        Ok(())
    }

    /// The bytes of a token, and whether it is a byte of the byte fallback.
    pub fn bytes_of(&self, token: &str) -> Result<(Vec<u8>, bool), Failure> {
        let mut text = token.to_string();
        for step in &self.steps {
            match step {
                Step::ByteLevel => {
                    let bytes: Option<Vec<u8>> =
                        text.chars().map(|c| BYTE_OF_CHAR.get(&c).copied()).collect();
                    return Ok((bytes.unwrap_or_else(|| text.clone().into_bytes()), false));
                }
                Step::ByteFallback => {
                    if let Some(byte) = byte_of(&text) {
                        return Ok((vec![byte], true));
                    }
                }
                Step::Metaspace(replacement) => text = text.replace(*replacement, " "),
                Step::Each(decoder) => {
                    text = decoder
                        .decode_chain(vec![text])
                        .map_err(|e| Failure::damaged(format!("decoder: {e}")))?
                        .concat();
                }
            }
        }
        Ok((text.into_bytes(), false))
    }
}

fn refused(part: &DecoderWrapper) -> Failure {
    let kind = match part {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    };
    Failure::unsupported(format!(
        "decoder: {kind} at this place cannot be streamed; expected ByteLevel, Metaspace, or a \
         Sequence of Replace, ByteFallback, Fuse and Strip of leading spaces"
    ))
}
