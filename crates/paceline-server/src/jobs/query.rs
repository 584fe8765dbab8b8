//! Lists: what stands behind their question mark, and how they are answered.

use paceline_jobs::store::Page;

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use crate::error::ApiError;
use crate::json::json_response;

/// The parameters of a query; ours need no escapes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    pub(super) fn new(query: Option<&'a str>) -> Query<'a> {
        Query(query.unwrap_or_default())
    }

    pub(super) fn get(self, name: &str) -> Option<&'a str> {
        let pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(known, _)| *known == name).map(|(_, value)| value).next_back()
    }

    /// The page that is asked for, of at most `max` entries.
    pub(super) fn page(self, default: usize, max: usize) -> Result<Page, ApiError> {
        let limit = match self.get("limit") {
            None => default,
            Some(text) => {
                let limit = text.parse().ok().filter(|limit| (1..=max).contains(limit));
                let wrong = || ApiError::invalid("limit", format!("limit must be from 1 to {max}"));
                limit.ok_or_else(wrong)?
            }
        };
        let oldest_first = match self.get("order") {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::invalid("order", "order must be asc or desc")),
        };
        Ok(Page { after: self.get("after").map(str::to_owned), limit, oldest_first })
    }
}

/// A page as OpenAI writes it: entries, and the ids to go on from.
pub(super) fn list_response<'a, T, O: From<&'a T> + Serialize>(
    (found, has_more): &'a (Vec<T>, bool),
    id: impl Fn(&'a T) -> &'a str,
) -> Response {
    let list = json!({
        "object": "list",
        "data": found.iter().map(O::from).collect::<Vec<O>>(),
        "has_more": has_more,
        "first_id": found.first().map(&id),
        "last_id": found.last().map(&id),
    });
    json_response(StatusCode::OK, &list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read() {
        let page = |query| Query::new(query).page(20, 100);
        let default = page(None).unwrap();
        assert_eq!((default.after, default.limit, default.oldest_first), (None, 20, false));
        let asked = page(Some("limit=3&after=batch_1&order=asc&x")).unwrap();
        assert_eq!(asked.after.as_deref(), Some("batch_1"));
        assert_eq!((asked.limit, asked.oldest_first), (3, true));
        for bad in ["limit=0", "limit=101", "limit=x", "limit=", "order=up"] {
            assert!(page(Some(bad)).is_err(), "{bad}");
        }
    }
}
