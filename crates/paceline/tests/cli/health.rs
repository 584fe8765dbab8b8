use std::io::{Read, Write};
use std::net::TcpListener;

use super::bench::Bench;

/// Asks a server that says `answer` to one client and is gone.
fn ask(bench: &Bench, answer: &'static [u8]) -> super::bench::Ran {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            asked.push(byte[0]);
        }
        // The client may have seen enough.
        let _ = socket.write_all(answer);
        String::from_utf8(asked).unwrap()
    });
    let ran = bench.call(&["health", "--port", &port]);
    assert!(server.join().unwrap().starts_with("GET /health HTTP/1.1\r\nHost: 127.0.0.1:"));
    ran
}

#[test]
fn the_status_of_health_decides() {
    let bench = Bench::new();
    assert_eq!(ask(&bench, b"HTTP/1.1 200 OK\r\n\r\n{}").expect(0).stdout, "ok\n");
    assert_eq!(ask(&bench, b"HTTP/1.0 200\r\n\r\n").expect(0).stdout, "ok\n");
    let cases: [(&[u8], &str); 6] = [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "its /health answers 503"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "its /health answers 2000"),
        (b"", "does not speak HTTP"),
        (b"200\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 -1 \xff\r\n", "does not speak HTTP"),
        (&[b'x'; 5000], "does not speak HTTP"),
    ];
    for (answer, why) in cases {
        ask(&bench, answer).expect_error(1, why);
    }
}

#[test]
fn nobody_there_is_not_healthy() {
    let bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    bench.call(&["health", "--port", &port]).expect_error(1, "does not answer");
    bench.call(&["health", "--host", "999.1.1.1"]).expect_error(1, "999.1.1.1");
}
