//! The `traceparent` header: whose trace a request belongs to.

use axum::http::HeaderMap;

/// A caller's trace and the span that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(super) trace_id: u128,
    pub(super) parent_id: u64,
    pub(super) is_sampled: bool,
}

impl TraceContext {
    /// `None` if there is none, or none that can be read: such a header is as good as absent.
    pub(crate) fn of(headers: &HeaderMap) -> Option<TraceContext> {
        TraceContext::parse(headers.get("traceparent")?.to_str().ok()?)
    }

    /// `VERSION-TRACE-PARENT-FLAGS` in lower-case hexadecimal; versions to come may add fields.
    fn parse(text: &str) -> Option<TraceContext> {
        let mut fields = text.split('-');
        let mut field = |length: usize| {
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            let field = fields.next()?;
            (field.len() == length && field.bytes().all(is_digit)).then_some(field)
        };
        let (version, trace_id, parent_id, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        if version == "ff" || (version == "00" && fields.next().is_some()) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace_id, 16).ok()?;
        let parent_id = u64::from_str_radix(parent_id, 16).ok()?;
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace_id != 0 && parent_id != 0).then_some(TraceContext {
            trace_id,
            parent_id,
            is_sampled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_or_ignored() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let known = format!("00-{trace}-b7ad6b7169203331-01");
        let context = TraceContext::parse(&known).unwrap();
        assert_eq!(context.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((context.parent_id, context.is_sampled), (0xb7ad_6b71_6920_3331, true));
        let unsampled = TraceContext::parse(&format!("00-{trace}-b7ad6b7169203331-00"));
        assert!(!unsampled.unwrap().is_sampled);
        assert!(TraceContext::parse(&format!("cc-{trace}-b7ad6b7169203331-01-more")).is_some());
        for wrong in [
            String::new(),
            "00".to_owned(),
            format!("00-{trace}-b7ad6b7169203331"),
            format!("00-{trace}-b7ad6b7169203331-01-more"),
            format!("ff-{trace}-b7ad6b7169203331-01"),
            format!("00-{trace}-0000000000000000-01"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{}-b7ad6b7169203331-01", trace.to_uppercase()),
            format!("00-{trace}é-b7ad6b716920333-01"),
        ] {
            assert_eq!(TraceContext::parse(&wrong), None, "{wrong}");
        }
    }
}
