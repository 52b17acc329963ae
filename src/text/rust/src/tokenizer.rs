//! tokenizer.json through the `tokenizers` crate: what is refused, and the ways to encode.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use tokenizers::normalizers::byte_level::ByteLevel;
use tokenizers::tokenizer::normalizer::NormalizedString;
use tokenizers::{
    AddedToken, AddedVocabulary, Model, ModelWrapper, Normalizer, OffsetReferential, OffsetType,
    PreTokenizedString,
};

use crate::abi::{Failure, Token};
use crate::decoding::{Rules, Table};
use crate::pre_tokenize::{limit_regex_searches, pre_tokenize};
use crate::text_bound::{ModelPart, Pipeline};

/// Far above any vocabulary; the table of tokens has an entry for each id.
const MAX_ID: u32 = (1 << 24) - 1;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Parse,  // special tokens by name are special tokens
    AsText, // they are text
    Chat,   // as Parse, but a special token is found in the raw text only, never in normalized text
}

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    as_text: AddedVocabulary,
    chat: AddedVocabulary,
    special: HashMap<u32, String>,
    marker_form: MarkerForm,
    pub table: Table,
}

/// What the normalizer makes of a private-use character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MarkerForm {
    Itself,
    ByteLevel,
    Lost,
}

/// The parts of tokenizer.json that the crate reads over or keeps to itself.
#[derive(Deserialize)]
struct Declared {
    #[serde(default)]
    added_tokens: Option<Vec<DeclaredToken>>,
    #[serde(default)]
    normalizer: serde_json::Value,
    #[serde(default)]
    pre_tokenizer: serde_json::Value,
    #[serde(default)]
    model: ModelPart,
}

#[derive(Deserialize)]
struct DeclaredToken {
    id: u64,
    #[serde(flatten)]
    token: AddedToken,
}

fn lookup(vocabulary: &AddedVocabulary, model: &ModelWrapper, id: u32) -> Option<String> {
    vocabulary.simple_id_to_token(id).or_else(|| model.id_to_token(id))
}

