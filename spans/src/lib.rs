//! Spans of traces: what each part of the program reports of its work on an intent, for a recorder that exports it.
//!
//! Without a recorder, which only a program with the feature `otel` installs, no span is made and nothing is kept. A context is
//! the text of a W3C `traceparent`: it crosses threads, records and the executors' protocol as it is.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Role of a span, named as OpenTelemetry names kinds of spans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanRole {
    /// Work for a request of a client.
    Server,
    /// Message that another part takes later.
    Producer,
    /// Work on a message.
    Consumer,
    /// Request to another system.
    Client,
    /// Work inside this process.
    Internal,
}

/// Start of a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpanStart<'a> {
    /// Name of the span.
    pub name: Cow<'static, str>,
    /// Role of the span.
    pub role: SpanRole,
    /// Context of the parent; `None` for the first span of a trace.
    pub parent: Option<&'a str>,
    /// Time of the start.
    pub at: SystemTime,
}

/// Recorder of spans.
pub trait SpanRecorder: Send + Sync {
    /// Starts a span. Its end is its drop.
    fn start(&self, start: SpanStart<'_>) -> Box<dyn RecordedSpan>;
}

/// Span that a recorder has started.
pub trait RecordedSpan: Send + Sync {
    /// Context of the span, as a `traceparent`.
    fn context(&self) -> String;

    /// Sets an attribute to a text.
    fn text(&mut self, key: &'static str, value: String);

    /// Sets an attribute to a number.
    fn number(&mut self, key: &'static str, value: i64);

    /// Marks the work of the span as failed.
    fn fail(&mut self, reason: String);
}

static RECORDER: OnceLock<Box<dyn SpanRecorder>> = OnceLock::new();

/// Installs the recorder of this process. Later calls have no effect.
pub fn install(recorder: Box<dyn SpanRecorder>) {
    // The first recorder has open spans already.
    let _ = RECORDER.set(recorder);
}

/// Whether spans are recorded.
pub fn are_recorded() -> bool {
    RECORDER.get().is_some()
}

/// Span that ends when it is dropped; nothing without a recorder.
#[derive(Default)]
pub struct TraceSpan(Option<Box<dyn RecordedSpan>>);

impl fmt::Debug for TraceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TraceSpan").field(&self.context()).finish()
    }
}

impl TraceSpan {
    /// Starts a span now.
    pub fn start(name: impl Into<Cow<'static, str>>, role: SpanRole, parent: Option<&str>) -> TraceSpan {
        let Some(recorder) = RECORDER.get() else { return TraceSpan(None) };
        TraceSpan(Some(recorder.start(SpanStart { name: name.into(), role, parent, at: SystemTime::now() })))
    }

    /// Starts a span of work that started at `at`.
    pub fn since(at: SystemTime, name: &'static str, role: SpanRole, parent: Option<&str>) -> TraceSpan {
        let Some(recorder) = RECORDER.get() else { return TraceSpan(None) };
        TraceSpan(Some(recorder.start(SpanStart { name: name.into(), role, parent, at })))
    }

    /// Context of the span, for its children; `None` without a recorder.
    pub fn context(&self) -> Option<String> {
        self.0.as_ref().map(|span| span.context())
    }

    /// Sets an attribute to a text.
    pub fn text(&mut self, key: &'static str, value: impl fmt::Display) {
        if let Some(span) = &mut self.0 {
            span.text(key, value.to_string());
        }
    }

    /// Sets an attribute to a number.
    pub fn number(&mut self, key: &'static str, value: i64) {
        if let Some(span) = &mut self.0 {
            span.number(key, value);
        }
    }

    /// Marks the work of the span as failed.
    pub fn fail(&mut self, reason: impl fmt::Display) {
        if let Some(span) = &mut self.0 {
            span.fail(reason.to_string());
        }
    }
}

tokio::task_local! {
    static CURRENT: Option<String>;
}

/// Runs a future whose calls of [`current`] return this context.
pub async fn within<F: Future>(context: Option<String>, future: F) -> F::Output {
    CURRENT.scope(context, future).await
}

/// Context of the request that this task answers, if its spans are recorded.
pub fn current() -> Option<String> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_recorder_there_is_no_span_and_no_context() {
        let mut span = TraceSpan::start("work", SpanRole::Internal, None);
        span.text("key", "value");
        assert_eq!((span.context(), are_recorded()), (None, false));
        assert_eq!(within(span.context(), async { current() }).await, None);
    }

    #[tokio::test]
    async fn a_context_is_that_of_its_task() {
        let context = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
        assert_eq!(within(context.clone(), async { current() }).await, context);
        assert_eq!(current(), None);
    }
}
