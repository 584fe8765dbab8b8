use std::collections::BTreeMap;

use super::*;

fn new_file(owner: &str, expires_at: Option<u64>) -> NewFile {
    NewFile {
        owner: owner.to_owned(),
        filename: "in.jsonl".to_owned(),
        purpose: "batch".to_owned(),
        created_at: 100,
        expires_at,
    }
}

fn upload(store: &Store, id: &str, owner: &str, expires_at: Option<u64>) -> FileMeta {
    let mut upload = store.upload(id.to_owned()).unwrap();
    upload.write(b"some ").unwrap();
    upload.write(b"bytes").unwrap();
    upload.finish(new_file(owner, expires_at)).unwrap()
}

fn new_batch(id: &str, owner: &str, input: &str) -> NewBatch {
    NewBatch {
        id: id.to_owned(),
        owner: owner.to_owned(),
        endpoint: crate::Endpoint::Completions,
        input_file_id: input.to_owned(),
        window: "24h".parse().unwrap(),
        metadata: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
        max_concurrency: Some(3),
        output_name: format!("{id}-out"),
        errors_name: format!("{id}-err"),
        created_at: 100,
    }
}

fn page(after: Option<&str>, limit: usize) -> Page {
    Page { after: after.map(str::to_owned), limit, oldest_first: false }
}

#[test]
fn one_server_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(matches!(Store::open(dir.path()), Err(JobsError::Locked { .. })));
    drop(store);
    assert!(Store::open(dir.path()).is_ok());
}

#[test]
fn a_directory_that_cannot_be_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error = Store::open(&dir.path().join("file/data")).unwrap_err().to_string();
    assert!(error.starts_with("cannot create ") && error.contains("file/data"), "{error}");
}

#[test]
fn uploads_are_files_when_they_are_finished() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let meta = upload(&store, "file-1", "ann", None);
    assert_eq!(meta.bytes, 10);
    assert_eq!(store.file(Some("ann"), "file-1").unwrap(), Some(meta));
    let mut dropped = store.upload("file-2".to_owned()).unwrap();
    dropped.write(b"x").unwrap();
    assert!(store.path_of("file-2").exists());
    assert_eq!(store.file(None, "file-2").unwrap(), None);
    drop(dropped);
    assert!(!store.path_of("file-2").exists());
    // A kill in mid-upload.
    std::fs::write(store.path_of("file-3"), "torn").unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert!(!store.path_of("file-3").exists());
    assert_eq!(std::fs::read(store.path_of("file-1")).unwrap(), b"some bytes");
}

#[test]
fn owners_see_their_own_and_lists_have_cursors() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for i in 0..5 {
        upload(&store, &format!("file-{i}"), if i == 3 { "bob" } else { "ann" }, None);
    }
    let ids = |owner, page: &Page| {
        let (files, has_more) = store.files(owner, Some("batch"), page).unwrap();
        (files.into_iter().map(|file| file.id).collect::<Vec<_>>(), has_more)
    };
    assert_eq!(ids(Some("ann"), &page(None, 2)), (vec!["file-4".into(), "file-2".into()], true));
    let rest = ids(Some("ann"), &page(Some("file-2"), 2));
    assert_eq!(rest, (vec!["file-1".into(), "file-0".into()], false));
    let oldest = Page { oldest_first: true, ..page(Some("file-1"), 9) };
    assert_eq!(ids(None, &oldest).0, ["file-2", "file-3", "file-4"]);
    assert_eq!(ids(None, &page(Some("nothing"), 9)).0, Vec::<String>::new());
    assert_eq!(store.file(Some("bob"), "file-1").unwrap(), None);
    assert_eq!(store.delete_file(Some("bob"), "file-1").unwrap(), Deleted::Unknown);
    assert_eq!(store.delete_file(Some("ann"), "file-1").unwrap(), Deleted::Yes);
    assert!(!store.path_of("file-1").exists());
}

#[test]
fn batches_keep_what_they_need() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    upload(&store, "file-1", "ann", Some(200));
    let batch = store.create_batch(&new_batch("batch_1", "ann", "file-1")).unwrap();
    assert_eq!((batch.status, batch.expires_at), (Status::Validating, 86_500));
    assert_eq!((batch.metadata["k"].as_str(), batch.max_concurrency), ("v", Some(3)));
    let in_use = Deleted::InUse { batch_id: "batch_1".to_owned() };
    assert_eq!(store.delete_file(None, "file-1").unwrap(), in_use);
    store.sweep(1000, 10).unwrap();
    assert!(store.file(None, "file-1").unwrap().is_some(), "past its time, but needed");
    assert!(store.begin(batch.seq, 7, 300).unwrap());
    std::fs::write(store.path_of("batch_1-out"), "results").unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert!(store.path_of("batch_1-out").exists(), "not a stray: the batch writes it");
    let ending = Ending {
        status: Status::Completed,
        counts: Counts { total: 7, completed: 7, failed: 0 },
        output_bytes: 7,
        error_bytes: 0,
        now: 400,
        files_expire_at: Some(500),
    };
    store.finish(&batch, &ending).unwrap();
    let batch = store.batch(Some("ann"), "batch_1").unwrap().unwrap();
    assert_eq!(batch.output_file_id.as_deref(), Some("batch_1-out"));
    assert_eq!((batch.error_file_id, batch.completed_at), (None, Some(400)));
    assert!(!store.cancel("batch_1", 401).unwrap());
    let output = store.file(Some("ann"), "batch_1-out").unwrap().unwrap();
    assert_eq!((output.bytes, output.purpose.as_str()), (7, "batch_output"));
    store.sweep(450, 50).unwrap();
    assert!(store.batch(None, "batch_1").unwrap().is_none());
    assert!(store.file(None, "file-1").unwrap().is_none());
    assert!(store.file(None, "batch_1-out").unwrap().is_some(), "until 500");
}

#[test]
fn a_newer_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let database = Connection::open(dir.path().join("jobs.sqlite")).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    drop(database);
    assert!(matches!(Store::open(dir.path()), Err(JobsError::NewerVersion)));
}
