//! Text formats of metrics: that of Prometheus, version 0.0.4, and OpenMetrics 1.0.
//!
//! The library writes OpenMetrics. The other format follows from it line by line: a counter has the name of its samples, an
//! information is a gauge, and there are neither units nor an end.

use std::fmt;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::middleware::with_type;

/// Text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricsFormat {
    /// Text format of Prometheus, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl MetricsFormat {
    /// Returns the format that `Accept` prefers: OpenMetrics only if it is named.
    pub fn of(headers: &HeaderMap) -> MetricsFormat {
        let (mut named, mut text) = (0.0_f32, 0.0_f32);
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in values.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version) = (1.0_f32, None);
            for parameter in parts {
                match parameter.split_once('=') {
                    Some(("q" | "Q", value)) => quality = value.trim().parse().unwrap_or(0.0),
                    Some((name, value)) if name.eq_ignore_ascii_case("version") => {
                        version = Some(value.trim_matches('"'));
                    }
                    _ => {}
                }
            }
            match &*media_type {
                "application/openmetrics-text" if matches!(version, None | Some("1.0.0")) => {
                    named = named.max(quality);
                }
                "text/plain" | "text/*" => text = text.max(quality),
                _ => {}
            }
        }
        if named > 0.0 && named >= text { MetricsFormat::OpenMetrics } else { MetricsFormat::Prometheus }
    }

    /// Returns the value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the metrics of a registry in the format.
    pub fn text(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, registry)?;
        Ok(match self {
            MetricsFormat::Prometheus => to_prometheus(&text),
            MetricsFormat::OpenMetrics => text,
        })
    }

    /// Returns an answer with the metrics of a registry.
    pub(crate) fn answer(self, registry: &Registry) -> Result<Response<Body>, fmt::Error> {
        let mut response = with_type(self.content_type(), self.text(registry)?);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
        Ok(response)
    }
}

/// Returns metrics in OpenMetrics as the text format of Prometheus.
fn to_prometheus(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some((_, meaning)) = help.take().filter(|(described, _)| *described == name) {
                text.extend(["# HELP ", name, suffix, " ", meaning, "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::Unit;

    use super::*;

    #[test]
    fn openmetrics_is_sent_only_if_it_is_named_and_not_less_welcome_than_text() {
        for (accept, format) in [
            ("", MetricsFormat::Prometheus),
            ("*/*", MetricsFormat::Prometheus),
            ("text/plain", MetricsFormat::Prometheus),
            ("text/plain;version=0.0.4", MetricsFormat::Prometheus),
            ("application/json", MetricsFormat::Prometheus),
            ("application/openmetrics-text", MetricsFormat::OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", MetricsFormat::OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", MetricsFormat::Prometheus),
            ("application/openmetrics-text;q=0", MetricsFormat::Prometheus),
            ("application/openmetrics-text;q=0.3,text/plain;q=0.5", MetricsFormat::Prometheus),
            ("application/openmetrics-text,text/plain;q=0.5", MetricsFormat::OpenMetrics),
            // Prometheus 2.42.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                MetricsFormat::OpenMetrics,
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).expect("a value"));
            assert_eq!(MetricsFormat::of(&headers), format, "{accept}");
        }
    }

    #[test]
    fn both_formats_have_the_same_samples_under_names_of_their_own_rules() {
        let mut registry = Registry::with_prefix("x");
        let counter: Counter = Counter::default();
        counter.inc();
        registry.register("requests", "Requests", counter);
        registry.register_with_unit("size", "Size", Unit::Bytes, Gauge::<i64>::default());
        registry.register("build", "Build", Info::new([("version", "1 # TYPE \"a\"\n")]));
        assert_eq!(
            MetricsFormat::OpenMetrics.text(&registry).expect("text"),
            "# HELP x_requests Requests.\n# TYPE x_requests counter\nx_requests_total 1\n\
             # HELP x_size_bytes Size.\n# TYPE x_size_bytes gauge\n# UNIT x_size_bytes bytes\nx_size_bytes 0\n\
             # HELP x_build Build.\n# TYPE x_build info\nx_build_info{version=\"1 # TYPE \\\"a\\\"\\n\"} 1\n# EOF\n"
        );
        assert_eq!(
            MetricsFormat::Prometheus.text(&registry).expect("text"),
            "# HELP x_requests_total Requests.\n# TYPE x_requests_total counter\nx_requests_total 1\n\
             # HELP x_size_bytes Size.\n# TYPE x_size_bytes gauge\nx_size_bytes 0\n\
             # HELP x_build_info Build.\n# TYPE x_build_info gauge\nx_build_info{version=\"1 # TYPE \\\"a\\\"\\n\"} 1\n"
        );
    }
}
