//! How much text one token can stand for: what makes a text too long to be worth encoding.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::decoding::{byte_level_alphabet, Table};

/// The parts of tokenizer.json that say whether text can be lost on the way to the model.
pub struct Pipeline {
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub model: ModelPart,
}

#[derive(Deserialize, Default)]
pub struct ModelPart {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: Option<bool>,
}

/// What NFC may shrink a text by: U+1FBE U+0308 U+0301, 7 bytes, become U+0390, 2 bytes.
const NFC_SHRINKS: usize = 4;

impl Pipeline {
    /// The most bytes of a text that one token stands for; none where the file's rules may drop text
    /// beside bytes that have no token.
    /// `longest_added`: bytes of the longest added token, as it is found in a text.
    pub fn max_text_bytes(
        &self,
        vocabulary: &HashMap<String, u32>,
        table: &Table,
        longest_added: usize,
    ) -> Option<usize> {
        let shrinks = shrinks(&self.normalizer)?;
        if !keeps_text(&self.pre_tokenizer) || self.model.kind.as_deref() != Some("BPE") {
            return None;
        }
        // Bytes without a token of their own are dropped: the caller leaves them out of account, which
        // it can do only where it sees the text as the model does.
        let longest = if is_byte_level(&self.pre_tokenizer) {
            let complete = byte_level_alphabet().all(|c| vocabulary.contains_key(&c.to_string()));
            let sizes = table.tokens.iter().map(|token| token.size as usize).max();
            sizes.filter(|_| complete || shrinks == 1)
        } else {
            let complete = self.model.byte_fallback == Some(true)
                && (0..256).all(|byte| vocabulary.contains_key(&format!("<0x{byte:02X}>")));
            // By name: a character such as U+2581 is longer than the space that it is decoded to.
            vocabulary.keys().map(|name| name.len()).max().filter(|_| complete)
        };
        longest?.max(longest_added).checked_mul(shrinks)
    }
}

fn kind(part: &Value) -> &str {
    part["type"].as_str().unwrap_or_default()
}

fn parts<'a>(sequence: &'a Value, key: &str) -> &'a [Value] {
    sequence[key].as_array().map_or(&[], Vec::as_slice)
}

/// How many times shorter the normalizer may make a text; none: it may drop any part of it.
fn shrinks(normalizer: &Value) -> Option<usize> {
    if normalizer.is_null() {
        return Some(1);
    }
    match kind(normalizer) {
        "Prepend" => Some(1),
        "NFC" => Some(NFC_SHRINKS),
        "Replace" => {
            let pattern = normalizer["pattern"]["String"].as_str()?;
            let content = normalizer["content"].as_str()?;
            (content.len() >= pattern.len()).then_some(1)
        }
        "Sequence" => parts(normalizer, "normalizers")
            .iter()
            .try_fold(1usize, |all, part| all.checked_mul(shrinks(part)?)),
        _ => None,
    }
}

/// The pattern of o200k (gpt-oss). Its classes cover every character: what lies between its matches is
/// nothing.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Whether a split drops nothing: it keeps what it finds, or what it finds is everything.
fn split_keeps_text(split: &Value) -> bool {
    let everything = split["pattern"]["Regex"] == O200K && split["invert"] == true;
    everything || split["behavior"].as_str().is_some_and(|behavior| behavior != "Removed")
}

fn keeps_text(pre_tokenizer: &Value) -> bool {
    match kind(pre_tokenizer) {
        "ByteLevel" | "Metaspace" | "Digits" => true,
        "Split" => split_keeps_text(pre_tokenizer),
        "Sequence" => parts(pre_tokenizer, "pretokenizers").iter().all(keeps_text),
        _ => pre_tokenizer.is_null(),
    }
}

fn is_byte_level(pre_tokenizer: &Value) -> bool {
    kind(pre_tokenizer) == "ByteLevel"
        || parts(pre_tokenizer, "pretokenizers").iter().any(is_byte_level)
}
