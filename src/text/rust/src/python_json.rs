//! `json.dumps` as Python writes it: what the `tojson` filter of transformers' chat templates does.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

const MAX_DEPTH: usize = 128;
const MAX_INDENT: usize = 64;

pub struct Style {
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

impl Style {
    /// tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False), in this order too.
    pub fn from_arguments(positional: &[Value], kwargs: &Kwargs) -> Result<Self, Error> {
        let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
            let given = match positional.get(place) {
                Some(value) => Some(value.clone()),
                None => kwargs.get::<Option<Value>>(name)?,
            };
            Ok(given.filter(|v| !v.is_none() && !v.is_undefined()))
        };
        let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
        let indent = match argument(1, "indent")? {
            None => None,
            Some(value) => match usize::try_from(value) {
                Ok(width) if width <= MAX_INDENT => Some(width),
                _ => {
                    return Err(wrong(format!(
                        "tojson: indent is not a number from 0 to {MAX_INDENT}"
                    )))
                }
            },
        };
        let mut style = Style {
            indent,
            item_separator: if indent.is_some() { "," } else { ", " }.to_string(),
            key_separator: ": ".to_string(),
            sort_keys: argument(3, "sort_keys")?.is_some_and(|v| v.is_true()),
            ensure_ascii,
        };
        if let Some(separators) = argument(2, "separators")? {
            let pair: Vec<Value> = separators.try_iter()?.take(3).collect();
            match (
                pair.len(),
                pair.first().and_then(Value::as_str),
                pair.get(1).and_then(Value::as_str),
            ) {
                (2, Some(item), Some(key)) => {
                    style.item_separator = item.to_string();
                    style.key_separator = key.to_string();
                }
                _ => return Err(wrong("tojson: separators is not a pair of strings")),
            }
        }
        kwargs.assert_all_used()?;
        Ok(style)
    }
}

pub struct Writer<'a, 'env> {
    state: &'a State<'env, 'env>,
    style: &'a Style,
    markers: &'a [char], // stay themselves even with ensure_ascii
    out: String,
    paid: usize,
}

impl<'a, 'env> Writer<'a, 'env> {
    pub fn new(state: &'a State<'env, 'env>, style: &'a Style, markers: &'a [char]) -> Self {
        Self { state, style, markers, out: String::new(), paid: 0 }
    }

    pub fn dump(mut self, value: &Value) -> Result<String, Error> {
        self.value(value, 0)?;
        Ok(self.out)
    }

    /// Pays fuel for what was written and for one more item.
    fn pay(&mut self) -> Result<(), Error> {
        let written = (self.out.len() - self.paid) as u64;
        self.paid = self.out.len();
        self.state.consume_fuel(1 + written / 16)
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong("tojson: nested too deeply"));
        }
        self.pay()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(wrong(format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return Ok(());
        }
        let number = f64::try_from(value.clone())?;
        self.out.push_str(&python_float(number));
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(width) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            if !empty {
                self.out.push_str(&self.style.item_separator);
            }
            empty = false;
            self.new_line(depth + 1);
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        self.state.consume_fuel(keys.len() as u64)?;
        if self.style.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in keys {
            if !empty {
                self.out.push_str(&self.style.item_separator);
            }
            empty = false;
            self.new_line(depth + 1);
            self.key(&key)?;
            self.out.push_str(&self.style.key_separator);
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push('}');
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_string(),
            ValueKind::None => "null".to_string(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
            ValueKind::Number if key.is_integer() => key.to_string(),
            ValueKind::Number => python_float(f64::try_from(key.clone())?),
            kind => return Err(wrong(format!("tojson: a key is a {kind}"))),
        };
        self.string(&text);
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.escape(c),
                c if self.style.ensure_ascii && c > '~' && !self.markers.contains(&c) => {
                    self.escape(c)
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            self.out.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

/// repr(float): the shortest digits that read back, an exponent from 1e16 up and below 1e-4.
pub fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
