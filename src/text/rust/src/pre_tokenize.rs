//! The file's pre-tokenizer with a guard against regular expressions that never end.
//!
//! Two bounds: Oniguruma gives up a single search after a fixed number of retries, and a text that needs
//! too long in all is given up between two matches.

use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;
use std::time::{Duration, Instant};

use tokenizers::pre_tokenizers::split::Split;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::pattern::Pattern;
use tokenizers::{Offsets, PreTokenizedString, PreTokenizer};

/// An honest pattern retries a few times a byte of one long run ("aaaa..."); 10^7 is about 0.1 s.
const RETRIES_IN_A_SEARCH: std::os::raw::c_ulong = 10_000_000;
/// Backtracking frames, 40 bytes each.
const STACK_OF_A_SEARCH: std::os::raw::c_uint = 10_000_000;
/// Honest patterns split more than 10 MB a second.
const TIME_FOR_A_TEXT: Duration = Duration::from_secs(30);

/// Sets the limits of the regular expression library, once in the process.
pub fn limit_regex_searches() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: plain setters of process-wide limits, called before the first search.
        unsafe {
            onig_sys::onig_set_retry_limit_in_match(RETRIES_IN_A_SEARCH);
            onig_sys::onig_set_retry_limit_in_search(RETRIES_IN_A_SEARCH);
            onig_sys::onig_set_match_stack_limit_size(STACK_OF_A_SEARCH);
        }
    });
}

type CrateResult<T> = tokenizers::Result<T>;

pub fn pre_tokenize(
    pre_tokenizer: &PreTokenizerWrapper,
    text: &mut PreTokenizedString,
) -> CrateResult<()> {
    run(pre_tokenizer, text, Instant::now() + TIME_FOR_A_TEXT)
}

fn run(
    pre_tokenizer: &PreTokenizerWrapper,
    text: &mut PreTokenizedString,
    deadline: Instant,
) -> CrateResult<()> {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().try_for_each(|part| run(part, text, deadline))
        }
        PreTokenizerWrapper::Split(split) => text.split(|_, piece| {
            let pattern = Guarded { split, deadline, matches: RefCell::default() };
            piece.split(pattern, split.behavior)
        }),
        other => other.pre_tokenize(text),
    }
}

/// A Split's pattern that fails instead of running on.
struct Guarded<'a> {
    split: &'a Split,
    deadline: Instant,
    matches: RefCell<Vec<(Offsets, bool)>>,
}

impl Pattern for Guarded<'_> {
    fn find_matches(&self, inside: &str) -> CrateResult<Vec<(Offsets, bool)>> {
        // The onig crate panics where a search gives up.
        catch_unwind(AssertUnwindSafe(|| self.collect(inside))).unwrap_or_else(|_| {
            Err("the pre_tokenizer's regular expression gave up on it".into())
        })?;
        Ok(self.matches.take())
    }
}

impl Guarded<'_> {
    fn collect(&self, inside: &str) -> CrateResult<()> {
        let mut matches = self.matches.borrow_mut();
        matches.clear();
        if inside.is_empty() {
            matches.push(((0, 0), self.split.invert));
            return Ok(());
        }
        let mut end_of_last = 0;
        for (begin, end) in self.split.regex.find_iter(inside) {
            if Instant::now() > self.deadline {
                return Err("the pre_tokenizer's regular expression takes too long on it".into());
            }
            if end_of_last != begin {
                matches.push(((end_of_last, begin), self.split.invert));
            }
            matches.push(((begin, end), !self.split.invert));
            end_of_last = end;
        }
        if end_of_last != inside.len() {
            matches.push(((end_of_last, inside.len()), self.split.invert));
        }
        Ok(())
    }
}
