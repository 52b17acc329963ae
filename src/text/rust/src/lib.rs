//! Tokenizer and chat templates for rota's text room. `abi.rs` is what C++ sees (`rota_text.h`).

mod abi;
mod decoding;
mod pre_tokenize;
mod python_json;
mod template;
mod text_bound;
mod tokenizer;
