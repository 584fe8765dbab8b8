//! A file on its way in: `multipart/form-data`, written to the disk as it arrives.

use axum::extract::Request;
use axum::http::header;
use multer::{Field, Multipart};
use paceline_jobs::queue::unix_seconds;
use paceline_jobs::store::{FileMeta, NewFile, Upload};
use tokio::task::block_in_place;

use super::Jobs;
use crate::app::App;
use crate::error::ApiError;

/// Fields beside the file.
const MAX_FIELDS: usize = 16;
const MAX_FIELD_BYTES: usize = 1024;
const MAX_NAME_CHARS: usize = 255;

/// When a file may go, as OpenAI lets clients ask for it.
const EXPIRY_RANGE: std::ops::RangeInclusive<u64> = 3600..=2_592_000;

/// What the fields said.
#[derive(Debug, Default)]
struct Form {
    filename: Option<String>,
    purpose: Option<String>,
    /// Seconds from now.
    expires_after: Option<u64>,
}

pub(super) async fn take_in(
    app: &App,
    jobs: &Jobs,
    owner: &str,
    request: Request,
) -> Result<FileMeta, ApiError> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).map_err(|_| {
        let message = "a file is uploaded as multipart/form-data, with fields file and purpose";
        ApiError::Invalid { message: message.to_owned(), param: None, code: None }
    })?;
    let body = request.into_body().into_data_stream();
    let mut parts = Multipart::new(body, boundary);
    let id = format!("file-{}", crate::random::id());
    let mut upload = block_in_place(|| jobs.store.upload(id))?;
    let mut form = Form::default();
    for _ in 0..MAX_FIELDS {
        let Some(field) = in_time(app, parts.next_field()).await? else {
            return block_in_place(|| finish(jobs, owner, upload, form));
        };
        match field.name().unwrap_or_default() {
            "file" => {
                let name = field.file_name().unwrap_or("file");
                form.filename = Some(name.chars().take(MAX_NAME_CHARS).collect());
                write_all(app, jobs, field, &mut upload).await?;
            }
            "purpose" => form.purpose = Some(read_text(app, field).await?),
            "expires_after[seconds]" => {
                let seconds = read_text(app, field).await?;
                form.expires_after = Some(read_expiry(&seconds)?);
            }
            _ => drop(read_text(app, field).await?),
        }
    }
    Err(ApiError::invalid("file", "the form has too many fields"))
}

fn finish(jobs: &Jobs, owner: &str, upload: Upload<'_>, form: Form) -> Result<FileMeta, ApiError> {
    let missing = |name| ApiError::invalid(name, format!("the field {name} is missing"));
    let filename = form.filename.ok_or_else(|| missing("file"))?;
    let purpose = form.purpose.ok_or_else(|| missing("purpose"))?;
    if purpose != "batch" {
        return Err(ApiError::invalid(
            "purpose",
            "purpose must be batch: files serve nothing else",
        ));
    }
    let created_at = unix_seconds();
    let kept = jobs.options.retention.as_secs();
    let kept = form.expires_after.map_or(kept, |asked| asked.min(kept));
    Ok(upload.finish(NewFile {
        owner: owner.to_owned(),
        filename,
        purpose,
        created_at,
        expires_at: Some(created_at.saturating_add(kept)),
    })?)
}

async fn write_all(
    app: &App,
    jobs: &Jobs,
    mut field: Field<'_>,
    upload: &mut Upload<'_>,
) -> Result<(), ApiError> {
    let limit = jobs.options.max_file_bytes;
    while let Some(chunk) = in_time(app, field.chunk()).await? {
        if upload.bytes().saturating_add(chunk.len() as u64) > limit {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            return Err(ApiError::BodyTooLarge { limit });
        }
        block_in_place(|| upload.write(&chunk))?;
    }
    Ok(())
}

async fn read_text(app: &App, mut field: Field<'_>) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = in_time(app, field.chunk()).await? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_FIELD_BYTES {
            return Err(ApiError::invalid("file", "a field of the form is too long"));
        }
    }
    String::from_utf8(bytes).map_err(|_| ApiError::invalid("file", "a field is not valid UTF-8"))
}

fn read_expiry(seconds: &str) -> Result<u64, ApiError> {
    let seconds = seconds.parse().ok().filter(|seconds| EXPIRY_RANGE.contains(seconds));
    seconds.ok_or_else(|| {
        let (least, most) = EXPIRY_RANGE.into_inner();
        let message = format!("expires_after.seconds must be from {least} to {most}");
        ApiError::invalid("expires_after", message)
    })
}

/// A large file may take its time, but something must arrive now and then.
async fn in_time<T>(
    app: &App,
    arrival: impl Future<Output = Result<T, multer::Error>>,
) -> Result<T, ApiError> {
    let limit = app.options.body_timeout;
    let arrived = tokio::time::timeout(limit, arrival).await;
    arrived.map_err(|_| ApiError::BodyTimeout { limit })?.map_err(|error| ApiError::Invalid {
        message: format!("the form could not be read: {error}"),
        param: None,
        code: None,
    })
}