impl Tokenizer {
    pub fn from_json(json: &[u8]) -> Result<Self, Failure> {
        limit_regex_searches();
        let declared: Declared =
            serde_json::from_slice(json).map_err(|e| Failure::damaged(format!("{e}")))?;
        let pipeline = Pipeline {
            normalizer: declared.normalizer,
            pre_tokenizer: declared.pre_tokenizer,
            model: declared.model,
        };
        let declared = declared.added_tokens.unwrap_or_default();
        let mut inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|e| Failure::damaged(format!("{e}")))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Failure::damaged(format!("{e}")))?;
        refuse_dropout(inner.get_model())?;
        check_ids(&inner, &declared)?;

        let mut as_text = inner.get_added_vocabulary().clone();
        as_text.set_encode_special_tokens(true);
        let chat = chat_vocabulary(&inner, &declared)?;
        let special = special_tokens(&inner);
        let mut table = build_table(&inner, &special)?;
        table.max_text_bytes = longest_added(&inner)
            .and_then(|longest| pipeline.max_text_bytes(&inner.get_vocab(true), &table, longest));
        let marker_form = marker_form(&inner);
        Ok(Self { inner, as_text, chat, special, marker_form, table })
    }

    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub fn encode(
        &self,
        text: &str,
        mode: Mode,
        markers: &[(char, char)],
        add_special_tokens: bool,
    ) -> Result<Vec<i32>, Failure> {
        let refuse =
            |e: tokenizers::Error| Failure::invalid(format!("the text cannot be encoded: {e}"));
        let vocabulary = match mode {
            Mode::Parse => self.inner.get_added_vocabulary(),
            Mode::AsText => &self.as_text,
            Mode::Chat => &self.chat,
        };
        let mut pieces = vocabulary.extract_and_normalize(self.inner.get_normalizer(), text);
        if !markers.is_empty() {
            self.unmark(&mut pieces, markers)?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenize(pre_tokenizer, &mut pieces).map_err(refuse)?;
        }
        let model = self.inner.get_model();
        if mode == Mode::Parse {
            pieces.tokenize(|piece| model.tokenize(piece.get())).map_err(refuse)?;
        } else {
            pieces.tokenize(|piece| self.tokenize_as_text(piece.get())).map_err(refuse)?;
        }
        if add_special_tokens {
            let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(refuse)?;
            let encoding = self.inner.post_process(encoding, None, true).map_err(refuse)?;
            return Ok(encoding.get_ids().iter().map(|&id| id as i32).collect());
        }
        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let tokens = splits.iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten();
        Ok(tokens.map(|token| token.id as i32).collect())
    }

    /// Replaces markers by what they stand for, after the special tokens were found.
    fn unmark(
        &self,
        pieces: &mut PreTokenizedString,
        markers: &[(char, char)],
    ) -> Result<(), Failure> {
        if self.marker_form == MarkerForm::Lost {
            return Err(Failure::unsupported(
                "the normalizer removes private-use characters: text that looks like a special token \
                 cannot be kept apart",
            ));
        }
        let replace = |piece: &mut NormalizedString, marker: char, original: char| {
            let (mut marker, mut original) = (marker.to_string(), original.to_string());
            if self.marker_form == MarkerForm::ByteLevel {
                (marker, original) = (byte_level(&marker)?, byte_level(&original)?);
            }
            if piece.get().contains(&marker) {
                piece.replace(&marker, &original)?;
            }
            Ok(())
        };
        pieces
            .normalize(|piece| markers.iter().try_for_each(|&(m, o)| replace(piece, m, o)))
            .map_err(|e| Failure::invalid(format!("the text cannot be encoded: {e}")))
    }

    /// The model's tokens of a piece of plain text. Some vocabularies hold their special tokens among the
    /// ordinary ones and would find them: such a piece is cut behind the token's first character.
    fn tokenize_as_text(&self, piece: &str) -> tokenizers::Result<Vec<tokenizers::Token>> {
        let model = self.inner.get_model();
        let mut out = Vec::new();
        let mut rest = piece;
        loop {
            let tokens = model.tokenize(rest)?;
            let forged = tokens.iter().find_map(|token| {
                let name = self.special.get(&token.id)?;
                let (begin, end) = token.offsets;
                if rest.get(begin..end)? != name {
                    return None;
                }
                Some(begin + rest[begin..].chars().next()?.len_utf8())
            });
            let Some(cut) = forged.filter(|&cut| cut < rest.len()) else {
                out.extend(tokens);
                return Ok(out);
            };
            out.extend(model.tokenize(&rest[..cut])?);
            rest = &rest[cut..];
        }
    }
}

fn byte_level(text: &str) -> tokenizers::Result<String> {
    let mut normalized = NormalizedString::from(text);
    ByteLevel::new().normalize(&mut normalized)?;
    Ok(normalized.get().to_string())
}

fn marker_form(inner: &tokenizers::Tokenizer) -> MarkerForm {
    const PROBE: &str = "\u{F0000}";
    let Some(normalizer) = inner.get_normalizer() else {
        return MarkerForm::Itself;
    };
    let mut normalized = NormalizedString::from(PROBE);
    if normalizer.normalize(&mut normalized).is_err() {
        return MarkerForm::Lost;
    }
    if normalized.get().contains(PROBE) {
        return MarkerForm::Itself;
    }
    match byte_level(PROBE) {
        Ok(bytes) if normalized.get().contains(&bytes) => MarkerForm::ByteLevel,
        _ => MarkerForm::Lost,
    }
}

fn refuse_dropout(model: &ModelWrapper) -> Result<(), Failure> {
    match model {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_some_and(|p| p != 0.0) => Err(
            Failure::unsupported("model.dropout is set: encoding would be random; set it to null"),
        ),
        _ => Ok(()),
    }
}

