//! Export of spans over OTLP, by HTTP with protobuf, to an OpenTelemetry collector.
//!
//! The standard variables configure it: `OTEL_EXPORTER_OTLP_ENDPOINT` turns it on. A queue of the SDK with a bound has the ended
//! spans; a thread of the SDK exports them. A span for which the queue has no space is dropped, and no other thread waits.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};

use chancery_spans::{RecordedSpan, SpanRecorder, SpanRole, SpanStart};

/// Maximum time of one export. It also bounds how long an export delays the end of the program.
const EXPORT: Duration = Duration::from_secs(5);
/// Time in which the last spans are exported at the end.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Exporter of this process, which exports the last spans when it is dropped.
#[derive(Debug)]
pub struct SpanExporter(Option<SdkTracerProvider>);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Variables that name a collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Whether the standard variables ask for an export.
fn is_asked() -> bool {
    let has_endpoint = ENDPOINTS.into_iter().any(|name| variable(name).is_some());
    let is_disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let is_none = variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    has_endpoint && !is_disabled && !is_none
}

impl SpanExporter {
    /// Starts to record spans, if the standard variables ask for it.
    pub fn start() -> Result<SpanExporter> {
        if !is_asked() {
            return Ok(SpanExporter(None));
        }
        for (name, url) in ENDPOINTS.into_iter().filter_map(|name| Some((name, variable(name)?))) {
            // Without TLS, each export to another address would fail.
            ensure!(
                url.starts_with("http://"),
                "cannot export spans: {name} must start with http://, and is {url:?}"
            );
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpClient::new())
            .with_timeout(EXPORT)
            .build()
            .context("cannot export spans: invalid OTEL_EXPORTER_OTLP variables")?;
        let mut resource = Resource::builder();
        let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let has_name = attributes.split(',').any(|pair| pair.trim_start().starts_with("service.name="));
        if variable("OTEL_SERVICE_NAME").is_none() && !has_name {
            resource = resource.with_service_name("chancery");
        }
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.with_attribute(version).build())
            .build();
        chancery_spans::install(Box::new(OtelRecorder(provider.tracer("chancery"))));
        Ok(SpanExporter(Some(provider)))
    }
}

impl Drop for SpanExporter {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(LAST_SPANS)
        {
            tracing::warn!(%error, "last spans not exported");
        }
    }
}

/// HTTP client for exports, on the thread of the SDK, which may block.
#[derive(Debug)]
struct OtlpClient(ureq::Agent);

impl OtlpClient {
    fn new() -> OtlpClient {
        let config = ureq::Agent::config_builder().timeout_global(Some(EXPORT)).http_status_as_error(false);
        OtlpClient(config.build().into())
    }
}

#[async_trait::async_trait]
impl opentelemetry_http::HttpClient for OtlpClient {
    async fn send_bytes(
        &self,
        request: opentelemetry_http::Request<opentelemetry_http::Bytes>,
    ) -> Result<opentelemetry_http::Response<opentelemetry_http::Bytes>, opentelemetry_http::HttpError> {
        let (parts, body) = request.into_parts();
        let request = opentelemetry_http::Request::from_parts(parts, body.to_vec());
        let (parts, mut body) = self.0.run(request)?.into_parts();
        Ok(opentelemetry_http::Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}

struct OtelRecorder(SdkTracer);

/// Reads a `traceparent`.
fn parse(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::default()))
}

impl SpanRecorder for OtelRecorder {
    fn start(&self, start: SpanStart<'_>) -> Box<dyn RecordedSpan> {
        let kind = match start.role {
            SpanRole::Server => SpanKind::Server,
            SpanRole::Producer => SpanKind::Producer,
            SpanRole::Consumer => SpanKind::Consumer,
            SpanRole::Client => SpanKind::Client,
            SpanRole::Internal => SpanKind::Internal,
        };
        let parent = start.parent.and_then(parse);
        let parent =
            parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let builder = SpanBuilder::from_name(start.name).with_kind(kind).with_start_time(start.at);
        Box::new(OtelSpan(self.0.build_with_context(builder, &parent)))
    }
}

/// Span of the SDK, which its drop ends.
struct OtelSpan(Span);

impl RecordedSpan for OtelSpan {
    fn context(&self) -> String {
        let of = self.0.span_context();
        let flags = of.trace_flags() & TraceFlags::SAMPLED;
        format!("00-{}-{}-{:02x}", of.trace_id(), of.span_id(), flags)
    }

    fn text(&mut self, key: &'static str, value: String) {
        self.0.set_attribute(KeyValue::new(key, value));
    }

    fn number(&mut self, key: &'static str, value: i64) {
        self.0.set_attribute(KeyValue::new(key, value));
    }

    fn fail(&mut self, reason: String) {
        self.0.set_status(Status::error(reason));
    }
}
