//! Chat templates through minijinja, with what transformers gives them, and bounded.

use std::io;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::abi::Failure;
use crate::python_json::{Style, Writer};

const NAME: &str = "chat_template";
const MAX_SOURCE: usize = 4 << 20;
/// Macro calls cost 10 and more of these: far deeper than honest templates go.
const RECURSION_LIMIT: usize = 400;
const MAX_TIME_FORMAT: usize = 256;

pub struct Limits {
    pub fuel: u64,
    pub max_output: usize,
}

/// What the functions of a template may know of the world.
#[derive(Clone)]
pub struct Surroundings {
    pub unix_seconds: i64,
    pub markers: Vec<char>,
}

pub struct Template {
    environment: Environment<'static>,
}

impl Template {
    pub fn compile(source: &str) -> Result<Self, Failure> {
        if source.len() > MAX_SOURCE {
            return Err(Failure::damaged(format!(
                "is {} bytes long; expected at most {MAX_SOURCE}",
                source.len()
            )));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| Failure::damaged(e.to_string()))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| Failure::damaged(describe(&e)))?;
        Ok(Self { environment })
    }

    pub fn render(
        &self,
        context_json: &[u8],
        limits: Limits,
        surroundings: Surroundings,
    ) -> Result<String, Failure> {
        let context: serde_json::Value = serde_json::from_slice(context_json)
            .map_err(|e| Failure::invalid(format!("the template's variables: {e}")))?;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(limits.fuel));
        let markers = Arc::new(surroundings.markers);
        environment.add_filter(
            "tojson",
            move |state: &State, value: Value, arguments: Rest<Value>, kwargs: Kwargs| {
                to_json(state, &value, &arguments, &kwargs, &markers)
            },
        );
        let seconds = surroundings.unix_seconds;
        environment.add_function("strftime_now", move |format: &str| strftime(format, seconds));

        let template =
            environment.get_template(NAME).map_err(|e| Failure::damaged(describe(&e)))?;
        let mut output = Bounded { bytes: Vec::new(), limit: limits.max_output, exceeded: false };
        let rendered =
            template.render_captured_to(Value::from(Serde(context)), &mut output).map(|_| ());
        if output.exceeded {
            return Err(Failure::invalid(format!("wrote more than {} bytes", limits.max_output)));
        }
        rendered.map_err(|e| Failure::invalid(describe(&e)))?;
        String::from_utf8(output.bytes)
            .map_err(|_| Failure::invalid("wrote text that is not UTF-8"))
    }
}

fn to_json(
    state: &State,
    value: &Value,
    arguments: &[Value],
    kwargs: &Kwargs,
    markers: &[char],
) -> Result<Value, Error> {
    let style = Style::from_arguments(arguments, kwargs)?;
    Ok(Value::from(Writer::new(state, &style, markers).dump(value)?))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// strftime of the C library, in local time.
fn strftime(format: &str, unix_seconds: i64) -> Result<String, Error> {
    let wrong = |message: &'static str| Error::new(ErrorKind::InvalidOperation, message);
    if format.len() > MAX_TIME_FORMAT {
        return Err(wrong("strftime_now: the format is too long"));
    }
    let format =
        std::ffi::CString::new(format).map_err(|_| wrong("strftime_now: NUL in the format"))?;
    let mut buffer = vec![0u8; 16 * MAX_TIME_FORMAT];
    // SAFETY: localtime_r fills `parts`; strftime writes at most buffer.len() bytes.
    let written = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&unix_seconds, &mut parts).is_null() {
            return Err(wrong("strftime_now: no such time"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    buffer.truncate(written);
    String::from_utf8(buffer).map_err(|_| wrong("strftime_now: the result is not UTF-8"))
}

/// transformers marks the assistant's text with {% generation %}: here such a block is its content.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let Some(length) = rest[begin..].find("%}") else {
            break;
        };
        let tag = &rest[begin..begin + length + 2];
        let name =
            tag[2..length].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        out.push_str(&rest[..begin]);
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[begin + length + 2..];
    }
    out.push_str(rest);
    out
}

/// The error in one line: what happened and in which line of the template.
fn describe(error: &Error) -> String {
    let what = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "needs too much time or memory".to_string(),
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_string(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + data.len() > self.limit {
            self.exceeded = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