/// Ids are unique, small enough for a table, and those that the file declares.
fn check_ids(inner: &tokenizers::Tokenizer, declared: &[DeclaredToken]) -> Result<(), Failure> {
    for token in declared {
        let name = &token.token.content;
        let used = inner.token_to_id(name);
        if used.map(u64::from) != Some(token.id) {
            let used = used.map_or("none".to_string(), |id| id.to_string());
            return Err(Failure::damaged(format!(
                "added_tokens: {name:?} declares id {}, but the vocabulary gives it {used}",
                token.id
            )));
        }
    }
    let mut name_of: HashMap<u32, &str> = HashMap::new();
    let vocabulary = inner.get_vocab(true);
    for (name, &id) in &vocabulary {
        if id > MAX_ID {
            return Err(Failure::damaged(format!(
                "token {name:?} has id {id}; expected at most {MAX_ID}"
            )));
        }
        if let Some(other) = name_of.insert(id, name) {
            let (first, second) = (other.min(name), other.max(name));
            return Err(Failure::damaged(format!(
                "tokens {first:?} and {second:?} both have id {id}"
            )));
        }
    }
    Ok(())
}

/// The added tokens with the special ones matched in the raw text.
fn chat_vocabulary(
    inner: &tokenizers::Tokenizer,
    declared: &[DeclaredToken],
) -> Result<AddedVocabulary, Failure> {
    let mut vocabulary = AddedVocabulary::new();
    let tokens: Vec<AddedToken> = declared
        .iter()
        .map(|token| {
            let normalized = token.token.normalized && !token.token.special;
            token.token.clone().normalized(normalized)
        })
        .collect();
    vocabulary
        .add_tokens(tokens, inner.get_model(), inner.get_normalizer())
        .map_err(|e| Failure::damaged(format!("added_tokens: {e}")))?;
    for token in declared {
        let name = &token.token.content;
        if vocabulary.token_to_id(name, inner.get_model()) != inner.token_to_id(name) {
            return Err(Failure::damaged(format!("added_tokens: {name:?} has two ids")));
        }
    }
    Ok(vocabulary)
}

/// Bytes of the longest added token, in the raw or in normalized text. None: there are tokens that take
/// in any number of spaces beside them.
fn longest_added(inner: &tokenizers::Tokenizer) -> Option<usize> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    added.values().try_fold(0, |longest: usize, token| {
        if token.lstrip || token.rstrip {
            return None;
        }
        let mut normalized = NormalizedString::from(token.content.as_str());
        if let Some(normalizer) = inner.get_normalizer() {
            normalizer.normalize(&mut normalized).ok()?;
        }
        Some(longest.max(token.content.len()).max(normalized.get().len()))
    })
}

fn special_tokens(inner: &tokenizers::Tokenizer) -> HashMap<u32, String> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let special = added.iter().filter(|(_, token)| token.special);
    special.map(|(&id, token)| (id, token.content.clone())).collect()
}

fn build_table(
    inner: &tokenizers::Tokenizer,
    special: &HashMap<u32, String>,
) -> Result<Table, Failure> {
    let rules = Rules::of(inner.get_decoder())?;
    let ids: HashSet<u32> = inner.get_vocab(true).into_values().collect();
    let count = ids.iter().max().map_or(0, |&max| max as usize + 1);
    let absent = Token { begin: 0, size: 0, present: 0, special: 0, byte: 0, reserved: 0 };
    let mut table = Table {
        bytes: Vec::new(),
        tokens: vec![absent; count],
        plan: rules.plan,
        max_text_bytes: None,
    };
    for id in 0..count as u32 {
        if !ids.contains(&id) {
            continue;
        }
        let Some(name) = lookup(inner.get_added_vocabulary(), inner.get_model(), id) else {
            continue;
        };
        let (bytes, byte) = rules.bytes_of(&name)?;
        let begin = u32::try_from(table.bytes.len());
        let (Ok(begin), Ok(size)) = (begin, u32::try_from(bytes.len())) else {
            return Err(Failure::damaged("the vocabulary holds more than 4 GiB of text"));
        };
        let special = u8::from(special.contains_key(&id));
        table.tokens[id as usize] =
            Token { begin, size, present: 1, special, byte: byte.into(), reserved: 0 };
        table.bytes.extend(bytes);
    }
    Ok(table)
}
